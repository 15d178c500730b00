//! Keys of Redis: fenced set, hash set and delete, each in one round trip.
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
//! In a key beside the data, `fence:v1:{TAG}:RESOURCE`, where the tag is the data key's own: what stands in its first
//! braces, or all of it if it has none. So both are in one slot of a cluster, and one script may touch them. It follows
//! that there is a mark for each resource *and tag*: several keys of one resource share a mark only if they share a tag, as
//! the two above do. Otherwise each is fenced for itself.
//!
//! # What it cannot promise
//!
//! Mark and data live and die together: a failover that forgets the one forgets the other, and then a token may be admitted
//! that was stale before. And only those who use these scripts are fenced; a plain `SET` is not.

mod error;
mod script;

use std::time::Duration;

use ::redis::{Cmd, ConnectionLike, RedisResult, ToRedisArgs, Value, aio};
use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Pass, Result};

use crate::{
    observe,
    rule::{Admission, Refusal},
};
use error::interpret;
use script::Script;

/// As it stands in metrics and logs.
pub const DOWNSTREAM: &str = "redis";

/// How long a mark is kept after it was last shown, unless you say otherwise.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Writes that are refused to whoever comes too late.
#[derive(Clone, Debug)]
pub struct Fence {
    kept: Option<Duration>,
}

impl Default for Fence {
    fn default() -> Fence {
        Fence::new()
    }
}

impl Fence {
    /// A fence whose marks are kept for 30 days after they were last shown.
    pub fn new() -> Fence {
        Fence { kept: Some(KEPT) }
    }

    /// Keeps marks that long; for ever if `None`. Whoever was stopped for longer than this is not recognised as late.
    #[must_use]
    pub fn keep_marks(self, kept: Option<Duration>) -> Fence {
        Fence { kept }
    }

    /// Sets a string. It stays until it is deleted.
    ///
    /// # Errors
    /// `Invalid` if the key cannot share a slot with its mark: it has a `}` and no tag in braces, or is empty.
    pub fn set(&self, pass: &Pass, key: impl AsRef<[u8]>, value: impl ToRedisArgs) -> Result<Call> {
        Ok(self.call(&script::SET, pass, key.as_ref())?.with(one(&value)?).with("0"))
    }

    /// Sets a string that ends by itself.
    ///
    /// # Errors
    /// As [`set`](Fence::set); `Invalid` for less than a millisecond.
    pub fn set_expiring(
        &self,
        pass: &Pass,
        key: impl AsRef<[u8]>,
        value: impl ToRedisArgs,
        after: Duration,
    ) -> Result<Call> {
        let after = Some(millis(after)?.to_string());
        Ok(self.call(&script::SET, pass, key.as_ref())?.with(one(&value)?).with(after))
    }

    /// Sets fields of a hash, all of them or none.
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
            call = call.with(one(field)?).with(one(value)?);
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

    /// Raises the mark that this key has, and nothing more: *before the first read* of a read-modify-write.
    ///
    /// # Errors
    /// As [`set`](Fence::set).
    pub fn enter(&self, pass: &Pass, key: impl AsRef<[u8]>) -> Result<Call> {
        self.call(&script::ENTER, pass, key.as_ref())
    }

    fn call(&self, script: &'static Script, pass: &Pass, key: &[u8]) -> Result<Call> {
        let mark = mark_key(pass, key)?;
        let kept = self.kept.map(millis).transpose()?.unwrap_or(0);
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(script.digest()).arg(2).arg(mark).arg(key);
        command
            .arg(pass.token.get())
            .arg(pass.owner.map(|owner| owner.to_string()).unwrap_or_default())
            .arg(kept);
        Ok(Call { command, script, pass: pass.clone() })
    }
}

/// The key of the mark, in the slot of the data.
fn mark_key(pass: &Pass, key: &[u8]) -> Result<Vec<u8>> {
    let tag = tag(key).ok_or_else(|| {
        let message =
            "the key cannot share a slot with its mark: put a part of it in braces, as in report:{42}";
        Error::new(ErrorKind::Invalid, message).on(&pass.resource)
    })?;
    Ok([b"fence:v1:{", tag, b"}:", pass.resource.key().as_bytes()].concat())
}

