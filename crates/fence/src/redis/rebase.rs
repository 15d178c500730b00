//! Moving a resource to a backend that counts elsewhere.

use ::redis::{Cmd, RedisResult, Value, aio};
use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Resource, Result};

use super::{Fence, error::interpret, is_unknown_script, mark_key, script};
use crate::{Rebase, rule::Mark, tables};

impl Fence {
    /// Moves the mark that this resource has beside this key: see [`rule::rebase`](crate::rule::rebase). Recorded in the
    /// same step, in the list `fence:v1:{TAG}:RESOURCE:rebased`. Answers the mark as it was and as it is.
    ///
    /// # Cancel safety
    /// Dropped part-way, it may have been done; done again, it changes nothing more.
    ///
    /// # Errors
    /// `Invalid` as there, or if there is no mark: then there is nothing to move.
    pub async fn rebase(
        &self,
        connection: &mut impl aio::ConnectionLike,
        resource: &Resource,
        key: impl AsRef<[u8]>,
        rebase: &Rebase,
    ) -> Result<(Mark, Mark)> {
        let mark = mark_key(resource, key.as_ref())?;
        let record = [mark.as_slice(), b":rebased"].concat();
        let ceiling = rebase.ceiling.map(|ceiling| ceiling.to_string()).unwrap_or_default();
        let mut call = Cmd::new();
        call.arg("EVALSHA").arg(script::REBASE.digest()).arg(2).arg(mark).arg(record);
        call.arg(rebase.to.get()).arg(ceiling).arg(&rebase.by).arg(&rebase.why);
        let mut answer: RedisResult<Value> = call.query_async(connection).await;
        if answer.as_ref().is_err_and(is_unknown_script) {
            answer = script::REBASE.spelled_out(&call).query_async(connection).await;
        }
        let words: RedisResult<Vec<String>> = answer.and_then(|value| Ok(::redis::from_redis_value(value)?));
        read(&words.map_err(|error| interpret(error).on(resource))?, resource, rebase)
    }
}

fn read(words: &[String], resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark)> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message).on(resource));
    let to = rebase.to;
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["nothing"] => Err(tables::unmarked(resource)),
        ["up", old] => invalid(format!("{to} is not below {old}: moving up needs no ceiling")),
        ["outside", old] => {
            invalid(format!("a ceiling lies above {to}, the new mark, and not above {old}, the old one"))
        }
        ["moved", was, before, now, after] => Ok((mark(was, before)?, mark(now, after)?)),
        _ => Err(strange()),
    }
}

fn mark(token: &str, ceiling: &str) -> Result<Mark> {
    let number = |text: &str| text.parse::<FencingToken>().map_err(|_| strange());
    let ceiling = if ceiling.is_empty() { None } else { Some(number(ceiling)?) };
    Ok(Mark { highest: number(token)?, owner: None, ceiling })
}

fn strange() -> Error {
    let message = "the mark holds something that leasehold did not write";
    Error::new(ErrorKind::Corrupt, message).with_effect(Effect::Unknown)
}
