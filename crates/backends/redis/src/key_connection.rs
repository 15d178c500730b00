//! A connection to the server of one key, for `leasehold fence`. Not part of the backend's contract.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{Effect, Environment, Error, RequestIds, Result};
use redis::{
    Cmd, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

use crate::{
    backend::millis,
    config::Config,
    connect::ServerAddress,
    error::StoreError,
    replicas::{needed, too_few},
    reply::number,
    request_id::{self, PingBracket},
    router::Router,
    slot::slot_of_key,
};

/// A connection to the server that has a key. It is made as the backend makes its own: with the same logins,
/// TLS and timeouts, to the primary behind Sentinel, or to the node of the cluster.
#[doc(hidden)]
pub struct KeyConnection {
    driver: MultiplexedConnection,
    request_ids: RequestIds,
    address: ServerAddress,
    replicas_needed: u32,
    replica_timeout: Duration,
}

impl KeyConnection {
    pub async fn open(config: Config, environment: Arc<dyn Environment>, key: &str) -> Result<KeyConnection> {
        KeyConnection::try_open(config, environment, key).await.map_err(StoreError::into_error)
    }

    async fn try_open(
        config: Config,
        environment: Arc<dyn Environment>,
        key: &str,
    ) -> Result<KeyConnection, StoreError> {
        let request_ids = request_id::new_request_ids(&*environment);
        let router = Router::open(config, environment).await?;
        let node = match &router {
            Router::Single(node) => Arc::clone(node),
            Router::Cluster(cluster) => cluster.owner(slot_of_key(key))?,
        };
        let connection = node.connections.get().await?;
        // This handle keeps the connection open after the router is dropped.
        let (mut driver, address) = (connection.driver(), connection.address.clone());
        let replica_timeout = node.connections.config.replica_timeout;
        // `WAIT` blocks for up to the replica timeout before the server replies.
        driver.set_response_timeout(node.connections.config.timeout + replica_timeout);
        let replicas_needed = needed(&node.connections);
        Ok(KeyConnection { driver, request_ids, address, replicas_needed, replica_timeout })
    }

    /// Waits until as many replicas as the URL asks for have the writes of this connection.
    pub async fn wait_for_replicas(&mut self) -> Result<()> {
        if self.replicas_needed == 0 {
            return Ok(());
        }
        let mut wait = Cmd::new();
        wait.arg("WAIT").arg(self.replicas_needed).arg(millis(self.replica_timeout));
        let unknown = |error: StoreError| error.into_error().with_effect(Effect::Unknown);
        let reply = self.send(&wait).await.map_err(unknown)?;
        let acks = number(&reply).and_then(|acks| u32::try_from(acks).ok()).unwrap_or(0);
        if acks < self.replicas_needed {
            return Err(too_few(acks, self.replicas_needed).with_effect(Effect::Unknown));
        }
        Ok(())
    }

    async fn send(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        let bracket = PingBracket::new(&self.request_ids);
        let replies = self.driver.send_packed_commands(&bracket.wrap([command]), 0, 3).await;
        let reply = bracket.unwrap(replies.map_err(StoreError::Command)?, &self.address)?.pop();
        reply.unwrap_or(Value::Nil).extract_error().map_err(StoreError::Command)
    }

    /// Whether an error says that another node has the key by now. The node that said so has done nothing.
    pub fn has_key_moved(error: &Error) -> bool {
        let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<RedisError>());
        cause.is_some_and(|cause| cause.redirect_node().is_some())
    }
}

impl ConnectionLike for KeyConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.driver.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.driver.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.driver.get_db()
    }
}

impl fmt::Debug for KeyConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyConnection")
            .field("replicas_needed", &self.replicas_needed)
            .finish_non_exhaustive()
    }
}
