//! How long a lease should last.

use std::time::Duration;

use super::LONG;
use crate::LeaseRequest;

/// A ttl, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TtlAdvice {
    /// How long the lease lasts unless renewed.
    pub ttl: Duration,
    /// How often it is renewed: a third of it, and once a minute at the least.
    pub renew_every: Duration,
    /// When this little is left and no renewal has succeeded, the work stops: a sixth of it.
    pub stop_below: Duration,
    /// What to know about it.
    pub remarks: Vec<String>,
}

/// A ttl that outlasts the work at its 99.9th percentile, a pause of the process, and the network.
pub fn ttl(p999: Duration, pause: Duration, network: Duration) -> TtlAdvice {
    let wanted = p999.saturating_add(pause).saturating_add(network);
    let ttl = wanted.clamp(<LeaseRequest>::TTL_MIN, <LeaseRequest>::TTL_MAX);
    let mut remarks = Vec::new();
    if wanted < ttl {
        remarks.push(format!("{wanted:?} would do; {ttl:?} is the shortest that is taken"));
    }
    if wanted > ttl {
        remarks
            .push(format!("{wanted:?} is more than a lease can last: this is work for a durable job table"));
    } else if ttl > LONG {
        remarks.push(
            "a holder that dies blocks everyone for so long: leases are renewed while the work runs, so take a shorter \
             one, or keep the work in a durable job table"
                .to_owned(),
        );
    }
    let renew_every = (ttl / 3).min(Duration::from_secs(60));
    TtlAdvice { ttl, renew_every, stop_below: ttl / 6, remarks }
}

/// The 99.9th percentile of what was measured, by nearest rank; of fewer than a thousand samples, the longest.
/// `None` if there are none.
pub fn p999(samples: &[Duration]) -> Option<Duration> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * 999).div_ceil(1000);
    sorted.get(rank.checked_sub(1)?).copied()
}
