//! Reads marks, and moves them to the numbers of another backend. ADR 0028.

use std::time::{Duration, UNIX_EPOCH};

use ::redis::{Cmd, RedisResult, Value, aio};
use leasehold_core::{Effect, Error, FencingToken, Resource, Result};

use super::{Fence, corrupt_mark, error::interpret, is_unknown_script, mark_key, script};
use crate::{
    Rebase, Rebased,
    rule::{self, Mark},
    tables,
};

impl Fence {
    /// The mark of this resource for this key; `None` if no token was admitted.
    ///
    /// # Errors
    /// `Corrupt` if leasehold did not write the mark; `Invalid` as [`set`](Fence::set); errors of Redis.
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
        let (token, owner, ceiling) = fields.map_err(|error| read_failed(error).on(resource))?;
        let Some(token) = token else { return Ok(None) };
        let mark = mark(&token, &ceiling.unwrap_or_default())?;
        Ok(Some(Mark { owner: owner.and_then(|owner| owner.parse().ok()), ..mark }))
    }

    /// The last hundred rebases of this resource for this key, newest first.
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
        let records = records.map_err(|error| read_failed(error).on(resource))?;
        records.iter().map(|record| rebased(record).ok_or_else(corrupt_mark)).collect()
    }

    /// Moves the mark of this resource for this key: see [`rule::rebase`]. The same script writes an audit record to the list
    /// `fence:v1:{TAG}:RESOURCE:rebased`. Returns the mark before and after.
    ///
    /// # Cancel safety
    /// The mark may have been moved. Moving it again changes nothing more.
    ///
    /// # Errors
    /// `Invalid` as [`rule::rebase`], or if there is no mark: then there is nothing to move.
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
        let mut reply: RedisResult<Value> = call.query_async(connection).await;
        if reply.as_ref().is_err_and(is_unknown_script) {
            reply = script::REBASE.eval_instead(&call).query_async(connection).await;
        }
        let words: RedisResult<Vec<String>> = reply.and_then(|value| Ok(::redis::from_redis_value(value)?));
        read_reply(&words.map_err(|error| interpret(error).on(resource))?, resource, rebase)
    }
}

fn record_key(mark: &[u8]) -> Vec<u8> {
    [mark, b":rebased"].concat()
}

/// The error of a command that only reads, so it has no effect.
fn read_failed(error: ::redis::RedisError) -> Error {
    match error.code() {
        Some("WRONGTYPE") => corrupt_mark(),
        _ => interpret(error),
    }
    .with_effect(Effect::None)
}

/// Reads an audit record, which is JSON.
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

/// Reads the reply of `rebase.lua`.
fn read_reply(words: &[String], resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark)> {
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["nothing"] => Err(tables::no_mark(resource)),
        ["refused", token, ceiling] => {
            let mark = mark(token, ceiling)?;
            // The script says only that the rule refuses; the rule says why.
            let why = rule::rebase(&mark, rebase.to, rebase.ceiling).err().unwrap_or_else(corrupt_mark);
            Err(why.on(resource))
        }
        ["moved", was, before, now, after] => Ok((mark(was, before)?, mark(now, after)?)),
        _ => Err(corrupt_mark()),
    }
}

fn mark(token: &str, ceiling: &str) -> Result<Mark> {
    let number = |text: &str| text.parse::<FencingToken>().map_err(|_| corrupt_mark());
    let ceiling = if ceiling.is_empty() { None } else { Some(number(ceiling)?) };
    Ok(Mark { highest: number(token)?, owner: None, ceiling })
}
