//! For your own tests: time that stands still until you move it.
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
//! time.advance(Duration::from_secs(1)).await; // a sixth of the ttl is left: stop working
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

/// Time that stands still until you [advance](ManualTime::advance) it. Clones share it.
///
/// Give the same one to the [`Memory`](crate::Memory) and to the [`Client`](crate::Client). Random numbers are
/// seeded, so a run repeats; owner tokens are therefore no secret: for tests only.
#[derive(Clone)]
pub struct ManualTime(Arc<Mutex<Inner>>);

struct Inner {
    now: Timestamp,
    wall: WallTime,
    random: u64,
    sleepers: BTreeMap<(Timestamp, u64), Waker>,
    next_sleeper: u64,
}

impl ManualTime {
    /// Starts at an arbitrary moment.
    pub fn new() -> ManualTime {
        let (now, wall) =
            (Timestamp::from_nanos(1_000_000_000_000), WallTime::from_micros(1_800_000_000_000_000));
        let sleepers = BTreeMap::new();
        ManualTime(Arc::new(Mutex::new(Inner { now, wall, random: 0x5eed, sleepers, next_sleeper: 0 })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves time, stopping at every timer on the way, and lets the tasks that it wakes run.
    ///
    /// Tasks of the current-thread runtime have settled when this returns; on a multi-thread runtime other workers
    /// may still be at work.
    pub async fn advance(&self, by: Duration) {
        let goal = self.inner().now.after(by);
        settle().await;
        loop {
            let woken = self.inner().step(goal);
            woken.into_iter().for_each(Waker::wake);
            settle().await;
            let inner = self.inner();
            if inner.now >= goal && inner.next_due().is_none_or(|due| due > goal) {
                return;
            }
        }
    }

    /// Moves the clocks without waking a single timer, as a suspended machine or a stopped process sees it.
    pub fn jump(&self, by: Duration) {
        let mut inner = self.inner();
        inner.now = inner.now.after(by);
        inner.wall = inner.wall.after(by);
    }

    /// Moves the calendar clock alone, as someone who sets it.
    pub fn step_wall(&self, by: Duration) {
        let mut inner = self.inner();
        inner.wall = inner.wall.after(by);
    }
}

/// Gives every ready task its turn, several times over: a chain of wake-ups is as long as its code is deep.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

impl Inner {
    fn next_due(&self) -> Option<Timestamp> {
        self.sleepers.keys().next().map(|(due, _)| *due)
    }

    /// To the next timer, but not past the goal; returns whom to wake.
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
        let inner = self.inner();
        write!(f, "ManualTime({:?}, {} sleepers)", inner.now, inner.sleepers.len())
    }
}

impl Clock for ManualTime {
    fn now(&self) -> Timestamp {
        self.inner().now
    }

    fn wall(&self) -> WallTime {
        self.inner().wall
    }
}

impl Environment for ManualTime {
    fn fill(&self, bytes: &mut [u8]) {
        let mut inner = self.inner();
        for chunk in bytes.chunks_mut(8) {
            // splitmix64: enough for a test, and the same every time.
            inner.random = inner.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = inner.random;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }

    fn sleep(&self, duration: Duration) -> Task {
        let time = self.clone();
        let sleeper = {
            let mut inner = self.inner();
            inner.next_sleeper += 1;
            Sleeper { due: inner.now.after(duration), number: inner.next_sleeper, time }
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
        let mut inner = self.time.inner();
        if inner.now >= self.due {
            return Poll::Ready(());
        }
        inner.sleepers.insert((self.due, self.number), waker.clone());
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.time.inner().sleepers.remove(&(self.due, self.number));
    }
}
