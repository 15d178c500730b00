//! The environment of a running program: the host's clocks, its random source, and tokio.

use std::{
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Clock, Environment, SystemClock, Timestamp, WallTime, clock::Task};
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
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn wall(&self) -> WallTime {
        SystemClock.wall()
    }
}

impl Environment for System {
    fn fill(&self, bytes: &mut [u8]) {
        match STOCK.try_lock() {
            Ok(mut stock) if bytes.len() <= STOCK_MAX => stock.take(bytes, std::process::id()),
            _ => ask_the_system(bytes),
        }
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

/// How many random bytes are fetched at once.
const STOCK_MAX: usize = 512;

/// Every claim has a fresh token, and a system call for each would cost more than the rest of making it.
static STOCK: Mutex<Stock> = Mutex::new(Stock { bytes: [0; STOCK_MAX], left: 0, of: 0 });

/// Random bytes of a process, each given out once.
struct Stock {
    bytes: [u8; STOCK_MAX],
    left: usize,
    of: u32,
}

impl Stock {
    fn take(&mut self, wanted: &mut [u8], process: u32) {
        // A process that was forked has its parent's stock: both would give out the same tokens.
        if self.left < wanted.len() || self.of != process {
            ask_the_system(&mut self.bytes);
            (self.left, self.of) = (STOCK_MAX, process);
        }
        let rest = self.left - wanted.len();
        wanted.copy_from_slice(&self.bytes[rest..self.left]);
        self.bytes[rest..self.left].fill(0);
        self.left = rest;
    }
}

fn ask_the_system(bytes: &mut [u8]) {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    getrandom::fill(bytes).expect("the system's random source does not fail once it has started");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn take(stock: &mut Stock, process: u32) -> [u8; 16] {
        let mut bytes = [0; 16];
        stock.take(&mut bytes, process);
        bytes
    }

    #[test]
    fn no_byte_is_given_out_twice_not_even_by_a_forked_process() {
        let mut parent = Stock { bytes: [0; STOCK_MAX], left: 0, of: 0 };
        let mut seen = HashSet::from([take(&mut parent, 1)]);
        let mut child = Stock { ..parent };
        for _ in 0..100 {
            assert!(seen.insert(take(&mut parent, 1)));
            assert!(seen.insert(take(&mut child, 2)));
        }
        assert!(parent.bytes[parent.left..].iter().all(|&byte| byte == 0), "what was given out is wiped");
    }
}
