//! When the next sample is taken.

use std::time::Duration;

use tokio::time::Instant;

/// After this long without a request the sampler is idle.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// While somebody asks, samples take one part of so many of the time.
const WATCHED_SHARE: u32 = 10;
/// After a sample that failed: a store that times out must not hide for minutes that it is back.
const FAILED_SHARE: u32 = 2;
/// While nobody asks.
const IDLE_SHARE: u32 = 100;

/// When samples were taken and asked for, and so when the next one is due.
#[derive(Debug)]
pub(super) struct Pace {
    /// The time from the beginning of one sample to the next, if samples take no time.
    every: Duration,
    /// The same while nobody asks. `None`: none are taken.
    idle_every: Option<Duration>,
    asked_at: Option<Instant>,
    /// When the newest sample was begun; before the first one, when the server started.
    begun_at: Instant,
    /// How long the newest sample took.
    took: Duration,
    /// The newest sample could not be taken.
    has_failed: bool,
    /// Somebody has asked after nobody did, and the newest sample is from before.
    is_old: bool,
}

impl Pace {
    pub(super) fn new(every: Duration, idle_every: Option<Duration>, started: Instant) -> Pace {
        Pace {
            every,
            idle_every,
            asked_at: None,
            begun_at: started,
            took: Duration::ZERO,
            has_failed: false,
            is_old: true,
        }
    }

    /// Somebody asks. Whether nobody did before.
    pub(super) fn ask(&mut self, now: Instant) -> bool {
        let was_watched = self.is_watched(now);
        self.asked_at = Some(now);
        // A sample that has just been taken serves as well.
        self.is_old = self.is_old || (!was_watched && now - self.begun_at > self.every);
        !was_watched
    }

    /// A sample was taken.
    pub(super) fn sampled(&mut self, begun_at: Instant, took: Duration) {
        (self.begun_at, self.took, self.has_failed, self.is_old) = (begun_at, took, false, false);
    }

    /// A sample could not be taken.
    pub(super) fn failed(&mut self, begun_at: Instant, took: Duration) {
        self.sampled(begun_at, took);
        self.has_failed = true;
    }

    /// The sample is dropped, because none are taken while nobody asks.
    pub(super) fn stopped(&mut self) {
        self.is_old = true;
    }

    /// Whether the newest sample is too old to answer with it.
    pub(super) fn is_old(&self) -> bool {
        self.is_old
    }

    /// Whether somebody has asked just now. The one place that decides it.
    pub(super) fn is_watched(&self, now: Instant) -> bool {
        self.asked_at.is_some_and(|at| now.saturating_duration_since(at) < IDLE_AFTER)
    }

    /// The time between two samples now.
    pub(super) fn every(&self, now: Instant) -> Duration {
        let idle_every = self.idle_every.filter(|_| !self.is_watched(now));
        let share = match idle_every {
            _ if self.has_failed => FAILED_SHARE,
            Some(_) => IDLE_SHARE,
            None => WATCHED_SHARE,
        };
        self.every.max(idle_every.unwrap_or_default()).max(self.took.saturating_mul(share))
    }

    /// When the next sample is to be taken. `None`: not until somebody asks.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let is_watched = self.is_watched(now);
        if is_watched && self.is_old {
            return Some(now);
        }
        if !is_watched && self.idle_every.is_none() {
            return None;
        }
        // A sample that takes a day is no reason to panic.
        let far = Duration::from_secs(86_400);
        Some(self.begun_at + self.every(now).min(far))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// When the next sample is due, in seconds since the start.
    fn due(pace: &Pace, start: Instant, now: u64) -> Option<u64> {
        pace.due(start + seconds(now)).map(|at| (at - start).as_secs())
    }

    #[test]
    fn samples_are_often_while_somebody_asks_and_seldom_afterwards() {
        let start = Instant::now();
        let mut pace = Pace::new(seconds(2), Some(seconds(30)), start);
        assert_eq!(due(&pace, start, 0), Some(30), "a server that runs for a moment costs the store nothing");
        pace.sampled(start + seconds(30), Duration::from_millis(100));
        assert_eq!(due(&pace, start, 31), Some(60));
        assert!(!pace.is_old());
        assert!(pace.ask(start + seconds(50)), "the task must wake up");
        assert!(pace.is_old(), "the sample is 20 s old");
        assert_eq!(due(&pace, start, 50), Some(50));
        pace.sampled(start + seconds(50), Duration::from_millis(100));
        assert!(!pace.is_old() && !pace.ask(start + seconds(51)));
        assert_eq!((due(&pace, start, 51), due(&pace, start, 110)), (Some(52), Some(52)));
        assert_eq!(due(&pace, start, 111), Some(80), "nobody has asked for a minute");
    }

    #[test]
    fn a_sample_that_takes_long_is_taken_less_often() {
        let start = Instant::now();
        let mut pace = Pace::new(seconds(2), Some(seconds(30)), start);
        pace.sampled(start, seconds(3));
        assert_eq!(due(&pace, start, 4), Some(300), "a hundredth of the time");
        pace.ask(start + seconds(10));
        assert_eq!(due(&pace, start, 10), Some(10), "somebody waits for it");
        pace.sampled(start + seconds(10), seconds(3));
        assert_eq!(due(&pace, start, 13), Some(40), "a tenth of the time");
        assert_eq!(pace.every(start + seconds(13)), seconds(30));
    }

    #[test]
    fn a_store_that_is_back_is_noticed_soon() {
        let start = Instant::now();
        let mut pace = Pace::new(seconds(2), Some(seconds(30)), start);
        pace.ask(start);
        pace.failed(start, seconds(10));
        assert_eq!((due(&pace, start, 10), pace.is_old()), (Some(20), false));
        assert_eq!(due(&pace, start, 100), Some(30), "nobody asks any more");
        pace.ask(start + seconds(100));
        pace.sampled(start + seconds(100), seconds(1));
        assert_eq!(due(&pace, start, 101), Some(110));
    }

    #[test]
    fn without_an_idle_pace_nothing_is_read_while_nobody_asks() {
        let start = Instant::now();
        let mut pace = Pace::new(seconds(2), None, start);
        assert_eq!(due(&pace, start, 1000), None);
        assert!(pace.ask(start + seconds(1000)));
        assert_eq!(due(&pace, start, 1000), Some(1000));
        pace.sampled(start + seconds(1000), Duration::ZERO);
        assert_eq!((due(&pace, start, 1001), due(&pace, start, 1060)), (Some(1002), None));
    }

    #[test]
    fn a_sample_of_just_now_answers_the_first_request() {
        let start = Instant::now();
        let mut pace = Pace::new(seconds(2), Some(seconds(30)), start);
        pace.sampled(start + seconds(30), Duration::ZERO);
        assert!(pace.ask(start + seconds(32)) && !pace.is_old());
        assert_eq!(due(&pace, start, 32), Some(32));
    }
}
