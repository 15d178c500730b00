//! Acquire and release: 64 at a time, and one after the other.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use leasehold::Client;
use leasehold_testkit::servers::RedisServer;

use crate::{
    Table,
    bare::{Bare, Sends},
    keep_alive::cpu_time,
};

pub(crate) const TASKS: usize = 64;
pub(crate) const ROUND: Duration = Duration::from_millis(400);
pub(crate) const ROUNDS: usize = 21;

pub(crate) async fn measure(server: &RedisServer, table: &mut Table) {
    let bare = Bare::connect(server.port()).await;
    let leases = leasehold::connect(&server.url()).await.unwrap();
    for (tasks, name) in [(TASKS, "64 tasks"), (1, "one after the other")] {
        // Alternating, so that a machine that slows down slows both.
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        let (mut their_cpu, mut our_cpu) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (pairs, cpu) = rate(tasks, |number| bare_pairs(bare.clone(), number)).await;
            theirs.push(pairs);
            their_cpu.push(cpu);
            let (pairs, cpu) = rate(tasks, |number| our_pairs(leases.clone(), number)).await;
            ours.push(pairs);
            our_cpu.push(cpu);
        }
        let (theirs, ours) = (median(theirs), median(ours));
        table.row(
            "bare scripts, processor time of the client for a pair",
            &format!("{:.1} µs", median(their_cpu)),
        );
        table
            .row("leasehold, processor time of the client for a pair", &format!("{:.1} µs", median(our_cpu)));
        if tasks == 1 {
            table.row("bare scripts, a pair takes", &format!("{:.1} µs", 1e6 / theirs));
            table.row("leasehold, a pair takes", &format!("{:.1} µs", 1e6 / ours));
            let ratio = theirs / ours;
            table.target(
                &format!("{name}: time of a pair, to bare"),
                &format!("{ratio:.3}"),
                "≤ 1.15",
                ratio <= 1.15,
            );
        } else {
            table.row("bare scripts, pairs a second", &format!("{theirs:.0}"));
            table.row("leasehold, pairs a second", &format!("{ours:.0}"));
            let ratio = ours / theirs;
            table.target(
                &format!("{name}: pairs a second, to bare"),
                &format!("{ratio:.3}"),
                "≥ 0.9",
                ratio >= 0.9,
            );
        }
    }
}

pub(crate) async fn bare_pairs<C: Sends>(mut bare: Bare<C>, number: usize) -> u64 {
    let (resource, owner) = (format!("bare/{number}"), format!("{number:032x}"));
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        bare.pair(&resource, &owner).await;
        done += 1;
    }
    done
}

pub(crate) async fn our_pairs(leases: Client, number: usize) -> u64 {
    let id = number.to_string();
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        let lease = leases.lease("ours", &id).acquire().await.unwrap();
        lease.release().await.unwrap();
        done += 1;
    }
    done
}

/// Pairs a second, and microseconds of processor time for each.
pub(crate) async fn rate<F: Future<Output = u64> + Send + 'static>(
    tasks: usize,
    work: impl Fn(usize) -> F,
) -> (f64, f64) {
    let (cpu, started) = (cpu_time(), Instant::now());
    let running: Vec<_> = (0..tasks).map(|number| tokio::spawn(work(number))).collect();
    let mut done = 0;
    for task in running {
        done += task.await.unwrap();
    }
    let cpu = (cpu_time() - cpu).as_secs_f64() * 1e6 / done as f64;
    (done as f64 / started.elapsed().as_secs_f64(), cpu)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
