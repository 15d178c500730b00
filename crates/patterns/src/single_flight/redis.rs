//! Values in Redis.

use std::{fmt, time::Duration};

use ::redis::{AsyncCommands as _, aio::ConnectionLike};
use leasehold::{Effect, Error, ErrorKind, Pass, Resource, Result, async_trait};
use leasehold_fence::redis::Fence;

use super::cache::{Cache, Entry};

/// Values in Redis, through a connection of yours that can be cloned: a `ConnectionManager`, or that of a cluster. A plain
/// `MultiplexedConnection` will do, but it is not made anew when it is lost.
#[derive(Clone)]
pub struct RedisCache<C> {
    connection: C,
    fence: Fence,
}

impl<C> RedisCache<C> {
    /// A key for each value, `flight:v1:{flight/KEY}`, and its mark beside it, which stays for a day.
    pub fn new(connection: C) -> RedisCache<C> {
        RedisCache { connection, fence: Fence::new().keep_marks(Some(Duration::from_secs(86_400))) }
    }
}

impl<C> fmt::Debug for RedisCache<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCache").finish_non_exhaustive()
    }
}

/// The name of a resource is encoded so that no part of it is a brace.
fn name(resource: &Resource) -> String {
    format!("flight:v1:{{{}}}", resource.key())
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync> Cache for RedisCache<C> {
    async fn get(&self, resource: &Resource) -> Result<Option<Entry>> {
        let found: Option<Vec<u8>> = self.connection.clone().get(name(resource)).await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the cache cannot be read: {error}"))
                .with_effect(Effect::None)
        })?;
        found.as_deref().map(Entry::read).transpose()
    }

    async fn put(&self, entry: &Entry, keep: Duration, pass: &Pass) -> Result<()> {
        let call = self.fence.set_expiring(pass, name(&pass.resource), entry.write(), keep)?;
        call.run(&mut self.connection.clone()).await.map(drop)
    }
}
