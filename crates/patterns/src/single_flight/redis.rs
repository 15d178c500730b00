//! Values in Redis.

use std::{fmt, time::Duration};

use ::redis::{AsyncCommands as _, aio::ConnectionLike};
use leasehold::{Effect, Error, ErrorKind, Pass, Resource, Result, async_trait};
use leasehold_fence::redis::Fence;

use super::cache::{Cache, CacheEntry};

/// Values in Redis, through a connection of yours that can be cloned: a `ConnectionManager`, or a cluster
/// connection. A `MultiplexedConnection` works too, but it does not reconnect when it is lost.
#[derive(Clone)]
pub struct RedisCache<C> {
    connection: C,
    fence: Fence,
}

/// How long the last token of a value is kept: much longer than any computation.
const TOKEN_KEPT_FOR: Duration = Duration::from_secs(86_400);

impl<C> RedisCache<C> {
    /// Stores each value in the key `flight:v1:{flight/KEY}`, and its last token in a key beside it, which
    /// stays for a day.
    pub fn new(connection: C) -> RedisCache<C> {
        RedisCache { connection, fence: Fence::new().keep_marks(Some(TOKEN_KEPT_FOR)) }
    }
}

impl<C> fmt::Debug for RedisCache<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCache").finish_non_exhaustive()
    }
}

/// The Redis key of a value. A resource key contains no brace, so the hash tag is the whole resource key.
fn name(resource: &Resource) -> String {
    format!("flight:v1:{{{}}}", resource.key())
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync> Cache for RedisCache<C> {
    async fn get(&self, resource: &Resource) -> Result<Option<CacheEntry>> {
        let found: Option<Vec<u8>> = self.connection.clone().get(name(resource)).await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("cannot read the key {}: {error}", name(resource)))
                .with_effect(Effect::None)
        })?;
        found.as_deref().map(CacheEntry::read).transpose()
    }

    async fn put(&self, entry: &CacheEntry, keep: Duration, pass: &Pass) -> Result<()> {
        let call = self.fence.set_expiring(pass, name(&pass.resource), entry.write(), keep)?;
        call.run(&mut self.connection.clone()).await.map(drop)
    }
}
