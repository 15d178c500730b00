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

use crate::{foreign::ForeignView, holder_state::HolderState, marks, text, this_host::ProcessTable};

/// The current state of a resource.
#[derive(Debug, Serialize)]
pub(crate) struct ResourceView {
    pub(crate) resource: String,
    key: String,
    namespace: Option<String>,
    kind: String,
    id: String,
    hashed: bool,
    /// How it is used now: `exclusive`, `read-write` or `semaphore`. `null` if it is not in use.
    mode: Option<&'static str>,
    /// A read-write lock has the largest number, 4294967295: it is not limited.
    capacity: u32,
    holders: Vec<HolderView>,
    holder_count: u32,
    foreign: Vec<ForeignView>,
    #[serde(rename = "line")]
    queue: Vec<WaiterView>,
    #[serde(rename = "line_length")]
    queue_length: u32,
    last_token: Option<String>,
    paused_for_ms: Option<u64>,
    paused_until: Option<String>,
    /// Why the resource cannot be read. Then nothing else is known about it.
    unreadable: Option<String>,
}

impl ResourceView {
    pub(crate) fn of(snapshot: &Snapshot, processes: &ProcessTable) -> ResourceView {
        let (resource, now) = (&snapshot.resource, SystemClock.wall());
        ResourceView {
            resource: resource.to_string(),
            key: resource.key().to_owned(),
            namespace: resource.namespace().map(str::to_owned),
            kind: resource.kind().to_owned(),
            id: resource.id().into_owned(),
            hashed: resource.is_hashed(),
            mode: mode(snapshot.capacity),
            capacity: snapshot.capacity,
            holders: snapshot.holders.iter().map(|held| HolderView::of(held, now, processes)).collect(),
            holder_count: snapshot.holder_count,
            foreign: snapshot.foreign.iter().map(ForeignView::of).collect(),
            queue: snapshot.queue.iter().map(WaiterView::of).collect(),
            queue_length: snapshot.queue_length,
            last_token: snapshot.last_token.map(|token| token.to_string()),
            paused_for_ms: snapshot.paused_for.map(millis),
            paused_until: snapshot.paused_for.map(|left| text::exact_time(now.after(left))),
            unreadable: snapshot.unreadable.clone(),
        }
    }
}

/// The process of a holder or a waiter.
#[derive(Debug, Serialize)]
pub(crate) struct ProcessView {
    host: String,
    pid: u32,
    label: String,
    /// Who a server took the caller for.
    #[serde(skip_serializing_if = "String::is_empty")]
    subject: String,
}

