//! The ticks of a job, each when it is due.

use std::{collections::VecDeque, time::Duration};

use leasehold::{Client, Error, ErrorKind, Result};

use super::{cron::Missed, expression::Schedule, instant::Instant, memory::MISSED_MAX};

/// The ticks of a job, each when it is due.
#[derive(Debug)]
pub struct Ticks {
    client: Client,
    schedule: Schedule,
    missed: Missed,
    /// What is not later than this is not looked at any more.
    seen: Instant,
    due: VecDeque<Instant>,
}

/// What is later than this is missed.
const LATE: Duration = Duration::from_secs(60);
/// Longer naps would not notice that the clock was set, or that the machine slept.
const NAP: Duration = Duration::from_secs(20);

impl Ticks {
    pub(super) fn new(client: &Client, schedule: &Schedule, missed: Missed, seen: Instant) -> Ticks {
        Ticks { client: client.clone(), schedule: schedule.clone(), missed, seen, due: VecDeque::new() }
    }

    /// The next tick, when it is due. It may be somebody else's: [`Cron::claim`](super::Cron::claim) tells.
    ///
    /// # Cancel safety
    /// Dropped before it is due, nothing is lost.
    ///
    /// # Errors
    /// `Invalid` if there is none any more.
    pub async fn next(&mut self) -> Result<Instant> {
        loop {
            if let Some(at) = self.due.pop_front() {
                return Ok(at);
            }
            let now = Instant::of(self.client.environment().wall());
            self.due = self.due_at(now);
            // Even if the clock was put back: what was run before is claimed, and not run again.
            self.seen = now;
            if self.due.is_empty() {
                self.nap(now).await?;
            }
        }
    }

    /// The ticks after the last that was seen that are to be run now, in order.
    fn due_at(&self, now: Instant) -> VecDeque<Instant> {
        let most = match self.missed {
            Missed::Skip | Missed::Latest => 1,
            Missed::Last(most) => MISSED_MAX.min(most as usize),
        };
        let before = |tick: &Instant| self.schedule.last_until(tick.second_before());
        let ticks = std::iter::successors(self.schedule.last_until(now), before);
        let mut ticks: Vec<_> = ticks.take_while(|tick| *tick > self.seen).take(most).collect();
        ticks.retain(|tick| self.missed != Missed::Skip || tick.until(now) <= LATE);
        ticks.into_iter().rev().collect()
    }

    /// Sleeps until the next tick, or less.
    async fn nap(&self, now: Instant) -> Result<()> {
        let never = || Error::new(ErrorKind::Invalid, format!("{} is never due again", self.schedule));
        let next = self.schedule.next_after(now).ok_or_else(never)?.wall();
        let environment = self.client.environment();
        let left = next.as_micros().saturating_sub(environment.wall().as_micros());
        environment.sleep(Duration::from_micros(left).min(NAP)).await;
        Ok(())
    }
}
