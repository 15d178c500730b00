//! The environment of a running program: the host's clocks, its random source, and tokio.

use std::time::Duration;

use leasehold_core::{Clock, Environment, Moment, SystemClock, WallTime, clock::Task};
use tokio::runtime::Handle;

/// The host's clocks, its random source, and a tokio runtime.
#[derive(Clone, Debug)]
pub struct System {
    runtime: Handle,
}

impl System {
    /// On the runtime that this is called in.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn current() -> System {
        System { runtime: Handle::current() }
    }

    /// On this runtime.
    pub fn on(runtime: Handle) -> System {
        System { runtime }
    }
}

impl Clock for System {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn wall(&self) -> WallTime {
        SystemClock.wall()
    }
}

impl Environment for System {
    fn fill(&self, bytes: &mut [u8]) {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        getrandom::fill(bytes).expect("the system's random source does not fail once it has started");
    }

    fn sleep(&self, duration: Duration) -> Task {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, task: Task) {
        self.runtime.spawn(task);
    }
}
