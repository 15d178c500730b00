//! What the backend and the engine cost on top of etcd itself, as ratios within one run.
//!
//! ```text
//! cargo xtask bench etcd [acquire] [pairs] [--check]
//! ```
#![allow(clippy::disallowed_methods, reason = "benchmarks run in real time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run may panic")]

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use etcd_client::{
    Client as Bare, Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
};
use leasehold::Client;
use leasehold_bench::{BenchArguments, Table, lease_pairs, median, median_ratio, rate};
use leasehold_testkit::servers::EtcdCluster;

const NAMES: [&str; 2] = ["acquire", "pairs"];
const TASKS: usize = 64;
const ROUND: Duration = Duration::from_millis(600);
const ROUNDS: usize = 15;
const ACQUIRES: usize = 1_000;

fn main() -> ExitCode {
    let Some(arguments) = BenchArguments::of_bench_run() else { return ExitCode::SUCCESS };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut table = Table::default();
    for name in arguments.chosen(&NAMES) {
        let cluster = EtcdCluster::start(1);
        table.title(name);
        runtime.block_on(async {
            let bare = Bare::connect([format!("127.0.0.1:{}", cluster.ports()[0])], None).await.unwrap();
            let leases = leasehold::connect(&cluster.url()).await.unwrap();
            if name == "acquire" {
                acquire(bare, leases, &mut table).await;
            } else {
                pairs(bare, leases, &mut table).await;
            }
        });
    }
    table.finish(arguments.check())
}

/// The smallest transaction that can lock: put the key under a lease, if the key does not exist.
fn put_if_absent(key: &str, lease: i64) -> Txn {
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Equal, 0)])
        .and_then([TxnOp::put(key, "", Some(PutOptions::new().with_lease(lease)))])
        .or_else([TxnOp::get(key, None)])
}

/// How long an acquire takes, beside one bare transaction. The two alternate, so that load on the machine
/// slows both.
async fn acquire(mut bare: Bare, leases: Client, table: &mut Table) {
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
        // The first acquires are slower: no etcd lease has been granted in advance yet (ADR 0023).
        if number >= ACQUIRES / 10 {
            theirs.push(took.as_secs_f64() * 1e6);
            ours.push(took_us.as_secs_f64() * 1e6);
        }
    }
    let (theirs, ours) = (median(theirs), median(ours));
    table.row("one bare transaction", &format!("{theirs:.0} µs"));
    table.row("leasehold, an acquire", &format!("{ours:.0} µs"));
    let ratio = ours / theirs;
    let name = "time of an acquire, to one bare transaction";
    table.target(name, &format!("{ratio:.3}"), "≤ 1.2", ratio <= 1.2);
}

/// Pairs of acquire and release of 64 tasks, beside etcd's own mutex: with a session for every lock, which is an
/// etcd lease each, and on one session for all tasks. Here the mutex is executed bare, without the time that a
/// client library adds.
async fn pairs(mut bare: Bare, leases: Client, table: &mut Table) {
    let session = bare.lease_grant(600, None).await.unwrap().id();
    let (mut theirs, mut on_one_session, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    // A warm-up, which is not counted.
    rate(TASKS, |number| lease_pairs(leases.clone(), number, ROUND)).await;
    for _ in 0..ROUNDS {
        theirs.push(rate(TASKS, |number| mutex_pairs(bare.clone(), number)).await.per_second);
        let session_pairs = |number| session_pairs(bare.clone(), session, number);
        on_one_session.push(rate(TASKS, session_pairs).await.per_second);
        ours.push(rate(TASKS, |number| lease_pairs(leases.clone(), number, ROUND)).await.per_second);
    }
    let (ratio, to_one_session) = (median_ratio(&ours, &theirs), median_ratio(&ours, &on_one_session));
    table.row("a lease granted for every lock, pairs a second", &format!("{:.0}", median(theirs)));
    table.row("etcd's mutex on one session, pairs a second", &format!("{:.0}", median(on_one_session)));
    table.row("leasehold, pairs a second", &format!("{:.0}", median(ours)));
    let name = "64 tasks: pairs a second, to etcd's mutex on one session";
    table.target(name, &format!("{to_one_session:.3}"), "≥ 1.0", to_one_session >= 1.0);
    let name = "64 tasks: pairs a second, to a lease for every lock";
    table.target(name, &format!("{ratio:.3}"), "≥ 1.5", ratio >= 1.5);
}

/// The transaction of etcd's own mutex: put a key below the lock's name, and read the oldest key there.
fn mutex_lock(lock: &str, key: &str, lease: i64) -> Txn {
    let first = || {
        let earliest = GetOptions::new().with_prefix().with_limit(1);
        TxnOp::get(lock, Some(earliest.with_sort(SortTarget::Create, SortOrder::Ascend)))
    };
    Txn::new()
        .when([Compare::create_revision(key, CompareOp::Equal, 0)])
        .and_then([TxnOp::put(key, "", Some(PutOptions::new().with_lease(lease))), first()])
        .or_else([TxnOp::get(key, None), first()])
}

/// Pairs of lock and unlock as etcd's own mutex does them on a session that exists.
async fn session_pairs(mut bare: Bare, session: i64, number: usize) -> u64 {
    let (started, mut done) = (Instant::now(), 0);
    let lock = format!("session/{number}/");
    let key = format!("{lock}{session:x}");
    while started.elapsed() < ROUND {
        assert!(bare.txn(mutex_lock(&lock, &key, session)).await.unwrap().succeeded());
        bare.delete(key.as_str(), None).await.unwrap();
        done += 1;
    }
    done
}

/// Pairs of lock and unlock as etcd's own mutex does them: a new session, the lock, the unlock, the end of
/// the session.
async fn mutex_pairs(mut bare: Bare, number: usize) -> u64 {
    let (started, mut done) = (Instant::now(), 0);
    let lock = format!("theirs/{number}/");
    while started.elapsed() < ROUND {
        let lease = bare.lease_grant(30, None).await.unwrap().id();
        let key = format!("{lock}{lease:x}");
        assert!(bare.txn(mutex_lock(&lock, &key, lease)).await.unwrap().succeeded());
        bare.delete(key, None).await.unwrap();
        bare.lease_revoke(lease).await.unwrap();
        done += 1;
    }
    done
}
