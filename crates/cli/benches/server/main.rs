//! What `leasehold serve` costs on top of the library on the same Redis, as ratios within one run.
//!
//! ```text
//! cargo xtask bench server [pairs] [hand-over] [waiting] [--check]
//! ```
//!
//! The server is a process of its own. The clients are connections that write a request and read its answer, and do nothing
//! else: what is measured is the server.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run may panic")]

mod connection;
mod handover;
mod pairs;
mod serving;
mod waiting;

use std::process::ExitCode;

use leasehold_bench::{BenchArguments, Table};

const NAMES: [&str; 3] = ["pairs", "hand-over", "waiting"];

fn main() -> ExitCode {
    let Some(arguments) = BenchArguments::of_bench_run() else { return ExitCode::SUCCESS };
    let mut table = Table::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for name in arguments.chosen(&NAMES) {
        runtime.block_on(async {
            match name {
                "pairs" => pairs::measure(&mut table).await,
                "hand-over" => handover::measure(&mut table).await,
                _ => waiting::measure(&mut table).await,
            }
        });
    }
    table.finish(arguments.check())
}
