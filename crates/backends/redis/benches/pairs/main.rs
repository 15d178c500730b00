//! What the backend and the engine cost on top of Redis itself, as ratios within one run.
//!
//! ```text
//! cargo xtask bench redis [pairs] [cluster] [hand-over] [keep-alive] [redlock] [--check]
//! ```
#![allow(clippy::disallowed_methods, reason = "benchmarks run in real time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run may panic")]

mod bare;
mod cluster;
mod handover;
mod keep_alive;
mod pairs;
mod redlock;

use std::process::ExitCode;

use leasehold_bench::{BenchArguments, Table};
use leasehold_testkit::servers::RedisServer;

const NAMES: [&str; 5] = ["pairs", "cluster", "hand-over", "keep-alive", "redlock"];

fn main() -> ExitCode {
    // The benchmark of hand-overs starts this program again, as a process that contends for the lease.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, rest @ ..] = args.as_slice()
        && word == "worker"
    {
        return handover::worker(rest);
    }
    let Some(arguments) = BenchArguments::of_bench_run() else { return ExitCode::SUCCESS };
    let mut table = Table::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for name in arguments.chosen(&NAMES) {
        table.title(name);
        runtime.block_on(async {
            match name {
                "cluster" => cluster::measure(&mut table).await,
                "redlock" => redlock::measure(&mut table).await,
                "pairs" => pairs::measure(&RedisServer::start(), &mut table).await,
                "hand-over" => handover::measure(&RedisServer::start(), &mut table).await,
                _ => keep_alive::measure(&RedisServer::start(), &mut table).await,
            }
        });
    }
    table.finish(arguments.check())
}
