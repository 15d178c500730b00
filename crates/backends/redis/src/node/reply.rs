//! What the scripts of a node answer, read field by field.

use std::sync::Arc;

use leasehold_core::{
    GoneReason, HeldBy, Holder, WallTime,
    quorum_node::{AttemptId, NodeRenewal, Vote, VoteOutcome},
};
use redis::Value;

use crate::{error::Fault, reply::Fields};

pub(super) fn text(value: Value) -> Result<String, Fault> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Nil => Ok(String::new()),
        _ => Err(Fault::Strange("a text was due".to_owned())),
    }
}

pub(super) fn time(value: Value) -> Result<WallTime, Fault> {
    let mut fields = Fields::of(value)?;
    let (seconds, micros) = (fields.int()?.unsigned_abs(), fields.int()?.unsigned_abs());
    Ok(WallTime::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

/// The value of the setting with this name, if we may ask.
pub(super) fn setting(name: &str, answer: Result<Value, Fault>) -> Option<String> {
    let mut fields = Fields::of(answer.ok()?).ok()?;
    if fields.text().ok()? == name { fields.text().ok() } else { None }
}

/// A holder, as `seen` in `node.lua` tells it.
pub(super) fn holder(fields: &mut Fields) -> Result<(HeldBy, AttemptId), Fault> {
    let token = fields.token()?;
    let (held_for, remaining) = (fields.micros()?, fields.millis()?.unwrap_or_default());
    let attempt = u64::from_str_radix(&fields.text()?, 16).unwrap_or(0);
    let Ok(who) = fields.text()?.parse::<Holder>();
    let mut by = HeldBy::new(Arc::new(who), token, 1);
    (by.held_for, by.remaining) = (held_for, remaining);
    by.note = fields.bytes()?.filter(|note| !note.is_empty()).map(|note| Arc::from(&note[1..]));
    Ok((by, AttemptId(attempt)))
}

pub(super) fn vote(mut fields: Fields) -> Result<Vote, Fault> {
    let now = WallTime::from_micros(fields.int()?.unsigned_abs());
    let choice = match fields.text()?.as_str() {
        "yours" => {
            VoteOutcome::Yours { number: fields.token()?, remaining: fields.millis()?.unwrap_or_default() }
        }
        "held" => {
            let (by, attempt) = holder(&mut fields)?;
            VoteOutcome::Held { by: Box::new(by), attempt }
        }
        "free" => VoteOutcome::Free,
        "buried" => VoteOutcome::Cancelled,
        "far" => VoteOutcome::Far,
        "long" => VoteOutcome::TooLong { gate: fields.millis()?.unwrap_or_default() },
        "novote" => VoteOutcome::NoVote,
        other => return Err(Fault::Strange(format!("a ballot was answered with {other:.20?}"))),
    };
    Ok(Vote { now, choice })
}

pub(super) fn renewal(mut fields: Fields) -> Result<NodeRenewal, Fault> {
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
        other => Err(Fault::Strange(format!("a renewal was answered with {other:.20?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_makes_no_sense_is_no_panic() {
        let at = |seconds| time(Value::Array(vec![Value::Int(seconds), Value::Int(7)])).unwrap();
        assert_eq!(at(3), WallTime::from_micros(3_000_007));
        assert_eq!(at(i64::MAX), WallTime::from_micros(u64::MAX));
    }
}
