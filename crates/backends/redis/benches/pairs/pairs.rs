//! Pairs of acquire and release: 64 tasks side by side, and one task alone.

use std::time::{Duration, Instant};

use leasehold_bench::{Table, lease_pairs, median, rate};
use leasehold_testkit::servers::RedisServer;

use crate::bare::{Bare, DriverConnection};

pub(crate) const TASKS: usize = 64;
pub(crate) const ROUND: Duration = Duration::from_millis(400);
pub(crate) const ROUNDS: usize = 21;

pub(crate) async fn measure(server: &RedisServer, table: &mut Table) {
    let bare = Bare::connect(server.port()).await;
    let leases = leasehold::connect(&server.url()).await.unwrap();
    for (tasks, name) in [(TASKS, "64 tasks"), (1, "one after the other")] {
        // The two alternate, so that load on the machine slows both.
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        let (mut their_cpu, mut our_cpu) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let bare_rate = rate(tasks, |number| bare_pairs(bare.clone(), number)).await;
            theirs.push(bare_rate.per_second);
            their_cpu.push(bare_rate.cpu_micros);
            let our_rate = rate(tasks, |number| lease_pairs(leases.clone(), number, ROUND)).await;
            ours.push(our_rate.per_second);
            our_cpu.push(our_rate.cpu_micros);
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

/// Pairs with the bare scripts until [`ROUND`] has passed. Returns how many it completed.
pub(crate) async fn bare_pairs<C: DriverConnection>(mut bare: Bare<C>, number: usize) -> u64 {
    let (resource, owner) = (format!("bare/{number}"), format!("{number:032x}"));
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        bare.pair(&resource, &owner).await;
        done += 1;
    }
    done
}
