//! What is remembered, and moving a resource to a backend that counts elsewhere.

use std::time::{Duration, UNIX_EPOCH};

use ::redis::{Cmd, RedisResult, Value, aio};
use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Resource, Result};

use super::{Fence, error::interpret, is_unknown_script, mark_key, script};
use crate::{
    Rebase, Rebased,
    rule::{self, Mark},
    tables,
};

impl Fence {
    /// What is remembered of this resource beside this key.
    ///
    /// # Errors
    /// `Corrupt` if it is not ours; `Invalid` as [`set`](Fence::set); whatever the server says.
    pub async fn mark(
        &self,
        connection: &mut impl aio::ConnectionLike,
        resource: &Resource,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Mark>> {
        let mut get = Cmd::new();
        get.arg("HMGET").arg(mark_key(resource, key.as_ref())?).arg(&["token", "owner", "ceiling"]);
        let fields: RedisResult<(Option<String>, Option<String>, Option<String>)> =
            get.query_async(connection).await;
        let (token, owner, ceiling) = fields.map_err(|error| reading(error).on(resource))?;
        let Some(token) = token else { return Ok(None) };
        let mark = mark(&token, &ceiling.unwrap_or_default())?;
        Ok(Some(Mark { owner: owner.and_then(|owner| owner.parse().ok()), ..mark }))
    }

    /// The rebases of this resource beside this key, newest first: the last hundred.
    ///
    /// # Errors
    /// As [`mark`](Fence::mark).
    pub async fn rebases(
        &self,
        connection: &mut impl aio::ConnectionLike,
        resource: &Resource,
        key: impl AsRef<[u8]>,
    ) -> Result<Vec<Rebased>> {
        let mut get = Cmd::new();
        get.arg("LRANGE").arg(record_key(&mark_key(resource, key.as_ref())?)).arg(0).arg(-1);
        let records: RedisResult<Vec<String>> = get.query_async(connection).await;
        let records = records.map_err(|error| reading(error).on(resource))?;
        records.iter().map(|record| rebased(record).ok_or_else(strange)).collect()
    }

    /// Moves the mark that this resource has beside this key: see [`rule::rebase`]. Recorded in the same step, in
    /// the list `fence:v1:{TAG}:RESOURCE:rebased`. Answers the mark as it was and as it is.
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
        let record = record_key(&mark);
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

fn record_key(mark: &[u8]) -> Vec<u8> {
    [mark, b":rebased"].concat()
}

/// Nothing was asked for that could have had an effect.
fn reading(error: ::redis::RedisError) -> Error {
    match error.code() {
        Some("WRONGTYPE") => strange(),
        _ => interpret(error),
    }
    .with_effect(Effect::None)
}

fn rebased(record: &str) -> Option<Rebased> {
    let record: serde_json::Value = serde_json::from_str(record).ok()?;
    let text = |name: &str| record[name].as_str();
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(text("at")?.parse().ok()?))?;
    Some(Rebased {
        at: humantime::format_rfc3339_seconds(at).to_string(),
        by: text("by")?.to_owned(),
        why: text("why")?.to_owned(),
        was: text("was")?.parse().ok()?,
        now: text("now")?.parse().ok()?,
        ceiling: text("ceiling")?.parse().ok(),
    })
}

fn read(words: &[String], resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark)> {
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["nothing"] => Err(tables::unmarked(resource)),
        ["refused", token, standing] => {
            let mark = mark(token, standing)?;
            let why = rule::rebase(&mark, rebase.to, rebase.ceiling).err().unwrap_or_else(strange);
            Err(why.on(resource))
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
