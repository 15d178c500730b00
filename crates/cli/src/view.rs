//! The JSON output of the operator's commands, and texts that several commands share.
//!
//! Durations are milliseconds, times are RFC 3339 in UTC, tokens are decimal strings. The store reports
//! durations; times are computed from them with the wall clock of this host. Field names are stable; fields
//! may be added.

use std::time::Duration;

use leasehold::{
    AuditRecord, Clock as _, FinishRequest, HeldBy, Holder, QueueEntry, Resource, Snapshot, SystemClock,
    WallTime,
};
use serde::Serialize;

use crate::text;

/// The current state of a resource.
#[derive(Debug, Serialize)]
pub(crate) struct ResourceView {
    pub(crate) resource: String,
    key: String,
    namespace: Option<String>,
    kind: String,
    id: String,
    hashed: bool,
    capacity: u32,
    holders: Vec<HolderView>,
    holder_count: u32,
    #[serde(rename = "line")]
    queue: Vec<WaiterView>,
    #[serde(rename = "line_length")]
    queue_length: u32,
    last_token: Option<String>,
    paused_for_ms: Option<u64>,
    paused_until: Option<String>,
}

impl ResourceView {
    pub(crate) fn of(snapshot: &Snapshot) -> ResourceView {
        let (resource, now) = (&snapshot.resource, SystemClock.wall());
        ResourceView {
            resource: resource.to_string(),
            key: resource.key().to_owned(),
            namespace: resource.namespace().map(str::to_owned),
            kind: resource.kind().to_owned(),
            id: resource.id().into_owned(),
            hashed: resource.is_hashed(),
            capacity: snapshot.capacity,
            holders: snapshot.holders.iter().map(|held| HolderView::of(held, now)).collect(),
            holder_count: snapshot.holder_count,
            queue: snapshot.queue.iter().map(WaiterView::of).collect(),
            queue_length: snapshot.queue_length,
            last_token: snapshot.last_token.map(|token| token.to_string()),
            paused_for_ms: snapshot.paused_for.map(millis),
            paused_until: snapshot.paused_for.map(|left| text::exact_time(now.after(left))),
        }
    }
}

/// The process of a holder or a waiter.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessView {
    host: String,
    pid: u32,
    label: String,
}

impl ProcessView {
    pub(crate) fn of(holder: &Holder) -> ProcessView {
        ProcessView { host: holder.host.clone(), pid: holder.pid, label: holder.label.clone() }
    }
}

/// A holder.
#[derive(Debug, Serialize)]
pub(crate) struct HolderView {
    #[serde(flatten)]
    process: ProcessView,
    token: String,
    weight: u32,
    since: String,
    held_for_ms: u64,
    remaining_ms: u64,
    /// The note, if it is printable text. Otherwise `note_hex` has it.
    note: Option<String>,
    note_hex: Option<String>,
    #[serde(rename = "turns")]
    handovers: u32,
    asked: Option<FinishRequestView>,
    evicting: bool,
    kept: bool,
}

#[derive(Debug, Serialize)]
struct FinishRequestView {
    within_ms: u64,
    by: String,
    why: String,
}

impl HolderView {
    pub(crate) fn of(held: &HeldBy, now: WallTime) -> HolderView {
        let note = held.note.as_deref();
        let plain = note.and_then(text::plain_text);
        let asked = held.asked.as_ref().map(|asked| FinishRequestView {
            within_ms: millis(asked.within),
            by: asked.by.to_string(),
            why: asked.why.to_string(),
        });
        HolderView {
            process: ProcessView::of(&held.holder),
            token: held.token.to_string(),
            weight: held.weight,
            since: text::exact_time(text::before(now, held.held_for)),
            held_for_ms: millis(held.held_for),
            remaining_ms: millis(held.remaining),
            note: plain.map(str::to_owned),
            note_hex: note.filter(|_| plain.is_none()).map(text::hex),
            handovers: held.handovers,
            asked,
            evicting: held.evicting,
            kept: held.kept,
        }
    }
}

/// A waiter in the queue.
#[derive(Debug, Serialize)]
struct WaiterView {
    #[serde(flatten)]
    process: ProcessView,
    weight: u32,
    waited_ms: u64,
    remaining_ms: u64,
}

impl WaiterView {
    fn of(waiter: &QueueEntry) -> WaiterView {
        let (waited_ms, remaining_ms) = (millis(waiter.waited), millis(waiter.remaining));
        WaiterView {
            process: ProcessView::of(&waiter.holder),
            weight: waiter.weight,
            waited_ms,
            remaining_ms,
        }
    }
}

/// An order in the audit trail.
#[derive(Debug, Serialize)]
pub(crate) struct AuditView {
    at: String,
    by: String,
    command: String,
    resource: String,
    token: Option<String>,
    why: String,
    done: bool,
}

impl AuditView {
    pub(crate) fn of(record: &AuditRecord) -> AuditView {
        AuditView {
            at: text::exact_time(record.at),
            by: record.by.clone(),
            command: record.command.clone(),
            resource: record.resource.to_string(),
            token: record.token.map(|token| token.to_string()),
            why: record.why.clone(),
            done: record.done,
        }
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The kind of primitive that the resource is used as, by its capacity.
pub(crate) fn primitive(capacity: u32) -> String {
    match capacity {
        0 | 1 => "an exclusive lease".to_owned(),
        u32::MAX => "a read-write lock".to_owned(),
        permits => format!("a semaphore of {permits}"),
    }
}

/// The share of a holder or waiter in words. `None` for an exclusive lease: it has only one share.
pub(crate) fn share(weight: u32, capacity: u32) -> Option<String> {
    match (weight, capacity) {
        (_, 0 | 1) => None,
        (u32::MAX, u32::MAX) => Some("writes".to_owned()),
        (1, u32::MAX) => Some("reads".to_owned()),
        (weight, capacity) => Some(format!("{weight} of {capacity}")),
    }
}

/// An operator's request to finish: `to finish within 14s, by anna@ops-1: deploy`.
pub(crate) fn asked(asked: &FinishRequest) -> String {
    let (by, why) = (text::printable(&asked.by), text::printable(&asked.why));
    let within = match asked.within {
        Duration::ZERO => "now (the time is over)".to_owned(),
        left => format!("within {}", text::span(left)),
    };
    format!("to finish {within}, by {by}: {why}")
}

/// The holder with this token, if the snapshot lists it.
pub(crate) fn find(snapshot: &Snapshot, token: leasehold::FencingToken) -> Option<&HeldBy> {
    snapshot.holders.iter().find(|held| held.token == token)
}

/// The holder with the highest token.
pub(crate) fn newest(snapshot: &Snapshot) -> Option<&HeldBy> {
    snapshot.holders.iter().max_by_key(|held| held.token)
}

/// The name of the resource, safe to print.
pub(crate) fn name(resource: &Resource) -> String {
    text::printable(&resource.to_string()).into_owned()
}
