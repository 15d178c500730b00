//! The environment of a real program: the host's clocks and random source, and a tokio runtime (ADR 0001).

use std::{
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{
    Clock, Environment, Error, ErrorKind, Result, SystemClock, Timestamp, WallTime, clock::Task,
};
use tokio::runtime::Handle;

/// The environment of a real program: the host's clocks and random source, and a tokio runtime.
#[derive(Clone, Debug)]
pub struct System {
    runtime: Handle,
}

impl System {
    /// An environment on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn current() -> System {
        System { runtime: Handle::current() }
    }

    /// An environment on the current tokio runtime, if there is one.
    ///
    /// # Errors
    /// `Unsupported` outside of a tokio runtime.
    pub fn try_current() -> Result<System> {
        let no_runtime = |_| Error::new(ErrorKind::Unsupported, NO_RUNTIME);
        Handle::try_current().map(System::on).map_err(no_runtime)
    }

    /// An environment on this runtime.
    pub fn on(runtime: Handle) -> System {
        System { runtime }
    }
}

const NO_RUNTIME: &str = "this thread is not inside of a tokio runtime, and leasehold needs one for its timers and connections: \
                          use `leasehold::blocking`, or call this from `#[tokio::main]`, `Runtime::block_on` or a tokio \
                          task; docs/runtimes.md has a recipe for each executor";

impl Clock for System {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn wall(&self) -> WallTime {
        SystemClock.wall()
    }
}

impl Environment for System {
    fn fill(&self, bytes: &mut [u8]) {
        match POOL.try_lock() {
            Ok(mut pool) if bytes.len() <= POOL_SIZE => pool.take(bytes, std::process::id()),
            _ => fill_from_system(bytes),
        }
    }

    /// splitmix64, not the system's source: every grant and renewal draws jitter, which is not worth a system call.
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
        // A timer keeps the runtime on which it was made. The caller's own is best, because it lives as long as the caller
        // waits. Under another executor there is none, and then ours serves as well.
        let _entered = Handle::try_current().is_err().then(|| self.runtime.enter());
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, task: Task) {
        self.runtime.spawn(task);
    }

    fn within(&self, step: &mut dyn FnMut()) {
        let _entered = self.runtime.enter();
        step();
    }
}

/// How many random bytes are read from the system at once.
const POOL_SIZE: usize = 512;

/// Every claim has a fresh owner token. A system call for each would cost more than everything else about a claim.
static POOL: Mutex<RandomPool> = Mutex::new(RandomPool { bytes: [0; POOL_SIZE], left: 0, process: 0 });

/// Random bytes of one process. Each byte is given out once, and then wiped.
struct RandomPool {
    bytes: [u8; POOL_SIZE],
    left: usize,
    process: u32,
}

impl RandomPool {
    fn take(&mut self, wanted: &mut [u8], process: u32) {
        // A forked process has a copy of its parent's pool. Without this check both would give out the same tokens.
        if self.left < wanted.len() || self.process != process {
            fill_from_system(&mut self.bytes);
            (self.left, self.process) = (POOL_SIZE, process);
        }
        let rest = self.left - wanted.len();
        wanted.copy_from_slice(&self.bytes[rest..self.left]);
        self.bytes[rest..self.left].fill(0);
        self.left = rest;
    }
}

fn fill_from_system(bytes: &mut [u8]) {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    getrandom::fill(bytes).expect("the system's random source does not fail after the boot");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn take(pool: &mut RandomPool, process: u32) -> [u8; 16] {
        let mut bytes = [0; 16];
        pool.take(&mut bytes, process);
        bytes
    }

    #[test]
    fn no_byte_is_given_out_twice_not_even_by_a_forked_process() {
        let mut parent = RandomPool { bytes: [0; POOL_SIZE], left: 0, process: 0 };
        let mut seen = HashSet::from([take(&mut parent, 1)]);
        let mut child = RandomPool { ..parent };
        for _ in 0..100 {
            assert!(seen.insert(take(&mut parent, 1)));
            assert!(seen.insert(take(&mut child, 2)));
        }
        assert!(
            parent.bytes[parent.left..].iter().all(|&byte| byte == 0),
            "bytes that were given out are wiped"
        );
    }
}
