//! How long the ttl of a lease should be.

use std::time::Duration;

use super::LONG;
use crate::{LeaseRequest, engine::times::LeaseTimes};

/// A ttl, and the times that follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TtlAdvice {
    /// How long the lease lasts without a renewal.
    pub ttl: Duration,
    /// How often it is renewed: every third of the ttl, and at least once a minute.
    pub renew_every: Duration,
    /// The work stops when this much is left and no renewal has succeeded: a sixth of the ttl.
    pub stop_below: Duration,
    /// Remarks about this ttl.
    pub remarks: Vec<String>,
}

/// A ttl that is longer than the work at its 99.9th percentile, a pause of the process and a network delay together.
pub fn ttl(p999: Duration, pause: Duration, network: Duration) -> TtlAdvice {
    let wanted = p999.saturating_add(pause).saturating_add(network);
    let ttl = wanted.clamp(<LeaseRequest>::TTL_MIN, <LeaseRequest>::TTL_MAX);
    let mut remarks = Vec::new();
    if wanted < ttl {
        remarks.push(format!("{wanted:?} would be enough, but {ttl:?} is the shortest ttl"));
    }
    if wanted > ttl {
        remarks
            .push(format!("{wanted:?} is longer than any ttl: use a durable job table instead of a lease"));
    } else if ttl > LONG {
        remarks.push(
            "a holder that dies blocks everyone for this long: choose a shorter ttl, because leases are renewed while the \
             work runs, or use a durable job table"
                .to_owned(),
        );
    }
    let (renew_every, stop_below) = (LeaseTimes::renew_every(ttl), LeaseTimes::stop_before_deadline(ttl));
    TtlAdvice { ttl, renew_every, stop_below, remarks }
}

/// The 99.9th percentile of the samples, by nearest rank. Of fewer than a thousand samples, this is the longest. `None` if
/// there are no samples.
pub fn p999(samples: &[Duration]) -> Option<Duration> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * 999).div_ceil(1000);
    sorted.get(rank.checked_sub(1)?).copied()
}
