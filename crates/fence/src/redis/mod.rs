//! The fence for keys of Redis: set, hash set and delete, each in one round trip.
//!
//! ```no_run
//! # use leasehold_fence::{Pass, redis::Fence};
//! # async fn example(connection: &mut redis::aio::MultiplexedConnection, pass: &Pass) -> Result<(), leasehold_core::Error> {
//! let fence = Fence::new();
//! fence.set(pass, "report:{42}:body", "three pages")?.run(connection).await?;
//! fence.hash_set(pass, "report:{42}", &[("state", "done"), ("pages", "3")])?.run(connection).await?;
//! # Ok(()) }
//! ```
//!
//! # Where the mark is
//!
//! In the key `fence:v1:{TAG}:RESOURCE`, where `TAG` is the hash tag of the data key: the text in its first braces, or the
//! whole key if it has no braces. So both keys are in the same slot of a cluster, and one script can use both. It follows
//! that there is one mark for each resource *and tag*: several keys of one resource share a mark only if they share a tag, as
//! the two keys above do. Otherwise each key has a mark of its own.
//!
//! # What it cannot promise
//!
//! A failover can lose the last writes of Redis, marks as well as data. Then a token may be admitted that was stale before.
//! And only writes through these scripts are fenced; a plain `SET` is not.

mod error;
mod rebase;
mod script;

use std::time::Duration;

use ::redis::{Cmd, ConnectionLike, RedisResult, ToRedisArgs, Value, aio};
use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Pass, Resource, Result};

use crate::{
    observe,
    rule::{Admission, Refusal},
};
use error::interpret;
use script::Script;
pub use script::text;

/// The name of this downstream in metrics and logs.
pub const DOWNSTREAM: &str = "redis";

/// How long a mark is kept by default after its last use: 30 days.
const MARK_TTL_DEFAULT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Makes writes that Redis refuses if their token is stale.
#[derive(Clone, Debug)]
pub struct Fence {
    mark_ttl: Option<Duration>,
}

impl Default for Fence {
    fn default() -> Fence {
        Fence::new()
    }
}

impl Fence {
    /// A fence whose marks are kept for 30 days after their last use.
    pub fn new() -> Fence {
        Fence { mark_ttl: Some(MARK_TTL_DEFAULT) }
    }

    /// How long a mark is kept after its last use; for ever if `None`. A holder that was stopped for longer than this is not
    /// refused.
    #[must_use]
    pub fn keep_marks(self, ttl: Option<Duration>) -> Fence {
        Fence { mark_ttl: ttl }
    }

    /// Sets a string without expiry.
    ///
    /// # Errors
    /// `Invalid` if the key cannot share a slot with its mark: it is empty, or has a `}` and no tag in braces.
    pub fn set(&self, pass: &Pass, key: impl AsRef<[u8]>, value: impl ToRedisArgs) -> Result<Call> {
        Ok(self.call(&script::SET, pass, key.as_ref())?.with(single_argument(&value)?).with("0"))
    }

    /// Sets a string that expires.
    ///
    /// # Errors
    /// As [`set`](Fence::set); also `Invalid` for less than a millisecond.
    pub fn set_expiring(
        &self,
        pass: &Pass,
        key: impl AsRef<[u8]>,
        value: impl ToRedisArgs,
        after: Duration,
    ) -> Result<Call> {
        let after = Some(millis(after)?.to_string());
        Ok(self.call(&script::SET, pass, key.as_ref())?.with(single_argument(&value)?).with(after))
    }

    /// Sets fields of a hash: all of them or none.
    ///
    /// # Errors
    /// As [`set`](Fence::set).
    pub fn hash_set<F: ToRedisArgs, V: ToRedisArgs>(
        &self,
        pass: &Pass,
        key: impl AsRef<[u8]>,
        fields: &[(F, V)],
    ) -> Result<Call> {
        let mut call = self.call(&script::HASH_SET, pass, key.as_ref())?;
        for (field, value) in fields {
            call = call.with(single_argument(field)?).with(single_argument(value)?);
        }
        Ok(call)
    }

    /// Deletes a key. Its mark stays.
    ///
    /// # Errors
    /// As [`set`](Fence::set).
    pub fn delete(&self, pass: &Pass, key: impl AsRef<[u8]>) -> Result<Call> {
        self.call(&script::DELETE, pass, key.as_ref())
    }

    /// Only raises the mark of this key. Use it *before the first read* of a read-modify-write.
    ///
    /// # Errors
    /// As [`set`](Fence::set).
    pub fn enter(&self, pass: &Pass, key: impl AsRef<[u8]>) -> Result<Call> {
        self.call(&script::ENTER, pass, key.as_ref())
    }

    fn call(&self, script: &'static Script, pass: &Pass, key: &[u8]) -> Result<Call> {
        let mark = mark_key(&pass.resource, key)?;
        // 0 means that the mark does not expire: see `admit.lua`.
        let mark_ttl = self.mark_ttl.map(millis).transpose()?.unwrap_or(0);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(script.digest()).arg(2).arg(mark).arg(key);
        command
            .arg(pass.token.get())
            .arg(pass.owner.map(|owner| owner.to_string()).unwrap_or_default())
            .arg(mark_ttl);
        Ok(Call { command, script, pass: pass.clone() })
    }
}

