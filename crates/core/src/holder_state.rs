//! Whether a holder still renews its lease, as far as others can tell from the time that remains of it.

use std::time::Duration;

use crate::verdict::HeldBy;

/// How a holder does, by the time since its last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// It renewed when it should.
    Renewing,
    /// A renewal is overdue: it is slow, paused, cannot reach the store, or has died.
    Late,
    /// Less than a sixth of the ttl is left. A holder that works has stopped its command by now (ADR 0005).
    Silent,
}

impl HolderState {
    /// One word for people and for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            HolderState::Renewing => "renewing",
            HolderState::Late => "late",
            HolderState::Silent => "silent",
        }
    }
}

/// A long lease is renewed this often, too.
const RENEW_EVERY_MAX: Duration = Duration::from_secs(60);
/// How much later than that a renewal may come before it is late.
const LATE_AFTER: Duration = Duration::from_secs(1);

impl HeldBy {
    /// Whether this holder renews. `None` if that cannot be told: its ttl is not known, or nobody holds the resource any more and it is
    /// only kept closed.
    pub fn state(&self) -> Option<HolderState> {
        let ttl = self.ttl.filter(|_| !self.kept)?;
        let since_renewal = ttl.saturating_sub(self.remaining);
        let renew_every = (ttl / 3).min(RENEW_EVERY_MAX);
        Some(match () {
            () if self.remaining < ttl / 6 => HolderState::Silent,
            () if since_renewal <= renew_every * 3 / 2 + LATE_AFTER => HolderState::Renewing,
            () => HolderState::Late,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{FencingToken, Holder};

    use super::*;

    fn holder(ttl_ms: Option<u64>, remaining_ms: u64) -> HeldBy {
        let mut by = HeldBy::new(Arc::new(Holder::new("host", 7, "")), FencingToken::new(1).unwrap(), 1);
        by.ttl = ttl_ms.map(Duration::from_millis);
        by.remaining = Duration::from_millis(remaining_ms);
        by
    }

    #[test]
    fn the_time_that_remains_tells_whether_a_holder_renews() {
        use HolderState::{Late, Renewing, Silent};
        let table = [
            (30_000, 30_000, Renewing),
            (30_000, 20_000, Renewing),
            (30_000, 14_000, Renewing),
            (30_000, 13_999, Late),
            (30_000, 5_000, Late),
            (30_000, 4_999, Silent),
            (30_000, 0, Silent),
            (1_000, 167, Renewing),
            (1_000, 166, Silent),
            // Renewed once a minute.
            (3_600_000, 3_600_000 - 91_000, Renewing),
            (3_600_000, 3_600_000 - 91_001, Late),
            // Its ttl was changed after the grant.
            (30_000, 60_000, Renewing),
        ];
        for (ttl, remaining, state) in table {
            assert_eq!(holder(Some(ttl), remaining).state(), Some(state), "{remaining} of {ttl}");
        }
    }

    #[test]
    fn without_a_ttl_or_a_holder_nothing_is_claimed() {
        assert_eq!(holder(None, 5_000).state(), None);
        let mut kept = holder(Some(30_000), 1_000);
        kept.kept = true;
        assert_eq!(kept.state(), None);
    }
}
