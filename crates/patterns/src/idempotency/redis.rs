//! Keys in Redis.

use std::{fmt, sync::LazyLock, time::Duration};

use ::redis::{Script, Value, aio::ConnectionLike, from_redis_value};
use leasehold::{Effect, Error, ErrorKind, Result, async_trait};

use super::{BeginOutcome, Fingerprint, KeyClaim, KeyLifetimes, Keys, check_key, check_response};
use crate::numbers::{millis, read_token};

/// Keys in Redis, through a connection of yours that can be cloned: a `ConnectionManager`, or a cluster
/// connection. A `MultiplexedConnection` works too, but it does not reconnect when it is lost.
///
/// A failover can lose a key, and then the request runs again. If that does harm, keep the keys in a
/// database.
#[derive(Clone)]
pub struct RedisKeys<C> {
    connection: C,
}

static BEGIN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../scripts/key_begin.lua")));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../scripts/key_renew.lua")));
static END: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../scripts/key_end.lua")));

/// How long a claim that has run out is stored, so that a repetition with another payload is still refused.
const KEPT_AFTER_CLAIM: Duration = Duration::from_secs(86_400);

impl<C> RedisKeys<C> {
    /// Stores each key in the hash `idempotency:v1:KEY`, which has a ttl.
    pub fn new(connection: C) -> RedisKeys<C> {
        RedisKeys { connection }
    }
}

impl<C> fmt::Debug for RedisKeys<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisKeys").finish_non_exhaustive()
    }
}

/// The Redis key of an idempotency key.
fn name(key: &str) -> String {
    format!("idempotency:v1:{key}")
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync> Keys for RedisKeys<C> {
    async fn begin(
        &self,
        key: &str,
        payload: &Fingerprint,
        lifetimes: &KeyLifetimes,
    ) -> Result<BeginOutcome> {
        check_key(key)?;
        let mut call = BEGIN.key(name(key));
        call.arg(payload.as_bytes()).arg(millis(lifetimes.hold)).arg(millis(KEPT_AFTER_CLAIM));
        let reply: Vec<Value> = call.invoke_async(&mut self.connection.clone()).await.map_err(interpret)?;
        read(reply, key).ok_or_else(|| {
            let message = format!("unexpected reply of the script key_begin.lua for the key {}", name(key));
            Error::new(ErrorKind::Corrupt, message)
        })?
    }

    async fn renew(&self, claim: &KeyClaim, lifetimes: &KeyLifetimes) -> Result<bool> {
        let mut call = RENEW.key(name(&claim.key));
        call.arg(claim.token.get()).arg(millis(lifetimes.hold)).arg(millis(KEPT_AFTER_CLAIM));
        call.invoke_async(&mut self.connection.clone()).await.map_err(interpret)
    }

    async fn finish(&self, claim: &KeyClaim, response: &[u8], lifetimes: &KeyLifetimes) -> Result<bool> {
        check_response(response)?;
        let mut call = END.key(name(&claim.key));
        call.arg(claim.token.get()).arg("finish").arg(millis(lifetimes.keep).max(1)).arg(response);
        call.invoke_async(&mut self.connection.clone()).await.map_err(interpret)
    }

    async fn abandon(&self, claim: &KeyClaim) -> Result<bool> {
        let mut call = END.key(name(&claim.key));
        call.arg(claim.token.get()).arg("abandon").arg(millis(KEPT_AFTER_CLAIM)).arg("");
        call.invoke_async(&mut self.connection.clone()).await.map_err(interpret)
    }
}

/// Reads the reply of `key_begin.lua`; `None` if it is not one.
fn read(reply: Vec<Value>, key: &str) -> Option<Result<BeginOutcome>> {
    let mut reply = reply.into_iter();
    let what: String = from_redis_value(reply.next()?).ok()?;
    Some(match what.as_str() {
        "other" => Ok(BeginOutcome::OtherPayload),
        "done" => Ok(BeginOutcome::Done(from_redis_value(reply.next()?).ok()?)),
        "running" => Ok(BeginOutcome::Running {
            retry_in: Duration::from_millis(from_redis_value(reply.next()?).ok()?),
        }),
        "run" => {
            let number: i64 = from_redis_value(reply.next()?).ok()?;
            read_token(number).map(|token| BeginOutcome::Claimed(KeyClaim { key: key.to_owned(), token }))
        }
        _ => return None,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn interpret(error: ::redis::RedisError) -> Error {
    // The server refuses a script before it has written anything. After any other error it may have run.
    let is_refused = error.code().is_some();
    let effect = if is_refused { Effect::None } else { Effect::Unknown };
    Error::new(ErrorKind::Unavailable, format!("cannot use the idempotency keys in Redis: {error}"))
        .with_effect(effect)
}
