//! Hand-overs of one resource among many waiters, each of which releases it at once.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use leasehold::Client;
use leasehold_bench::{Table, median};
use leasehold_testkit::servers::RedisServer;

use crate::bare::Bare;

const ROUND: Duration = Duration::from_secs(4);

pub(crate) async fn measure(server: &RedisServer, table: &mut Table) {
    let trip = round_trip(server).await;
    table.row("a round trip of a script", &format!("{:.1} µs", trip.as_secs_f64() * 1e6));

    let leases = leasehold::connect(&server.url()).await.unwrap();
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        // Compared with a round trip measured just before, because the load of the machine changes.
        let trip = round_trip(server).await;
        let rate = contend(&leases, "one", 16, ROUND / 8).await;
        rates.push(rate);
        ratios.push(rate * trip.as_secs_f64());
    }
    let (rate, ratio) = (median(rates), median(ratios));
    table.row("one process, 16 waiters, hand-overs a second", &format!("{rate:.0}"));
    table.target("one process: hand-overs in a round trip", &format!("{ratio:.2}"), "≥ 0.8", ratio >= 0.8);

    let rate = processes(server, 4, 4);
    let trip = (trip + round_trip(server).await) / 2;
    let ratio = rate * trip.as_secs_f64();
    table.row("4 processes of 4 waiters, hand-overs a second", &format!("{rate:.0}"));
    table.target("4 processes: hand-overs in a round trip", &format!("{ratio:.2}"), "≥ 0.3", ratio >= 0.3);

    let before = scripts(server);
    let rate = processes(server, 16, 1);
    let handovers = rate * ROUND.as_secs_f64();
    let scripts_each = (scripts(server) - before) as f64 / handovers;
    table.row("16 processes of 1 waiter, hand-overs a second", &format!("{rate:.0}"));
    table.target(
        "16 processes: commands for a hand-over",
        &format!("{scripts_each:.2}"),
        "≤ 4",
        scripts_each <= 4.0,
    );
}

/// How long one script call takes: half of a pair of acquire and release.
async fn round_trip(server: &RedisServer) -> Duration {
    let mut bare = Bare::connect(server.port()).await;
    let started = Instant::now();
    for number in 0..2_000 {
        bare.pair("trip/1", &format!("{number:032x}")).await;
    }
    started.elapsed() / 4_000
}

/// The number of script calls that the server has executed so far.
fn scripts(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")))?;
        line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok()
    };
    calls("evalsha").unwrap_or(0) + calls("eval").unwrap_or(0)
}

/// Hand-overs a second among the waiters of one client.
async fn contend(leases: &Client, id: &str, waiters: usize, lasting: Duration) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let running: Vec<_> = (0..waiters)
        .map(|_| {
            let (leases, id, done) = (leases.clone(), id.to_owned(), Arc::clone(&done));
            tokio::spawn(async move {
                while started.elapsed() < lasting {
                    let lease = leases.lease("wanted", &id).wait_forever().acquire().await.unwrap();
                    done.fetch_add(1, Relaxed);
                    lease.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in running {
        task.await.unwrap();
    }
    done.load(Relaxed) as f64 / started.elapsed().as_secs_f64()
}

/// Hand-overs a second among the waiters of `count` processes.
fn processes(server: &RedisServer, count: usize, waiters: usize) -> f64 {
    let program = std::env::current_exe().unwrap();
    let start = |_| {
        let mut child = Command::new(&program)
            .args(["worker", &server.url(), &format!("shared-{count}"), &waiters.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        output.read_line(&mut ready).unwrap();
        (child, output)
    };
    let mut workers: Vec<(Child, _)> = (0..count).map(start).collect();
    // All processes are connected. They begin when their input ends.
    workers.iter_mut().for_each(|(child, _)| drop(child.stdin.take()));
    let mut rate = 0.0;
    for (child, output) in &mut workers {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        rate += line.trim().parse::<f64>().unwrap_or(0.0);
        child.wait().unwrap();
    }
    rate
}

/// The main of one process: connects, prints `ready`, waits until its input ends, contends, and prints its
/// rate.
pub(crate) fn worker(args: &[String]) -> ExitCode {
    let [url, id, waiters] = args else { return ExitCode::FAILURE };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let leases = leasehold::connect(url).await.unwrap();
        println!("ready");
        std::io::read_to_string(std::io::stdin()).unwrap();
        println!("{}", contend(&leases, id, waiters.parse().unwrap(), ROUND).await);
    });
    ExitCode::SUCCESS
}
