//! The ticks of a job, each when it is due.
//!
//! 1. Look back from now: which ticks came after the last time we looked? Which of them to run is up to
//!    [`Missed`].
//! 2. If there is none, sleep until the next tick, but at most 20 seconds: the clock may be set, or the
//!    machine may sleep.
//! 3. Go on with 1.

use std::{collections::VecDeque, time::Duration};

use leasehold::{Client, Error, ErrorKind, Result};

use super::{cron::Missed, expression::Schedule, retention::MISSED_MAX, tick_time::TickTime};

/// The ticks of a job, each when it is due.
#[derive(Debug)]
pub struct Ticks {
    client: Client,
    schedule: Schedule,
    missed: Missed,
    /// The time up to which ticks have been returned or skipped.
    looked_until: TickTime,
    due: VecDeque<TickTime>,
}

/// A tick that is more than this late is missed.
const LATE: Duration = Duration::from_secs(60);
/// The longest sleep. A longer one would not notice that the clock was set, or that the machine slept.
const SLEEP_MAX: Duration = Duration::from_secs(20);

impl Ticks {
    pub(super) fn new(client: &Client, schedule: &Schedule, missed: Missed, looked_until: TickTime) -> Ticks {
        Ticks {
            client: client.clone(),
            schedule: schedule.clone(),
            missed,
            looked_until,
            due: VecDeque::new(),
        }
    }

    /// Waits for the next tick, and returns it when it is due. Another machine may have claimed it:
    /// [`Cron::claim`](super::Cron::claim) tells.
    ///
    /// # Cancel safety
    /// If it is dropped before the tick is due, no tick is lost.
    ///
    /// # Errors
    /// `Invalid` if the schedule has no tick any more.
    pub async fn next(&mut self) -> Result<TickTime> {
        loop {
            if let Some(at) = self.due.pop_front() {
                return Ok(at);
            }
            let now = TickTime::of(self.client.environment().wall());
            self.due = self.due_at(now);
            // Also if the clock was set back: ticks that ran before are claimed, so they do not run again.
            self.looked_until = now;
            if self.due.is_empty() {
                self.sleep(now).await?;
            }
        }
    }

    /// The ticks since the last look that have to run now, in order.
    fn due_at(&self, now: TickTime) -> VecDeque<TickTime> {
        let limit = match self.missed {
            Missed::Skip | Missed::Latest => 1,
            Missed::Last(count) => MISSED_MAX.min(count as usize),
        };
        let before = |tick: &TickTime| self.schedule.last_until(tick.second_before());
        let ticks = std::iter::successors(self.schedule.last_until(now), before);
        let mut ticks: Vec<_> = ticks.take_while(|tick| *tick > self.looked_until).take(limit).collect();
        ticks.retain(|tick| self.missed != Missed::Skip || tick.until(now) <= LATE);
        ticks.into_iter().rev().collect()
    }

    /// Sleeps until the next tick, or for [`SLEEP_MAX`].
    async fn sleep(&self, now: TickTime) -> Result<()> {
        let no_tick = || {
            let message = format!("the schedule {} has no tick after {now}", self.schedule);
            Error::new(ErrorKind::Invalid, message)
        };
        let next = self.schedule.next_after(now).ok_or_else(no_tick)?.wall();
        let environment = self.client.environment();
        let left = next.as_micros().saturating_sub(environment.wall().as_micros());
        environment.sleep(Duration::from_micros(left).min(SLEEP_MAX)).await;
        Ok(())
    }
}
