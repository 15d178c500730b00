//! A Redis: its marks are beside the keys that are fenced.

use std::{error::Error as _, time::Duration};

use leasehold::{Error, ErrorKind, Resource};
use leasehold_fence::{Rebase, Rebased, redis::Fence, rule::Mark};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisError, aio::MultiplexedConnection};

use super::place::{failed, not_opened};
use crate::exit::Failure;

/// How long to wait for a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a node of a cluster may say that another one has the key.
const REDIRECTS: usize = 5;

/// A server, or any node of a cluster, and the key whose mark is meant.
pub(super) struct Keys {
    client: Client,
    key: Option<String>,
}

impl Keys {
    pub(super) fn of(url: &str, key: Option<&str>) -> Result<Keys, Failure> {
        if url.contains('?') {
            return Err(Failure::config(
                "the URL of a Redis takes no options here: redis://[USER[:PASSWORD]@]HOST[:PORT][/NUMBER]",
            )
            .hint("the password may be in REDISCLI_AUTH, certificates to trust in SSL_CERT_FILE"));
        }
        let bad = |error: RedisError| not_opened(Error::new(ErrorKind::Invalid, words(&error)));
        Ok(Keys { client: Client::open(url).map_err(bad)?, key: key.map(str::to_owned) })
    }

    fn key(&self) -> Result<&str, Failure> {
        let missing =
            || Failure::usage("in Redis a mark stands beside a key: name the key that is fenced with --key");
        self.key.as_deref().ok_or_else(missing)
    }

    pub(super) async fn mark(&self, resource: &Resource) -> Result<Option<Mark>, Failure> {
        let key = self.key()?;
        self.ask(async |connection| Fence::new().mark(connection, resource, key).await).await
    }

    pub(super) async fn rebases(&self, resource: &Resource) -> Result<Vec<Rebased>, Failure> {
        let key = self.key()?;
        self.ask(async |connection| Fence::new().rebases(connection, resource, key).await).await
    }

    pub(super) async fn rebase(&self, resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark), Failure> {
        let key = self.key()?;
        self.ask(async |connection| Fence::new().rebase(connection, resource, key, rebase).await).await
    }

    /// Asks the node that has the key. Who has it not says who does, and has done nothing.
    async fn ask<T>(
        &self,
        question: impl AsyncFn(&mut MultiplexedConnection) -> leasehold::Result<T>,
    ) -> Result<T, Failure> {
        let mut client = self.client.clone();
        let patience = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let mut redirects = 0;
        loop {
            let connection = client.get_multiplexed_async_connection_with_config(&patience).await;
            let answer = question(&mut connection.map_err(|error| not_opened(no_connection(&error)))?).await;
            match answer.as_ref().err().and_then(|error| elsewhere(&client, error)) {
                Some(there) if redirects < REDIRECTS => {
                    client = there;
                    redirects += 1;
                }
                _ => return answer.map_err(failed),
            }
        }
    }
}

/// The node that an error points to.
fn elsewhere(client: &Client, error: &Error) -> Option<Client> {
    let (address, _) = error.source()?.downcast_ref::<RedisError>()?.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let (info, port) = (client.get_connection_info(), port.parse().ok()?);
    // Without a host it is the one that was asked.
    let named = |asked: &str| if host.is_empty() { asked.to_owned() } else { host.to_owned() };
    let address = match info.addr() {
        ConnectionAddr::Tcp(asked, _) => ConnectionAddr::Tcp(named(asked), port),
        ConnectionAddr::TcpTls { host: asked, insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: named(asked),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => return None,
    };
    Client::open(info.clone().set_addr(address)).ok()
}

fn no_connection(error: &RedisError) -> Error {
    let kind = match (error.kind(), error.code()) {
        (redis::ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => {
            ErrorKind::Denied
        }
        (redis::ErrorKind::InvalidClientConfig, _) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot connect: {}", words(error)))
}

/// What the driver says, without the kind before it.
fn words(error: &RedisError) -> String {
    error.detail().map_or_else(|| error.to_string(), str::to_owned)
}
