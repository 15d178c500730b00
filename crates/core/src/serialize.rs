//! `serde`, for what programs log or send: with the feature `serde`.
//!
//! | type | form |
//! |---|---|
//! | [`FencingToken`], [`ShareNumber`] | a number: it is below 2^53, so JSON keeps it |
//! | [`Resource`], [`Pass`], [`OwnerHash`] | their text |
//! | [`EndReason`], [`ErrorKind`], [`Effect`], [`Released`], [`Verb`] | their stable names |
//! | [`WallTime`] | microseconds since 1970 |
//! | durations | whole milliseconds, in a field whose name ends in `_ms` |
//! | notes | the text; bytes that are not text as `0x` and hex digits |
//! | [`Event`] | one flat map: `event` is its name, then what all events have, then what this one has |
//!
//! An [`OwnerToken`](crate::OwnerToken) is a secret, so it has no form: not even by mistake is it written to a log. An event has
//! the first digits of it.
//!
//! What one process sends to another can also be read: tokens, resources, passes, hashes of owners. The names and forms are
//! stable; a later version may add fields.

use std::time::Duration;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::Error as _,
    ser::{SerializeMap, SerializeStruct as _},
};

use crate::{
    claim::Holder,
    clock::WallTime,
    error::{Busy, Effect, Error, ErrorKind, Verb},
    event::{EndReason, Event, EventKind},
    pass::{self, OwnerHash, Pass},
    resource::{Resource, hex},
    token::{FencingToken, ShareNumber},
    verdict::{FinishRequest, ForeignLock, HeldBy, QueueEntry, Released, Snapshot},
};

/// Whole milliseconds.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A note as text.
pub fn note_text(note: &[u8]) -> String {
    std::str::from_utf8(note).map_or_else(|_| format!("0x{}", hex(note)), str::to_owned)
}

/// Types with a stable name.
macro_rules! by_name {
    ($($type:ty)*) => { $(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }
    )* };
}
by_name!(EndReason ErrorKind Effect Released Verb);

/// Types whose text can be read back.
macro_rules! by_text {
    ($($type:ty, $read:expr;)*) => { $(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                $read(&String::deserialize(from)?).map_err(D::Error::custom)
            }
        }
    )* };
}
by_text! {
    Resource, pass::read_resource;
    Pass, str::parse::<Pass>;
    OwnerHash, str::parse::<OwnerHash>;
}

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.get())
    }
}
impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FencingToken, D::Error> {
        FencingToken::new(u64::deserialize(from)?).map_err(D::Error::custom)
    }
}
impl Serialize for ShareNumber {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.get())
    }
}
impl<'de> Deserialize<'de> for ShareNumber {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ShareNumber, D::Error> {
        FencingToken::deserialize(from).map(ShareNumber::from)
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.as_micros())
    }
}

/// A struct with these fields.
macro_rules! fields {
    ($to:expr, $name:literal, $($field:literal: $value:expr),* $(,)?) => {{
        let mut fields = $to.serialize_struct($name, [$($field),*].len())?;
        $(fields.serialize_field($field, &$value)?;)*
        fields.end()
    }};
}

impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        fields!(to, "Holder", "host": self.host, "pid": self.pid, "label": self.label, "subject": self.subject)
    }
}

impl Serialize for FinishRequest {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        fields!(to, "FinishRequest", "within_ms": millis(self.within), "by": &*self.by, "why": &*self.why)
    }
}

impl Serialize for HeldBy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        fields!(to, "HeldBy",
            "holder": *self.holder,
            "token": self.token,
            "weight": self.weight,
            "held_for_ms": millis(self.held_for),
            "remaining_ms": millis(self.remaining),
            "ttl_ms": self.ttl.map(millis),
            "note": self.note.as_deref().map(note_text),
            "handovers": self.handovers,
            "asked": self.asked,
            "evicting": self.evicting,
            "kept": self.kept,
        )
    }
}

impl Serialize for QueueEntry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        fields!(to, "QueueEntry",
            "holder": *self.holder,
            "weight": self.weight,
            "waited_ms": millis(self.waited),
            "remaining_ms": millis(self.remaining),
            "silent": self.silent,
            "foreign": self.foreign,
        )
    }
}

impl Serialize for ForeignLock {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        fields!(to, "ForeignLock",
            "key": self.key,
            "form": self.form,
            "value_hash": self.value_hash.to_string(),
            "remaining_ms": self.remaining.map(millis),
        )
    }
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        fields!(to, "Snapshot",
            "resource": self.resource,
            "capacity": self.capacity,
            "holders": self.holders,
            "holder_count": self.holder_count,
            "foreign": self.foreign,
            "queue": self.queue,
            "queue_length": self.queue_length,
            "last_token": self.last_token,
            "paused_for_ms": self.paused_for.map(millis),
            "unreadable": self.unreadable,
        )
    }
}

impl Serialize for Busy {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        fields!(to, "Busy",
            "holders": self.holders,
            "foreign": self.foreign,
            "ahead": self.ahead,
            "retry_after_ms": self.retry_after.map(millis),
            "paused": self.paused,
        )
    }
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        fields!(to, "Error",
            "kind": self.kind(),
            "effect": self.effect(),
            "message": self.to_string(),
            "resource": self.resource(),
            "verb": self.verb(),
            "backend": self.backend(),
            "busy": self.busy(),
            "ending": self.ending(),
        )
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("event", self.kind.as_str())?;
        map.serialize_entry("at", &self.at)?;
        map.serialize_entry("resource", &self.resource)?;
        map.serialize_entry("owner_prefix", &self.owner_prefix)?;
        map.serialize_entry("token", &self.token)?;
        add_details(&self.kind, &mut map)?;
        map.end()
    }
}

