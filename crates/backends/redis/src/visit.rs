//! A connection for whoever is no backend: leasehold's program, which looks after fences. No part of the contract.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{Effect, Environment, Error, RequestIds, Result};
use redis::{
    Cmd, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};

use crate::{
    backend::millis,
    config::Config,
    error::Fault,
    proof::{self, Bracket},
    replicas::{needed, too_few},
    reply::number,
    route::Route,
    site::Address,
    slot::slot_of_key,
};

/// A connection to the server that has a key, made as the backend makes its own: the same logins, TLS and patience, the
/// primary behind Sentinel, the node of the cluster.
#[doc(hidden)]
pub struct Visit {
    connection: MultiplexedConnection,
    ids: RequestIds,
    address: Address,
    replicas: u32,
    replica_timeout: Duration,
}

impl Visit {
    pub async fn open(config: Config, environment: Arc<dyn Environment>, key: &str) -> Result<Visit> {
        Visit::to(config, environment, key).await.map_err(Fault::into_error)
    }

    async fn to(config: Config, environment: Arc<dyn Environment>, key: &str) -> Result<Visit, Fault> {
        let ids = proof::ids(&*environment);
        let route = Route::open(config, environment).await?;
        let node = match &route {
            Route::One(node) => Arc::clone(node),
            Route::Cluster(cluster) => cluster.owner(slot_of_key(key))?,
        };
        let wire = node.link.wire().await?;
        let (mut connection, address) = (wire.connection(), wire.address.clone());
        let replica_timeout = node.link.config.replica_timeout;
        connection.set_response_timeout(node.link.config.timeout + replica_timeout);
        Ok(Visit { connection, ids, address, replicas: needed(&node.link), replica_timeout })
    }

    /// Waits until as many replicas as the URL asks for have what was written here.
    pub async fn confirmed(&mut self) -> Result<()> {
        if self.replicas == 0 {
            return Ok(());
        }
        let mut wait = Cmd::new();
        wait.arg("WAIT").arg(self.replicas).arg(millis(self.replica_timeout));
        let unknown = |fault: Fault| fault.into_error().with_effect(Effect::Unknown);
        let answer = self.ask(&wait).await.map_err(unknown)?;
        let acks = number(&answer).and_then(|acks| u32::try_from(acks).ok()).unwrap_or(0);
        if acks < self.replicas {
            return Err(too_few(acks, self.replicas).with_effect(Effect::Unknown));
        }
        Ok(())
    }

    async fn ask(&mut self, command: &Cmd) -> Result<Value, Fault> {
        let bracket = Bracket::new(&self.ids);
        let answers = self.connection.send_packed_commands(&bracket.around([command]), 0, 3).await;
        let answer = bracket.open(answers.map_err(Fault::Command)?, &self.address)?.pop();
        answer.unwrap_or(Value::Nil).extract_error().map_err(Fault::Command)
    }

    /// Whether a node says that another one has the key by now, and has done nothing.
    pub fn is_over(error: &Error) -> bool {
        let said = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<RedisError>());
        said.is_some_and(|said| said.redirect_node().is_some())
    }
}

impl ConnectionLike for Visit {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.connection.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit").field("replicas", &self.replicas).finish_non_exhaustive()
    }
}