/// The key of the mark, in the same slot as the data key.
fn mark_key(resource: &Resource, key: &[u8]) -> Result<Vec<u8>> {
    let tag = hash_tag(key).ok_or_else(|| {
        let message =
            "the key cannot share a cluster slot with its mark: put a part of it in braces, as in report:{42}";
        Error::new(ErrorKind::Invalid, message).on(resource)
    })?;
    Ok([b"fence:v1:{", tag, b"}:", resource.key().as_bytes()].concat())
}

/// The part of the key that a cluster hashes; `None` if it cannot be written in braces.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&b| b == b'{');
    let inner = open.and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|&b| b == b'}').map(|close| &rest[..close])
    });
    match inner {
        Some(inner) if !inner.is_empty() => Some(inner),
        // Redis hashes the whole key then. It can be a tag unless it has a `}`, which would end the tag too early.
        _ => (!key.is_empty() && !key.contains(&b'}')).then_some(key),
    }
}

/// The value as one argument.
fn single_argument(value: &impl ToRedisArgs) -> Result<Vec<u8>> {
    let mut parts = value.to_redis_args();
    match (parts.pop(), parts.is_empty()) {
        (Some(part), true) => Ok(part),
        _ => Err(Error::new(ErrorKind::Invalid, "a value must be one string, not a list")),
    }
}

fn millis(duration: Duration) -> Result<u64> {
    let millis = u64::try_from(duration.as_millis()).ok().filter(|millis| (1..1 << 53).contains(millis));
    millis.ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            "a time to live must be at least a millisecond and below 2^53 milliseconds",
        )
    })
}

/// A fenced write, to be run on a connection. It can be run again if the pass has an owner: the same owner is admitted again.
#[derive(Clone, Debug)]
#[must_use = "nothing happens until it is run"]
pub struct Call {
    command: Cmd,
    script: &'static Script,
    pass: Pass,
}

impl Call {
    fn with(mut self, argument: impl ToRedisArgs) -> Call {
        self.command.arg(argument);
        self
    }

    /// Runs it in one round trip, or in two if the server does not know the script yet. Takes any asynchronous connection of
    /// the crate `redis`: multiplexed, managed, or of a cluster.
    ///
    /// # Cancel safety
    /// The write may have been done, or may still be done.
    ///
    /// # Errors
    /// `StaleToken`, counted and logged: nothing was changed. `Unavailable` with the effect that it may have had.
    pub async fn run(&self, connection: &mut impl aio::ConnectionLike) -> Result<Admission> {
        let mut reply: RedisResult<Value> = self.command.query_async(connection).await;
        if reply.as_ref().is_err_and(is_unknown_script) {
            reply = self.script.eval_instead(&self.command).query_async(connection).await;
        }
        self.read_reply(reply)
    }

    /// Runs it on a blocking connection.
    ///
    /// # Errors
    /// As [`run`](Call::run).
    pub fn run_blocking(&self, connection: &mut dyn ConnectionLike) -> Result<Admission> {
        let mut reply: RedisResult<Value> = self.command.query(connection);
        if reply.as_ref().is_err_and(is_unknown_script) {
            reply = self.script.eval_instead(&self.command).query(connection);
        }
        self.read_reply(reply)
    }

    fn read_reply(&self, reply: RedisResult<Value>) -> Result<Admission> {
        let words: RedisResult<Vec<String>> = reply.and_then(|value| Ok(::redis::from_redis_value(value)?));
        let words = words.map_err(|error| interpret(error).on(&self.pass.resource))?;
        let presented = self.pass.token;
        let number = || words.get(1).and_then(|word| word.parse::<FencingToken>().ok());
        let refusal = match (words.first().map(String::as_str), number()) {
            (Some("raised"), _) => return Ok(Admission::Raised),
            (Some("again"), _) => return Ok(Admission::Again),
            (Some("stale"), Some(highest)) => Refusal::Stale { presented, highest },
            (Some("former"), Some(ceiling)) => Refusal::Former { presented, ceiling },
            _ => return Err(corrupt_mark().on(&self.pass.resource)),
        };
        Err(observe::refused(&self.pass, refusal, DOWNSTREAM))
    }
}

/// The mark is a key of another type, or has fields that are not tokens.
fn corrupt_mark() -> Error {
    let message = "the key of the mark is corrupt: leasehold did not write its value; delete the key if no old holder is left";
    Error::new(ErrorKind::Corrupt, message).with_effect(Effect::Unknown)
}

fn is_unknown_script(error: &::redis::RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_has_the_hash_tag_of_the_data_key() {
        let resource: Resource = "acme:report/4 2".parse().unwrap();
        let key =
            |data: &str| mark_key(&resource, data.as_bytes()).map(|key| String::from_utf8(key).unwrap());
        assert_eq!(key("report:42").unwrap(), "fence:v1:{report:42}:acme:report/4%202");
        assert_eq!(key("report:{42}:body").unwrap(), "fence:v1:{42}:acme:report/4%202");
        assert_eq!(key("a{b").unwrap(), "fence:v1:{a{b}:acme:report/4%202");
        assert_eq!(key("{a}{b}").unwrap(), "fence:v1:{a}:acme:report/4%202");
        for data in ["", "a}b", "a{}b", "{}{b}"] {
            assert_eq!(key(data).unwrap_err().kind(), ErrorKind::Invalid, "{data:?}");
        }
    }
}