impl ProcessView {
    pub(crate) fn of(holder: &Holder) -> ProcessView {
        let Holder { host, pid, label, subject, .. } = holder.clone();
        ProcessView { host, pid, label, subject }
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
    ttl_ms: Option<u64>,
    /// `renewing`, `late` or `silent`, where that is known.
    state: Option<&'static str>,
    /// Its process was on this host and has ended. False also if that is not known.
    process_gone: bool,
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
    pub(crate) fn of(held: &HeldBy, now: WallTime, processes: &ProcessTable) -> HolderView {
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
            ttl_ms: held.ttl.map(millis),
            state: marks::state(held).map(HolderState::as_str),
            process_gone: !held.kept && processes.is_gone(&held.holder),
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
    /// It could have been granted and did not answer: it is passed over until it does.
    silent: bool,
    /// A lock of another program waits here.
    foreign: bool,
}

impl WaiterView {
    fn of(waiter: &QueueEntry) -> WaiterView {
        let (waited_ms, remaining_ms) = (millis(waiter.waited), millis(waiter.remaining));
        WaiterView {
            process: ProcessView::of(&waiter.holder),
            weight: waiter.weight,
            waited_ms,
            remaining_ms,
            silent: waiter.silent,
            foreign: waiter.foreign,
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

/// How a resource with this capacity is used, for programs. `None` if it is not in use.
fn mode(capacity: u32) -> Option<&'static str> {
    match capacity {
        0 => None,
        1 => Some("exclusive"),
        UNLIMITED => Some("read-write"),
        _ => Some("semaphore"),
    }
}

/// The capacity of a read-write lock: any number of readers fits.
pub(crate) const UNLIMITED: u32 = u32::MAX;

/// The capacity as text: `1`, `5`, `unlimited`. Empty if the resource is not in use.
pub(crate) fn capacity(capacity: u32) -> String {
    match capacity {
        0 => String::new(),
        UNLIMITED => "unlimited".to_owned(),
        limited => limited.to_string(),
    }
}

/// How the holders use the resource: `exclusive`, `read`, `write`, `2 of 5`. Empty without a holder.
pub(crate) fn holders_mode(snapshot: &Snapshot) -> String {
    let Some(first) = snapshot.holders.first() else { return String::new() };
    let taken: u64 = snapshot.holders.iter().map(|held| u64::from(held.weight)).sum();
    match (snapshot.capacity, first.weight) {
        (0 | 1, _) => "exclusive".to_owned(),
        (UNLIMITED, UNLIMITED) => "write".to_owned(),
        (UNLIMITED, _) => "read".to_owned(),
        (capacity, _) => format!("{taken} of {capacity}"),
    }
}

/// The kind of primitive that the resource is used as, by its capacity.
pub(crate) fn primitive(capacity: u32) -> String {
    match capacity {
        0 | 1 => "an exclusive lease".to_owned(),
        UNLIMITED => "a read-write lock".to_owned(),
        permits => format!("a semaphore of {permits}"),
    }
}

/// The share of a holder or waiter in words. `None` for an exclusive lease: it has only one share.
pub(crate) fn share(weight: u32, capacity: u32) -> Option<String> {
    match (weight, capacity) {
        (_, 0 | 1) => None,
        (UNLIMITED, UNLIMITED) => Some("writes".to_owned()),
        (1, UNLIMITED) => Some("reads".to_owned()),
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

/// The process that waits, as text.
pub(crate) fn waiter(waiter: &QueueEntry) -> String {
    if waiter.foreign { "a lock of another program".to_owned() } else { text::holder(&waiter.holder) }
}

/// The time until this lease ends. `None` if it has no end: a lease that somebody took the expiry of, with
/// `PERSIST` or by copying keys. Stores report many years then.
pub(crate) fn left(held: &HeldBy) -> Option<Duration> {
    Some(held.remaining).filter(|left| has_end(*left))
}

/// Whether this remaining time stands for an end: see [`left`].
pub(crate) fn has_end(remaining: Duration) -> bool {
    const NO_END: Duration = Duration::from_secs(300 * 86_400);
    remaining < NO_END
}

/// The time until this lease ends, as text.
pub(crate) fn left_text(held: &HeldBy) -> String {
    left(held).map_or_else(|| "no end".to_owned(), text::span)
}

/// The holder with this token, if the snapshot lists it.
pub(crate) fn find(snapshot: &Snapshot, token: leasehold::FencingToken) -> Option<&HeldBy> {
    snapshot.holders.iter().find(|held| held.token == token)
}

/// The holder with the highest token.
pub(crate) fn newest(snapshot: &Snapshot) -> Option<&HeldBy> {
    snapshot.holders.iter().max_by_key(|held| held.token)
}

/// Whether nobody holds the resource or waits for it, and it is only kept closed after a release: the ticks of
/// `cron` (ADR 0029), and work that `run --once-per` or `--at-least` does not repeat yet.
pub(crate) fn is_only_kept(snapshot: &Snapshot) -> bool {
    let in_use = !snapshot.foreign.is_empty() || snapshot.queue_length > 0 || snapshot.paused_for.is_some();
    let kept = snapshot.holder_count > 0 && snapshot.holders.iter().all(|held| held.kept);
    kept && !in_use
}

/// The name of the resource, safe to print.
pub(crate) fn name(resource: &Resource) -> String {
    text::printable(&resource.to_string()).into_owned()
}
