//! What a caller learns whose wait has run out: who holds the resource, and until when.

use std::{sync::Arc, time::Duration};

use leasehold_core::{Busy, HeldBy, Timestamp};

use super::held_lease::HeldLease;

/// What blocks a waiter behind a lease of its own client, by this client's clock.
pub(super) fn busy_with(lease: &HeldLease, now: Timestamp) -> Busy {
    let mut by = HeldBy::new(Arc::clone(&lease.holder), lease.token, lease.share.weight());
    by.held_for = lease.acquired.until(now);
    by.remaining = now.until(lease.deadline());
    let mut busy = Busy::default();
    busy.retry_after = Some(by.remaining);
    busy.holders.push(by);
    busy
}

/// The same reply, as it reads this much later.
pub(super) fn aged(busy: &Busy, by: Duration) -> Busy {
    let mut aged = busy.clone();
    aged.retry_after = busy.retry_after.map(|left| left.saturating_sub(by));
    for holder in &mut aged.holders {
        holder.held_for += by;
        holder.remaining = holder.remaining.saturating_sub(by);
    }
    aged
}
