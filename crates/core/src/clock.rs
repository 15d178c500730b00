//! Time, random numbers, sleeping and tasks, behind one trait. ADR 0001.
//!
//! Nothing in this crate or in the engine reads a clock, draws a random number, sleeps or spawns except through
//! these traits (`clippy.toml` refuses it). So a test can own time, and a seed can replay a run.

use std::{fmt, future::Future, pin::Pin, time::Duration};

/// A point in time on the monotonic clock of this host: nanoseconds since its start. The clock also counts while the machine
/// is suspended. Timestamps of two hosts, or of two boots, cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Later than every other timestamp.
    pub const NEVER: Timestamp = Timestamp(u64::MAX);

    /// From nanoseconds since the clock's start.
    pub const fn from_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This much later; stops at [`Timestamp::NEVER`].
    #[must_use]
    pub fn after(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// This much earlier; stops at the clock's start.
    #[must_use]
    pub fn before(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from this timestamp to `later`; zero if `later` is earlier.
    pub fn until(self, later: Timestamp) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{:?}", Duration::from_nanos(self.0))
    }
}

/// A reading of the wall clock, in microseconds since 1970. The wall clock can be set: never decide an expiry by it alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct WallTime(u64);

impl WallTime {
    /// From microseconds since 1970.
    pub const fn from_micros(micros: u64) -> WallTime {
        WallTime(micros)
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This much later.
    #[must_use]
    pub fn after(self, by: Duration) -> WallTime {
        WallTime(self.0.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
    }

    /// As a time of the standard library.
    pub fn to_system_time(self) -> std::time::SystemTime {
        std::time::UNIX_EPOCH + Duration::from_micros(self.0)
    }
}

/// Reads time.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, on a clock that also counts while the machine is suspended. Never goes back.
    fn now(&self) -> Timestamp;
    /// Now, by the wall clock.
    fn wall(&self) -> WallTime;
}

/// A boxed task.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// All that the engine needs from the outside besides a backend: time, random numbers, sleeping and tasks.
pub trait Environment: Clock {
    /// Fills the bytes from a secure random source.
    fn fill(&self, bytes: &mut [u8]);
    /// A random number for jitter. It is not a secret, so it need not come from the secure source.
    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_ne_bytes(bytes)
    }
    /// Resolves after about this long. Read the clock afterwards: timers and the clock may differ.
    fn sleep(&self, duration: Duration) -> Task;
    /// Runs the task in the background. If the runtime has stopped, the task is dropped.
    fn spawn(&self, task: Task);
    /// Runs `step`, one poll of a request to a backend, where the backend can open connections and make timers. A client's
    /// futures may be polled by another executor than the one on which its backend runs.
    fn within(&self, step: &mut dyn FnMut()) {
        step();
    }
}

/// The host's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// `CLOCK_BOOTTIME` counts during suspend. On Linux `std::time::Instant` does not: a laptop that was suspended for longer
/// than its lease would wake up and still treat the lease as valid.
#[cfg(target_os = "linux")]
const COUNTS_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On Darwin the monotonic clock counts suspend.
#[cfg(not(target_os = "linux"))]
const COUNTS_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        let time = rustix::time::clock_gettime(COUNTS_SUSPEND);
        let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
        Timestamp(seconds.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0))
    }

    fn wall(&self) -> WallTime {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
        WallTime(seconds.unwrap_or(0) * 1_000_000 + nanos.unwrap_or(0) / 1_000)
    }
}

#[cfg(windows)]
compile_error!("leasehold does not support Windows yet");
