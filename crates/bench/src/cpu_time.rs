//! Time spent on a core.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time that all threads of this process have spent on a core so far.
pub fn process_cpu_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

/// Time that this thread has spent on a core so far.
///
/// Preferred over the wall clock for work on one thread: a busy machine needs longer for it, but no more CPU
/// time.
pub fn thread_cpu_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
