//! The backend under test, and how time passes for it.

use std::{any::Any, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use leasehold::{System, testing::ManualTime};
use leasehold_core::{Backend, Clock, Environment, SystemClock, Timestamp};

/// A backend on which tests are played.
///
/// A fresh one is made for every test, inside of that test's own runtime; the server or file behind it may be
/// shared by all, because every test uses names of its own.
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
    again: Option<Arc<dyn Backend>>,
    anew: Option<Opener>,
    time: Time,
    short_ttl: Duration,
    grace: Duration,
    kept_alive: Vec<Box<dyn Any + Send + Sync>>,
}

type Opener = Box<dyn Fn() -> Opening + Send + Sync>;
type Opening = Pin<Box<dyn Future<Output = Arc<dyn Backend>>>>;

enum Time {
    Manual(ManualTime),
    Real,
}

impl BackendUnderTest {
    /// A backend whose clock is `time`: the tests move it, and expect durations to the millisecond.
    pub fn manual(backend: Arc<dyn Backend>, time: ManualTime) -> BackendUnderTest {
        BackendUnderTest::new(backend, Time::Manual(time))
    }

    /// A backend with a clock of its own: the tests really wait, and allow for a loaded machine.
    pub fn real(backend: Arc<dyn Backend>) -> BackendUnderTest {
        BackendUnderTest::new(backend, Time::Real)
    }

    fn new(backend: Arc<dyn Backend>, time: Time) -> BackendUnderTest {
        let (short_ttl, grace) = (Duration::from_millis(600), Duration::ZERO);
        BackendUnderTest { backend, again: None, anew: None, time, short_ttl, grace, kept_alive: Vec::new() }
    }

    /// A second handle to the same state, as another process would open it.
    #[must_use]
    pub fn opened_again(mut self, backend: Arc<dyn Backend>) -> BackendUnderTest {
        self.again = Some(backend);
        self
    }

    /// How to open the same state once more, later: as a process that starts after others have been at work.
    #[must_use]
    pub fn reopened_by<F, O>(mut self, open: F) -> BackendUnderTest
    where
        F: Fn() -> O + Send + Sync + 'static,
        O: Future<Output = Arc<dyn Backend>> + 'static,
    {
        self.anew = Some(Box::new(move || Box::pin(open())));
        self
    }

    /// The shortest ttl that the tests ask for: 600 ms unless set. A backend that counts in seconds needs more.
    #[must_use]
    pub fn short_ttl(mut self, ttl: Duration) -> BackendUnderTest {
        self.short_ttl = ttl;
        self
    }

    /// How much later than its ttl a grant may be found to have ended: zero unless set.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> BackendUnderTest {
        self.grace = grace;
        self
    }

    /// Keeps something alive as long as the stage: a directory, a server.
    #[must_use]
    pub fn keeping(mut self, alive: impl Any + Send + Sync) -> BackendUnderTest {
        self.kept_alive.push(Box::new(alive));
        self
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The second handle; the first, if it cannot be opened twice.
    pub fn second(&self) -> &Arc<dyn Backend> {
        self.again.as_ref().unwrap_or(&self.backend)
    }

    /// Whether there is a second handle.
    pub fn is_opened_twice(&self) -> bool {
        self.again.is_some()
    }

    /// A handle opened just now, if the stage knows how.
    pub async fn reopen(&self) -> Option<Arc<dyn Backend>> {
        match &self.anew {
            Some(open) => Some(open().await),
            None => None,
        }
    }

    /// Whether the stage knows how to open the state once more.
    pub fn can_reopen(&self) -> bool {
        self.anew.is_some()
    }

    /// The same stage, with both its handles wrapped.
    #[must_use]
    pub fn wrapped(mut self, wrap: impl Fn(Arc<dyn Backend>) -> Arc<dyn Backend>) -> BackendUnderTest {
        self.backend = wrap(self.backend);
        self.again = self.again.map(wrap);
        self
    }

    /// Makes this much time pass for the backend.
    pub async fn pass(&self, duration: Duration) {
        match &self.time {
            Time::Manual(time) => time.advance(duration).await,
            Time::Real => tokio::time::sleep(duration).await,
        }
    }

    /// Gives tasks beside the test a turn, and lets a little time pass.
    pub async fn let_tasks_run(&self) {
        self.pass(Duration::from_millis(5)).await;
        if self.is_exact() {
            // Work that a backend does on threads of its own needs real time, whatever its clock says.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets a grant or place of this ttl run out, for certain.
    pub async fn let_expire(&self, ttl: Duration) {
        self.pass(if self.is_exact() { ttl } else { ttl + ttl / 2 + self.grace }).await;
    }

    /// Now, for measuring what a call took.
    pub fn now(&self) -> Timestamp {
        match &self.time {
            Time::Manual(time) => time.now(),
            Time::Real => SystemClock.now(),
        }
    }

    /// Whether the tests own the backend's clock.
    pub fn is_exact(&self) -> bool {
        matches!(self.time, Time::Manual(_))
    }

    /// The shortest ttl that the tests ask for.
    pub fn shortest_ttl(&self) -> Duration {
        self.short_ttl
    }

    /// How much later than its ttl a grant may be found to have ended.
    pub fn expiry_grace(&self) -> Duration {
        self.grace
    }

    /// By how much two clocks that started together may be apart: rounding, and a loaded machine.
    pub fn slack(&self) -> Duration {
        if self.is_exact() { Duration::ZERO } else { Duration::from_millis(40) }
    }

    /// Time, chance and tasks for wrappers of this stage's backend.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn environment(&self) -> Arc<dyn Environment> {
        match &self.time {
            Time::Manual(time) => Arc::new(time.clone()),
            Time::Real => Arc::new(System::current()),
        }
    }
}

impl fmt::Debug for BackendUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackendUnderTest { backend, again, short_ttl, grace, .. } = self;
        f.debug_struct("BackendUnderTest")
            .field("backend", backend)
            .field("opened_twice", &again.is_some())
            .field("exact", &self.is_exact())
            .field("short_ttl", short_ttl)
            .field("grace", grace)
            .finish_non_exhaustive()
    }
}