/// What a cluster hashes of the key, if that can stand in braces.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&b| b == b'{');
    let inner = open.and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|&b| b == b'}').map(|close| &rest[..close])
    });
    match inner {
        Some(inner) if !inner.is_empty() => Some(inner),
        _ => (!key.is_empty() && !key.contains(&b'}')).then_some(key),
    }
}

fn one(value: &impl ToRedisArgs) -> Result<Vec<u8>> {
    let mut parts = value.to_redis_args();
    match (parts.pop(), parts.is_empty()) {
        (Some(part), true) => Ok(part),
        _ => Err(Error::new(ErrorKind::Invalid, "a value is one string, not a list")),
    }
}

fn millis(duration: Duration) -> Result<u64> {
    let millis = u64::try_from(duration.as_millis()).ok().filter(|millis| (1..1 << 53).contains(millis));
    millis.ok_or_else(|| Error::new(ErrorKind::Invalid, "a time to live is a millisecond at the least"))
}

/// A fenced write, to be run on a connection. It may be run again: the same owner is admitted again.
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

    /// Runs it, in one round trip; in two the first time that the server sees the script. Any asynchronous connection of
    /// the crate `redis` will do: multiplexed, managed, of a cluster.
    ///
    /// # Cancel safety
    /// Dropped part-way, it may have been done, or may yet be.
    ///
    /// # Errors
    /// `StaleToken`, counted and logged, and nothing was changed; `Unavailable` with its effect.
    pub async fn run(&self, connection: &mut impl aio::ConnectionLike) -> Result<Admission> {
        let mut answer: RedisResult<Value> = self.command.query_async(connection).await;
        if answer.as_ref().is_err_and(is_unknown_script) {
            answer = self.script.spelled_out(&self.command).query_async(connection).await;
        }
        self.read(answer)
    }

    /// The same on a blocking connection.
    ///
    /// # Errors
    /// As [`run`](Call::run).
    pub fn run_blocking(&self, connection: &mut dyn ConnectionLike) -> Result<Admission> {
        let mut answer: RedisResult<Value> = self.command.query(connection);
        if answer.as_ref().is_err_and(is_unknown_script) {
            answer = self.script.spelled_out(&self.command).query(connection);
        }
        self.read(answer)
    }

    fn read(&self, answer: RedisResult<Value>) -> Result<Admission> {
        let words: RedisResult<Vec<String>> = answer.and_then(|value| Ok(::redis::from_redis_value(value)?));
        let words = words.map_err(|error| interpret(error).on(&self.pass.resource))?;
        let presented = self.pass.token;
        let number = || words.get(1).and_then(|word| word.parse::<FencingToken>().ok());
        let refusal = match (words.first().map(String::as_str), number()) {
            (Some("raised"), _) => return Ok(Admission::Raised),
            (Some("again"), _) => return Ok(Admission::Again),
            (Some("stale"), Some(highest)) => Refusal::Stale { presented, highest },
            (Some("former"), Some(ceiling)) => Refusal::Former { presented, ceiling },
            _ => {
                let message = "the mark holds something that leasehold did not write";
                return Err(Error::new(ErrorKind::Corrupt, message)
                    .with_effect(Effect::Unknown)
                    .on(&self.pass.resource));
            }
        };
        Err(observe::refused(&self.pass, refusal, DOWNSTREAM))
    }
}

fn is_unknown_script(error: &::redis::RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_has_the_tag_of_the_data() {
        let pass = Pass::new("acme:report/4 2".parse().unwrap(), FencingToken::new(1).unwrap());
        let key = |data: &str| mark_key(&pass, data.as_bytes()).map(|key| String::from_utf8(key).unwrap());
        assert_eq!(key("report:42").unwrap(), "fence:v1:{report:42}:acme:report/4%202");
        assert_eq!(key("report:{42}:body").unwrap(), "fence:v1:{42}:acme:report/4%202");
        assert_eq!(key("a{b").unwrap(), "fence:v1:{a{b}:acme:report/4%202");
        assert_eq!(key("{a}{b}").unwrap(), "fence:v1:{a}:acme:report/4%202");
        for data in ["", "a}b", "a{}b", "{}{b}"] {
            assert_eq!(key(data).unwrap_err().kind(), ErrorKind::Invalid, "{data:?}");
        }
    }
}
