//! Locks of other programs that hold a resource. Nothing is known about the process behind such a lock: it has
//! no token, no time of its grant, and it is not known whether it renews. Its value may be the secret that
//! releases it, so only a hash of it is shown (ADR 0065).

use leasehold::{ForeignLock, Resource, Snapshot};
use serde::Serialize;

use crate::{exit::Failure, session::OperatorSession, text, view};

/// A lock of another program, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct ForeignView {
    key: String,
    form: String,
    value_hash: String,
    /// `None` if it does not expire.
    remaining_ms: Option<u64>,
}

impl ForeignView {
    pub(crate) fn of(lock: &ForeignLock) -> ForeignView {
        ForeignView {
            key: lock.key.clone(),
            form: lock.form.clone(),
            value_hash: lock.value_hash.to_string(),
            remaining_ms: lock.remaining.map(view::millis),
        }
    }
}

/// `a lock of another program (string lock:v1:{report/42}:owner)`
pub(crate) fn name(lock: &ForeignLock) -> String {
    format!("a lock of another program ({} {})", text::printable(&lock.form), text::printable(&lock.key))
}

/// `expires in 14s`, or that it does not expire.
pub(crate) fn expiry(lock: &ForeignLock) -> String {
    match lock.remaining {
        Some(left) => format!("expires in {}, unless that program extends it", text::span(left)),
        None => "has no expiry: it stays until that program or an operator removes it".to_owned(),
    }
}

/// The command that removes this lock. `reason` is what the operator typed, or a word that stands for it.
pub(crate) fn evict_command(
    session: &OperatorSession,
    resource: &Resource,
    lock: &ForeignLock,
    reason: &str,
) -> String {
    let words = evict_words(resource, lock);
    let words = words.iter().map(String::as_str).chain(["--reason", reason]);
    session.foreign_command(&words.collect::<Vec<_>>())
}

/// The words of the order that removes this lock, without the program and the reason.
pub(crate) fn evict_words(resource: &Resource, lock: &ForeignLock) -> Vec<String> {
    let (name, hash) = (resource.to_string(), lock.value_hash.to_string());
    ["evict", &name, "--foreign", "--value-hash", &hash, "--two-may-run"].map(str::to_owned).to_vec()
}

/// Fails if the store takes no orders. If the lock of another program holds the resource, the hint is how to remove it: that it
/// runs out cannot be waited for.
pub(crate) fn check_orders_supported(
    session: &OperatorSession,
    snapshot: &Snapshot,
    reason: &str,
) -> Result<(), Failure> {
    let checked = session.check_orders_supported();
    let Some(lock) = snapshot.foreign.first() else { return checked };
    checked.map_err(|failure| {
        let command = evict_command(session, &snapshot.resource, lock, reason);
        failure.hint(format!(
            "once you know that the other program has ended, remove its lock on each node by itself: {command}"
        ))
    })
}
