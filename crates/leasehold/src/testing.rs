//! For your own tests: a clock that moves only when you move it.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use leasehold::{Client, Memory, testing::ManualTime};
//! use std::{sync::Arc, time::Duration};
//!
//! let time = ManualTime::new();
//! let memory = Memory::in_environment(Arc::new(time.clone()));
//! let leases = Client::builder(Arc::new(memory)).environment(Arc::new(time.clone())).build();
//!
//! let lease = leases.lease("report", "42").ttl(Duration::from_secs(30)).renew(false).acquire().await?;
//! time.advance(Duration::from_secs(24)).await;
//! assert!(lease.check().is_ok());
//! time.advance(Duration::from_secs(1)).await; // a sixth of the ttl is left: the lease is over
//! assert!(lease.check().is_err());
//! # Ok(()) }
//! ```

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use leasehold_core::{Clock, Environment, Timestamp, WallTime, clock::Task};

/// A clock that moves only when you [advance](ManualTime::advance) it. Clones share the time.
///
/// Give the same clock to the [`Memory`](crate::Memory) and to the [`Client`](crate::Client). Its random numbers are the
/// same in every run, so owner tokens are not secret: use it in tests only.
#[derive(Clone)]
pub struct ManualTime(Arc<Mutex<ManualTimeState>>);

struct ManualTimeState {
    now: Timestamp,
    wall: WallTime,
    random: u64,
    sleepers: BTreeMap<(Timestamp, u64), Waker>,
    next_sleeper: u64,
}

impl ManualTime {
    /// A clock that starts at an arbitrary moment.
    pub fn new() -> ManualTime {
        let (now, wall) =
            (Timestamp::from_nanos(1_000_000_000_000), WallTime::from_micros(1_800_000_000_000_000));
        let sleepers = BTreeMap::new();
        ManualTime(Arc::new(Mutex::new(ManualTimeState {
            now,
            wall,
            random: 0x5eed,
            sleepers,
            next_sleeper: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, ManualTimeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the clocks forward. Stops at every timer on the way, and lets the tasks run that it wakes.
    ///
    /// On a current-thread runtime, no task is ready to run any more when this returns. On a multi-thread runtime, other
    /// workers may still be running tasks.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the clocks may have moved by less.
    pub async fn advance(&self, by: Duration) {
        let goal = self.state().now.after(by);
        settle().await;
        loop {
            // One timer at a time: a task that it wakes may set another timer before the goal.
            let woken = self.state().step(goal);
            woken.into_iter().for_each(Waker::wake);
            settle().await;
            let state = self.state();
            if state.now >= goal && state.next_due().is_none_or(|due| due > goal) {
                return;
            }
        }
    }

    /// Moves the clocks without waking any timer, as after a suspend of the machine or a stop of the process.
    pub fn jump(&self, by: Duration) {
        let mut state = self.state();
        state.now = state.now.after(by);
        state.wall = state.wall.after(by);
    }

    /// Moves only the calendar clock forward, as when it is set.
    pub fn step_wall(&self, by: Duration) {
        let mut state = self.state();
        state.wall = state.wall.after(by);
    }

    /// Moves only the calendar clock back, as when it is set.
    pub fn step_wall_back(&self, by: Duration) {
        let mut state = self.state();
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        state.wall = WallTime::from_micros(state.wall.as_micros().saturating_sub(by));
    }
}

/// How often to yield until no task is ready any more: one task wakes the next, in chains of at most about this length.
const SETTLE_YIELDS: u32 = 64;

/// Lets every ready task run, and the tasks that those wake.
async fn settle() {
    for _ in 0..SETTLE_YIELDS {
        tokio::task::yield_now().await;
    }
}

impl ManualTimeState {
    fn next_due(&self) -> Option<Timestamp> {
        self.sleepers.keys().next().map(|(due, _)| *due)
    }

    /// Moves to the next timer, but not past the goal. Returns the timers to wake.
    fn step(&mut self, goal: Timestamp) -> Vec<Waker> {
        let next = self.next_due().map_or(goal, |due| due.min(goal)).max(self.now);
        self.wall = self.wall.after(self.now.until(next));
        self.now = next;
        let later = self.sleepers.split_off(&(next.after(Duration::from_nanos(1)), 0));
        std::mem::replace(&mut self.sleepers, later).into_values().collect()
    }
}

impl Default for ManualTime {
    fn default() -> ManualTime {
        ManualTime::new()
    }
}

impl fmt::Debug for ManualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        write!(f, "ManualTime({:?}, {} sleepers)", state.now, state.sleepers.len())
    }
}

impl Clock for ManualTime {
    fn now(&self) -> Timestamp {
        self.state().now
    }

    fn wall(&self) -> WallTime {
        self.state().wall
    }
}

impl Environment for ManualTime {
    fn fill(&self, bytes: &mut [u8]) {
        let mut state = self.state();
        for chunk in bytes.chunks_mut(8) {
            // splitmix64: good enough for a test, and the same in every run.
            state.random = state.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state.random;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }

    fn sleep(&self, duration: Duration) -> Task {
        let time = self.clone();
        let sleeper = {
            let mut state = self.state();
            state.next_sleeper += 1;
            Sleeper { due: state.now.after(duration), number: state.next_sleeper, time }
        };
        Box::pin(poll_fn(move |cx| sleeper.poll(cx.waker())))
    }

    fn spawn(&self, task: Task) {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        tokio::spawn(task);
    }
}

struct Sleeper {
    time: ManualTime,
    due: Timestamp,
    number: u64,
}

impl Sleeper {
    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.time.state();
        if state.now >= self.due {
            return Poll::Ready(());
        }
        state.sleepers.insert((self.due, self.number), waker.clone());
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.time.state().sleepers.remove(&(self.due, self.number));
    }
}
