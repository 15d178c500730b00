//! The backend under test, and how time passes for it.

use std::{any::Any, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use leasehold::{System, testing::ManualTime};
use leasehold_core::{Backend, Clock, Environment, SystemClock, Timestamp};

/// The backend that a test checks.
///
/// Every test opens a new one, inside of the test's own runtime. All tests may share the server or file
/// behind it, because every test uses resource names of its own.
///
/// ```
/// use {leasehold::{Memory, testing::ManualTime}, leasehold_testkit::BackendUnderTest, std::sync::Arc};
///
/// let time = ManualTime::new();
/// let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
/// let target = BackendUnderTest::manual(memory.clone(), time).opened_again(memory);
/// assert!(target.is_exact());
/// ```
pub struct BackendUnderTest {
    backend: Arc<dyn Backend>,
    second: Option<Arc<dyn Backend>>,
    reopen: Option<Opener>,
    clock: TargetClock,
    short_ttl: Duration,
    grace: Duration,
    kept_alive: Vec<Box<dyn Any + Send + Sync>>,
}

/// Short enough to wait for, long enough for a few calls on a loaded machine.
const DEFAULT_SHORT_TTL: Duration = Duration::from_millis(600);
const REAL_CLOCK_SLACK: Duration = Duration::from_millis(40);

type Opener = Box<dyn Fn() -> OpeningBackend + Send + Sync>;
type OpeningBackend = Pin<Box<dyn Future<Output = Arc<dyn Backend>>>>;

enum TargetClock {
    Manual(ManualTime),
    Real,
}

impl BackendUnderTest {
    /// A backend whose clock is `time`. The tests advance the clock and expect exact durations.
    pub fn manual(backend: Arc<dyn Backend>, time: ManualTime) -> BackendUnderTest {
        BackendUnderTest::new(backend, TargetClock::Manual(time))
    }

    /// A backend with a real clock. The tests sleep, and tolerate the delays of a loaded machine.
    pub fn real(backend: Arc<dyn Backend>) -> BackendUnderTest {
        BackendUnderTest::new(backend, TargetClock::Real)
    }

    fn new(backend: Arc<dyn Backend>, clock: TargetClock) -> BackendUnderTest {
        let (short_ttl, grace) = (DEFAULT_SHORT_TTL, Duration::ZERO);
        BackendUnderTest {
            backend,
            second: None,
            reopen: None,
            clock,
            short_ttl,
            grace,
            kept_alive: Vec::new(),
        }
    }

    /// Adds a second handle to the same state, as another process would open it.
    #[must_use]
    pub fn opened_again(mut self, backend: Arc<dyn Backend>) -> BackendUnderTest {
        self.second = Some(backend);
        self
    }

    /// Sets how to open the same state once more, as a process does that starts later than the others.
    #[must_use]
    pub fn reopened_by<F, O>(mut self, open: F) -> BackendUnderTest
    where
        F: Fn() -> O + Send + Sync + 'static,
        O: Future<Output = Arc<dyn Backend>> + 'static,
    {
        self.reopen = Some(Box::new(move || Box::pin(open())));
        self
    }

    /// Sets the shortest ttl that the tests use: 600 ms by default. A backend that counts in seconds needs
    /// more.
    #[must_use]
    pub fn short_ttl(mut self, ttl: Duration) -> BackendUnderTest {
        self.short_ttl = ttl;
        self
    }

    /// Sets how much later than its ttl a grant may expire: zero by default.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> BackendUnderTest {
        self.grace = grace;
        self
    }

    /// Keeps a value, such as a folder or a server, alive as long as the test runs.
    #[must_use]
    pub fn keeping(mut self, alive: impl Any + Send + Sync) -> BackendUnderTest {
        self.kept_alive.push(Box::new(alive));
        self
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The second handle, or the first if there is no second.
    pub fn second(&self) -> &Arc<dyn Backend> {
        self.second.as_ref().unwrap_or(&self.backend)
    }

    /// Whether there is a second handle.
    pub fn is_opened_twice(&self) -> bool {
        self.second.is_some()
    }

    /// A new handle, if [`reopened_by`](BackendUnderTest::reopened_by) is set.
    pub async fn reopen(&self) -> Option<Arc<dyn Backend>> {
        match &self.reopen {
            Some(open) => Some(open().await),
            None => None,
        }
    }

    /// Whether [`reopened_by`](BackendUnderTest::reopened_by) is set.
    pub fn can_reopen(&self) -> bool {
        self.reopen.is_some()
    }

    /// Wraps both handles.
    #[must_use]
    pub fn wrapped(mut self, wrap: impl Fn(Arc<dyn Backend>) -> Arc<dyn Backend>) -> BackendUnderTest {
        self.backend = wrap(self.backend);
        self.second = self.second.map(wrap);
        self
    }

    /// Makes this much time pass for the backend.
    pub async fn pass(&self, duration: Duration) {
        match &self.clock {
            TargetClock::Manual(time) => time.advance(duration).await,
            TargetClock::Real => tokio::time::sleep(duration).await,
        }
    }

    /// Lets other tasks run, and a few milliseconds pass.
    pub async fn let_tasks_run(&self) {
        self.pass(Duration::from_millis(5)).await;
        if self.is_exact() {
            // Threads of the backend need real time for their work, whatever its clock shows.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets so much time pass that a grant or a place with this ttl has certainly expired.
    pub async fn let_expire(&self, ttl: Duration) {
        self.pass(if self.is_exact() { ttl } else { ttl + ttl / 2 + self.grace }).await;
    }

    /// The current time of the backend's clock.
    pub fn now(&self) -> Timestamp {
        match &self.clock {
            TargetClock::Manual(time) => time.now(),
            TargetClock::Real => SystemClock.now(),
        }
    }

    /// Whether the tests advance the backend's clock, so that durations are exact.
    pub fn is_exact(&self) -> bool {
        matches!(self.clock, TargetClock::Manual(_))
    }

    /// The shortest ttl that the tests use.
    pub fn shortest_ttl(&self) -> Duration {
        self.short_ttl
    }

    /// How much later than its ttl a grant may expire.
    pub fn expiry_grace(&self) -> Duration {
        self.grace
    }

    /// The tolerance of durations: rounding and the delays of a loaded machine.
    pub fn slack(&self) -> Duration {
        if self.is_exact() { Duration::ZERO } else { REAL_CLOCK_SLACK }
    }

    /// The clock, random numbers and tasks for wrappers of this backend.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn environment(&self) -> Arc<dyn Environment> {
        match &self.clock {
            TargetClock::Manual(time) => Arc::new(time.clone()),
            TargetClock::Real => Arc::new(System::current()),
        }
    }
}

impl fmt::Debug for BackendUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackendUnderTest { backend, second, short_ttl, grace, .. } = self;
        f.debug_struct("BackendUnderTest")
            .field("backend", backend)
            .field("opened_twice", &second.is_some())
            .field("exact", &self.is_exact())
            .field("short_ttl", short_ttl)
            .field("grace", grace)
            .finish_non_exhaustive()
    }
}
