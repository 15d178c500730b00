//! Locks of other programs that hold a resource. Nothing is known about the process behind such a lock: it has
//! no token, no time of its grant, and it is not known whether it renews. Its value may be the secret that
//! releases it, so only a hash of it is shown (ADR 0065).

use leasehold::{ForeignLock, Resource};
use serde::Serialize;

use crate::{session::OperatorSession, text, view};

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
        None => {
            "has no expiry: it stays until that program, its session or an operator removes it".to_owned()
        }
    }
}

/// The command that removes this lock. `reason` is what the operator typed, or a word that stands for it.
pub(crate) fn evict_command(
    session: &OperatorSession,
    resource: &Resource,
    lock: &ForeignLock,
    reason: &str,
) -> String {
    let (name, hash) = (resource.to_string(), lock.value_hash.to_string());
    session.command(&[
        "evict",
        &name,
        "--foreign",
        "--value-hash",
        &hash,
        "--two-may-run",
        "--reason",
        reason,
    ])
}
