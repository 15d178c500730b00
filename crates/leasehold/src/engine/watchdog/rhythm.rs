//! How often the driver reads the clock (ADR 0043).
//!
//! 1. While nothing was watched for a while, the driver sleeps long ([`IDLE_CHECK_EVERY`]), and the first lease wakes it.
//! 2. From then on it keeps a rhythm: it reads the clock every [`CLOCK_CHECK_EVERY`], or more often if a lease is so
//!    short that its first event would come before. A lease whose first event is later than one beat needs no wake-up.
//! 3. The rhythm is decided again every [`BEATS`] beats, by the leases that came since. If none came and none is held,
//!    the driver sleeps long again.

use std::time::Duration;

use leasehold_core::Timestamp;

/// While anything is watched, the driver reads the clock at least this often: timers stop while a machine is suspended,
/// the clock does not.
pub(super) const CLOCK_CHECK_EVERY: Duration = Duration::from_secs(1);
/// The shortest beat. A lease that is shorter wakes the driver itself.
const BEAT_MIN: Duration = Duration::from_millis(10);
/// After so many beats the rhythm is decided again.
const BEATS: u32 = 60;
/// How often the driver wakes up when nothing is watched.
const IDLE_CHECK_EVERY: Duration = Duration::from_secs(60);

/// How often the driver reads the clock.
#[derive(Debug)]
pub(super) struct Rhythm {
    /// The driver reads the clock this often; `None` while it sleeps long.
    beat: Option<Duration>,
    /// When the rhythm is decided again.
    decide_at: Timestamp,
    /// The shortest time from a grant to its first event, of the leases that came since the rhythm was decided.
    shortest: Option<Duration>,
}

impl Rhythm {
    pub(super) fn new() -> Rhythm {
        Rhythm { beat: None, decide_at: Timestamp::NEVER, shortest: None }
    }

    /// A lease came whose first event is due after this time.
    pub(super) fn watched(&mut self, first_event_after: Duration) {
        self.shortest =
            Some(self.shortest.map_or(first_event_after, |shortest| shortest.min(first_event_after)));
    }

    /// How long the driver may sleep if no event is due before.
    pub(super) fn sleep_at_most(&mut self, now: Timestamp, nothing_watched: bool) -> Duration {
        let wanted = self.shortest.map(beat_for);
        // A shorter lease than before makes the beat shorter at once.
        let is_shorter = wanted.is_some_and(|wanted| self.beat.is_none_or(|beat| wanted < beat));
        if is_shorter || now >= self.decide_at {
            self.beat = wanted.or_else(|| (!nothing_watched).then_some(CLOCK_CHECK_EVERY));
            self.decide_at = self.beat.map_or(Timestamp::NEVER, |beat| now.after(beat * BEATS));
            self.shortest = None;
        }
        self.beat.unwrap_or(IDLE_CHECK_EVERY)
    }
}

/// Half of the time to the first event: the next leases of the same ttl may have theirs somewhat sooner.
fn beat_for(first_event_after: Duration) -> Duration {
    (first_event_after / 2).clamp(BEAT_MIN, CLOCK_CHECK_EVERY)
}
