//! What the backend and the engine cost on top of etcd itself, as ratios within one run.
//!
//! ```text
//! cargo xtask bench etcd [acquire] [pairs] [--check]
//! ```
#![allow(clippy::disallowed_methods, reason = "benchmarks run in real time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run may panic")]

use std::{
    future::Future,
    process::ExitCode,
    time::{Duration, Instant},
};

use etcd_client::{
    Client as Bare, Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
};
use leasehold::Client;
use leasehold_testkit::servers::EtcdCluster;

const NAMES: [&str; 2] = ["acquire", "pairs"];
const TASKS: usize = 64;
const ROUND: Duration = Duration::from_millis(600);
const ROUNDS: usize = 15;
const ACQUIRES: usize = 1_000;

fn main() -> ExitCode {
    // `cargo bench` and `cargo test` add arguments of their own.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--test" || arg == "--list") || !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS; // run as a test: there is nothing to check
    }
    let named: Vec<&str> = args.iter().map(String::as_str).filter(|arg| NAMES.contains(arg)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut missed = false;
    for name in NAMES.into_iter().filter(|name| named.is_empty() || named.contains(name)) {
        let cluster = EtcdCluster::start(1);
        println!("\n{name}");
        missed |= !runtime.block_on(async {
            let bare = Bare::connect([format!("127.0.0.1:{}", cluster.ports()[0])], None).await.unwrap();
            let leases = leasehold::connect(&cluster.url()).await.unwrap();
            if name == "acquire" { acquire(bare, leases).await } else { pairs(bare, leases).await }
        });
    }
    if missed && args.iter().any(|arg| arg == "--check") { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn row(name: &str, measured: &str) {
    println!("  {name:<62} {measured:>16}");
}

fn target(name: &str, ratio: f64, wanted: &str, met: bool) -> bool {
    println!("  {name:<62} {ratio:>16.3}   {wanted:<8} {}", if met { '✓' } else { '✗' });
    met
}

/// The transaction that a lock comes down to at the least: put under a lease, if the key is not there.
fn put_if_absent(key: &str, lease: i64) -> Txn {
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Equal, 0)])
        .and_then([TxnOp::put(key, "", Some(PutOptions::new().with_lease(lease)))])
        .or_else([TxnOp::get(key, None)])
}

/// One after the other: how long an acquire takes, beside one bare transaction. Alternating, so that a machine that
/// slows down slows both.
async fn acquire(mut bare: Bare, leases: Client) -> bool {
    let lease = bare.lease_grant(600, None).await.unwrap().id();
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for number in 0..ACQUIRES {
        let started = Instant::now();
        assert!(bare.txn(put_if_absent("bare/1", lease)).await.unwrap().succeeded());
        let took = started.elapsed();
        bare.delete("bare/1", None).await.unwrap();
        let started = Instant::now();
        let held = leases.lease("ours", "1").acquire().await.unwrap();
        let took_us = started.elapsed();
        held.release().await.unwrap();
        // The first ones find nothing ready.
        if number >= ACQUIRES / 10 {
            theirs.push(took.as_secs_f64() * 1e6);
            ours.push(took_us.as_secs_f64() * 1e6);
        }
    }
    let (theirs, ours) = (median(theirs), median(ours));
    row("one bare transaction", &format!("{theirs:.0} µs"));
    row("leasehold, an acquire", &format!("{ours:.0} µs"));
    let ratio = ours / theirs;
    target("time of an acquire, to one bare transaction", ratio, "≤ 1.2", ratio <= 1.2)
}

/// Acquire and release, 64 at a time, beside a client that grants a lease for every lock.
async fn pairs(bare: Bare, leases: Client) -> bool {
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    rate(|number| our_pairs(leases.clone(), number)).await;
    for _ in 0..ROUNDS {
        theirs.push(rate(|number| their_pairs(bare.clone(), number)).await);
        ours.push(rate(|number| our_pairs(leases.clone(), number)).await);
    }
    // Of each round by itself: what else the machine has to do changes from one to the next.
    let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect());
    row("a lease granted for every lock, pairs a second", &format!("{:.0}", median(theirs)));
    row("leasehold, pairs a second", &format!("{:.0}", median(ours)));
    target("64 tasks: pairs a second, to a lease for every lock", ratio, "≥ 1.5", ratio >= 1.5)
}

/// As etcd's own mutex locks: a key under the lock's name, and who came first there.
fn lock_of_etcd(lock: &str, key: &str, lease: i64) -> Txn {
    let first = || {
        let earliest = GetOptions::new().with_prefix().with_limit(1);
        TxnOp::get(lock, Some(earliest.with_sort(SortTarget::Create, SortOrder::Ascend)))
    };
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Equal, 0)])
        .and_then([TxnOp::put(key, "", Some(PutOptions::new().with_lease(lease))), first()])
        .or_else([TxnOp::get(key, None), first()])
}

/// As etcd's own mutex is used: a session, the lock, the unlock, and the end of the session.
async fn their_pairs(mut bare: Bare, number: usize) -> u64 {
    let (started, mut done) = (Instant::now(), 0);
    let lock = format!("theirs/{number}/");
    while started.elapsed() < ROUND {
        let lease = bare.lease_grant(30, None).await.unwrap().id();
        let key = format!("{lock}{lease:x}");
        assert!(bare.txn(lock_of_etcd(&lock, &key, lease)).await.unwrap().succeeded());
        bare.delete(key, None).await.unwrap();
        bare.lease_revoke(lease).await.unwrap();
        done += 1;
    }
    done
}

async fn our_pairs(leases: Client, number: usize) -> u64 {
    let id = number.to_string();
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed() < ROUND {
        let lease = leases.lease("ours", &id).acquire().await.unwrap();
        lease.release().await.unwrap();
        done += 1;
    }
    done
}

/// Pairs a second.
async fn rate<F: Future<Output = u64> + Send + 'static>(work: impl Fn(usize) -> F) -> f64 {
    let started = Instant::now();
    let running: Vec<_> = (0..TASKS).map(|number| tokio::spawn(work(number))).collect();
    let mut done = 0;
    for task in running {
        done += task.await.unwrap();
    }
    done as f64 / started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
