//! Keys in Redis.

use std::{fmt, sync::LazyLock, time::Duration};

use ::redis::{Script, Value, aio::ConnectionLike, from_redis_value};
use leasehold::{Effect, Error, ErrorKind, Result, async_trait};

use super::{Begun, Fingerprint, Keys, Run, Terms, check_answer, check_key};
use crate::numbers::{millis, token};

/// Keys in Redis, through a connection of yours that can be cloned: a `ConnectionManager`, or that of a cluster. A plain
/// `MultiplexedConnection` will do, but it is not made anew when it is lost.
///
/// A failover can forget a key, and then the request runs again: where that does harm, keep keys in a database.
#[derive(Clone)]
pub struct RedisKeys<C> {
    connection: C,
}

static BEGIN: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../scripts/key_begin.lua")));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../scripts/key_renew.lua")));
static END: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../scripts/key_end.lua")));

/// How long a request that was never ended is remembered after its time, for whoever repeats it.
const OUTLIVES: Duration = Duration::from_secs(86_400);

impl<C> RedisKeys<C> {
    /// A hash for each key, `idempotency:v1:KEY`, which ends by itself.
    pub fn new(connection: C) -> RedisKeys<C> {
        RedisKeys { connection }
    }
}

impl<C> fmt::Debug for RedisKeys<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisKeys").finish_non_exhaustive()
    }
}

fn name(key: &str) -> String {
    format!("idempotency:v1:{key}")
}

#[async_trait]
impl<C: ConnectionLike + Clone + Send + Sync> Keys for RedisKeys<C> {
    async fn begin(&self, key: &str, payload: &Fingerprint, terms: &Terms) -> Result<Begun> {
        check_key(key)?;
        let mut call = BEGIN.key(name(key));
        call.arg(payload.as_bytes()).arg(millis(terms.hold)).arg(millis(OUTLIVES));
        let reply: Vec<Value> = call.invoke_async(&mut self.connection.clone()).await.map_err(interpret)?;
        read(reply, key)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "the script answered something else"))?
    }

    async fn renew(&self, run: &Run, terms: &Terms) -> Result<bool> {
        let mut call = RENEW.key(name(&run.key));
        call.arg(run.token.get()).arg(millis(terms.hold)).arg(millis(OUTLIVES));
        call.invoke_async(&mut self.connection.clone()).await.map_err(interpret)
    }

    async fn finish(&self, run: &Run, answer: &[u8], terms: &Terms) -> Result<bool> {
        check_answer(answer)?;
        let mut call = END.key(name(&run.key));
        call.arg(run.token.get()).arg("finish").arg(millis(terms.keep).max(1)).arg(answer);
        call.invoke_async(&mut self.connection.clone()).await.map_err(interpret)
    }

    async fn abandon(&self, run: &Run) -> Result<bool> {
        let mut call = END.key(name(&run.key));
        call.arg(run.token.get()).arg("abandon").arg(millis(OUTLIVES)).arg("");
        call.invoke_async(&mut self.connection.clone()).await.map_err(interpret)
    }
}

fn read(reply: Vec<Value>, key: &str) -> Option<Result<Begun>> {
    let mut reply = reply.into_iter();
    let what: String = from_redis_value(reply.next()?).ok()?;
    Some(match what.as_str() {
        "other" => Ok(Begun::OtherPayload),
        "done" => Ok(Begun::Done(from_redis_value(reply.next()?).ok()?)),
        "running" => {
            Ok(Begun::Running { again_in: Duration::from_millis(from_redis_value(reply.next()?).ok()?) })
        }
        "run" => {
            let number: i64 = from_redis_value(reply.next()?).ok()?;
            token(number).map(|token| Begun::Run(Run { key: key.to_owned(), token }))
        }
        _ => return None,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn interpret(error: ::redis::RedisError) -> Error {
    // A refusal by the server comes before the script has written; anything else may have been executed.
    let refused = error.code().is_some();
    let effect = if refused { Effect::None } else { Effect::Unknown };
    Error::new(ErrorKind::Unavailable, format!("the keys cannot be used: {error}")).with_effect(effect)
}
