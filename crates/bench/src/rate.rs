//! How many operations a second tasks get done side by side.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold::Client;

use crate::process_cpu_time;

/// What tasks got done together.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Operations a second.
    pub per_second: f64,
    /// Microseconds of CPU time that this process spent on one operation.
    pub cpu_micros: f64,
}

/// Runs `tasks` tasks side by side and adds up what they got done.
///
/// `work` is called with the number of the task and returns how many operations it completed.
///
/// # Panics
/// If a task panics, or outside of a tokio runtime.
pub async fn rate<F: Future<Output = u64> + Send + 'static>(tasks: usize, work: impl Fn(usize) -> F) -> Rate {
    let (cpu, started) = (process_cpu_time(), Instant::now());
    let running: Vec<_> = (0..tasks).map(|number| tokio::spawn(work(number))).collect();
    let mut done = 0;
    for task in running {
        done += task.await.expect("a task of a benchmark does not panic");
    }
    let cpu_micros = (process_cpu_time() - cpu).as_secs_f64() * 1e6 / done as f64;
    Rate { per_second: done as f64 / started.elapsed().as_secs_f64(), cpu_micros }
}

/// Acquires and releases the lease `ours/<number>` until `lasting` has passed. Returns how many pairs it
/// completed.
///
/// # Panics
/// If an acquire or a release fails.
pub async fn lease_pairs(leases: Client, number: usize, lasting: Duration) -> u64 {
    let id = number.to_string();
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < lasting {
        let lease = leases.lease("ours", &id).acquire().await.expect("nobody else wants it");
        lease.release().await.expect("it was held");
        done += 1;
    }
    done
}
