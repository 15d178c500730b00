//! The environment of a running program: the host's clocks, its random source, and tokio.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

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

    /// splitmix64: jitter is drawn for every grant and every renewal, and is not worth a system call each.
    fn random(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        static STATE: OnceLock<AtomicU64> = OnceLock::new();
        let state = STATE.get_or_init(|| {
            let mut seed = [0; 8];
            self.fill(&mut seed);
            AtomicU64::new(u64::from_ne_bytes(seed))
        });
        let mut z = state.fetch_add(STEP, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn sleep(&self, duration: Duration) -> Task {
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, task: Task) {
        self.runtime.spawn(task);
    }
}
