//! Reads the replies of the scripts of a node.

use std::sync::Arc;

use leasehold_core::{
    GoneReason, HeldBy, Resource, StoredHolder, WallTime,
    quorum_node::{AttemptId, NodeRenewal, Vote, VoteOutcome},
};
use redis::Value;

use crate::{error::StoreError, reply::Fields};

pub(super) fn read_text(value: Value) -> Result<String, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Nil => Ok(String::new()),
        _ => Err(StoreError::unexpected_reply("the server returned something other than a text".to_owned())),
    }
}

/// Reads a reply to `CONFIG GET name`; `None` if the user may not ask.
pub(super) fn read_setting(name: &str, reply: Result<Value, StoreError>) -> Option<String> {
    let mut fields = Fields::of(reply.ok()?).ok()?;
    if fields.text().ok()? == name { fields.text().ok() } else { None }
}

/// Reads a holder, as `describe` in `node.lua` returns it.
pub(super) fn read_holder(fields: &mut Fields) -> Result<(HeldBy, AttemptId), StoreError> {
    let token = fields.token()?;
    let (held_for, remaining) = (fields.micros()?, fields.millis()?.unwrap_or_default());
    let attempt = u64::from_str_radix(&fields.text()?, 16).unwrap_or(0);
    let Ok(StoredHolder { holder, ttl }) = fields.text()?.parse::<StoredHolder>();
    let mut by = HeldBy::new(holder, token, 1);
    (by.held_for, by.remaining, by.ttl) = (held_for, remaining, ttl);
    by.note = fields.bytes()?.filter(|note| !note.is_empty()).map(|note| Arc::from(&note[1..]));
    Ok((by, AttemptId(attempt)))
}

/// Reads the reply of `scripts/node_vote.lua` to requests on these resources. `None`: the request must be sent alone.
pub(super) fn read_votes(reply: Value, resources: &[&Resource]) -> Result<Vec<Option<Vote>>, StoreError> {
    let mut fields = Fields::of(reply)?;
    let now = WallTime::from_micros(fields.int()?.unsigned_abs());
    let read = |(reply, resource): (Value, &&Resource)| match reply {
        Value::Int(0) => Ok(None),
        reply => read_vote(now, resource, Fields::of(reply)?).map(Some),
    };
    fields.rest(resources.len())?.into_iter().zip(resources).map(read).collect()
}

/// Reads the reply of `scripts/node_undo.lua` to this many requests.
pub(super) fn read_undone(reply: Value, count: usize) -> Result<Vec<bool>, StoreError> {
    let read = |reply| match reply {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        other => Err(StoreError::unexpected_reply(format!("an undo was answered with {other:.20?}"))),
    };
    Fields::of(reply)?.rest(count)?.into_iter().map(read).collect()
}

/// Reads the reply to one vote.
fn read_vote(now: WallTime, resource: &Resource, mut fields: Fields) -> Result<Vote, StoreError> {
    let choice = match fields.text()?.as_str() {
        "yours" => {
            VoteOutcome::Yours { number: fields.token()?, remaining: fields.millis()?.unwrap_or_default() }
        }
        "held" => {
            let (by, attempt) = read_holder(&mut fields)?;
            VoteOutcome::Held { by: Box::new(by), attempt }
        }
        "foreign" => VoteOutcome::Foreign(Box::new(fields.foreign_lock(resource)?)),
        "free" => VoteOutcome::Free,
        "buried" => VoteOutcome::Cancelled,
        "far" => VoteOutcome::Far,
        "long" => VoteOutcome::TooLong { gate: fields.millis()?.unwrap_or_default() },
        "novote" => VoteOutcome::NoVote,
        other => return Err(StoreError::unexpected_reply(format!("a vote was answered with {other:.20?}"))),
    };
    Ok(Vote { now, choice })
}

/// Reads the reply of `scripts/node_renew.lua`.
pub(super) fn read_renewal(mut fields: Fields) -> Result<NodeRenewal, StoreError> {
    match fields.text()?.as_str() {
        "kept" => Ok(NodeRenewal::Renewed {
            number: fields.token()?,
            remaining: fields.millis()?.unwrap_or_default(),
        }),
        "gone" => {
            let why = if fields.int()? == 1 { GoneReason::Cancelled } else { GoneReason::NotThere };
            Ok(NodeRenewal::Gone { why })
        }
        "long" => Ok(NodeRenewal::TooLong { gate: fields.millis()?.unwrap_or_default() }),
        other => Err(StoreError::unexpected_reply(format!("a renewal was answered with {other:.20?}"))),
    }
}