/// Adds what only this kind of event has.
fn add_details<M: SerializeMap>(kind: &EventKind, map: &mut M) -> Result<(), M::Error> {
    match kind {
        EventKind::Acquired { waited, behind, handed_over, acks } => {
            map.serialize_entry("waited_ms", &millis(*waited))?;
            map.serialize_entry("behind", behind)?;
            map.serialize_entry("handed_over", handed_over)?;
            map.serialize_entry("acks", acks)
        }
        EventKind::Contended { waited } => map.serialize_entry("waited_ms", &millis(*waited)),
        EventKind::Failed { waited, error } => {
            map.serialize_entry("waited_ms", &millis(*waited))?;
            map.serialize_entry("error", error)
        }
        EventKind::Renewed { margin, late } => {
            map.serialize_entry("margin_ms", &millis(*margin))?;
            map.serialize_entry("late", late)
        }
        EventKind::RenewalFailed { error, failures, left } => {
            map.serialize_entry("error", error)?;
            map.serialize_entry("failures", failures)?;
            map.serialize_entry("left_ms", &millis(*left))
        }
        EventKind::Asked(request) => map.serialize_entry("asked", request),
        EventKind::Evicting | EventKind::Cancelled => Ok(()),
        EventKind::Lost { why, held_for } => {
            map.serialize_entry("why", why)?;
            map.serialize_entry("held_for_ms", &millis(*held_for))
        }
        EventKind::Released { answer, dropped, held_for } => {
            map.serialize_entry("answer", answer)?;
            map.serialize_entry("dropped", dropped)?;
            map.serialize_entry("held_for_ms", &millis(*held_for))
        }
        EventKind::Leaked { error } => map.serialize_entry("error", error),
        EventKind::StaleTokenRefused { presented, highest, downstream } => {
            map.serialize_entry("presented", presented)?;
            map.serialize_entry("highest", highest)?;
            map.serialize_entry("downstream", downstream)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;
    use crate::token::OwnerToken;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    #[test]
    fn what_is_sent_can_be_read_back() {
        let resource: Resource = "acme:report/a b%2F".parse().unwrap();
        let owner = OwnerToken::from_bytes([7; 16]);
        for resource in [resource.hashed(b"sesame"), resource] {
            let pass = Pass::new(resource.clone(), token(34)).owned_by(owner);
            assert_eq!(from_value::<Resource>(to_value(&resource).unwrap()).unwrap(), resource);
            assert_eq!(from_value::<Pass>(to_value(&pass).unwrap()).unwrap(), pass);
        }
        let hash = OwnerHash::from(owner);
        assert_eq!(from_value::<OwnerHash>(to_value(hash).unwrap()).unwrap(), hash);
        assert_eq!(to_value(token(34)).unwrap(), json!(34));
        assert_eq!(from_value::<FencingToken>(json!(34)).unwrap(), token(34));
        assert_eq!(from_value::<ShareNumber>(json!(34)).unwrap().get(), 34);
        for wrong in [json!(0), json!(1_u64 << 53), json!(-1), json!("34")] {
            assert!(from_value::<FencingToken>(wrong).is_err());
        }
        assert!(from_value::<Resource>(json!("report")).is_err());
    }

    #[test]
    fn an_event_is_one_flat_map_and_shows_no_owner() {
        let owner = OwnerToken::from_bytes([0xab; 16]);
        let kind = EventKind::Lost { why: EndReason::Expired, held_for: Duration::from_millis(1500) };
        let resource = Resource::new("report", "42").unwrap();
        let event = Event::new(WallTime::from_micros(7), resource, kind).of(owner.prefix(), Some(token(3)));
        let expected = json!({
            "event": "lost", "at": 7, "resource": "report/42", "owner_prefix": "abababab", "token": 3,
            "why": "expired", "held_for_ms": 1500,
        });
        assert_eq!(to_value(&event).unwrap(), expected);
        assert!(!to_value(&event).unwrap().to_string().contains(&owner.reveal()));
    }

    #[test]
    fn an_error_has_its_holders_and_its_ending() {
        let mut by = HeldBy::new(Holder::new("vm", 12, "nightly").into(), token(3), 1);
        (by.remaining, by.note) = (Duration::from_secs(29), Some([0xff, 0].into()));
        let busy = Busy { retry_after: Some(by.remaining), holders: vec![by], ..Busy::default() };
        let error = to_value(Error::contended(busy)).unwrap();
        assert_eq!((&error["kind"], &error["effect"]), (&json!("contended"), &json!("none")));
        let busy = &error["busy"];
        assert_eq!(busy["retry_after_ms"], json!(29_000));
        assert_eq!(
            busy["holders"][0]["holder"],
            json!({ "host": "vm", "pid": 12, "label": "nightly", "subject": "" })
        );
        assert_eq!(busy["holders"][0]["note"], json!("0xff00"));
        let lost = Error::new(ErrorKind::Lost, "over").with_ending(EndReason::Evicted);
        assert_eq!(to_value(lost).unwrap()["ending"], json!("evicted"));
    }
}
