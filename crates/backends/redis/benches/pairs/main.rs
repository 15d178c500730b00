//! What the backend and the engine cost on top of Redis itself, as ratios within one run.
//!
//! ```text
//! cargo xtask bench redis [pairs] [cluster] [hand-over] [keep-alive] [redlock] [--check]
//! ```
#![allow(clippy::disallowed_methods, reason = "benchmarks run in real time")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run may panic")]

mod bare;
mod cluster;
mod hand_over;
mod keep_alive;
mod pairs;
mod redlock;

use std::process::ExitCode;

use leasehold_testkit::servers::RedisServer;

const NAMES: [&str; 5] = ["pairs", "cluster", "hand-over", "keep-alive", "redlock"];

/// What was measured, beside what was asked for.
#[derive(Default)]
struct Table {
    missed: Vec<String>,
}

impl Table {
    fn row(&self, name: &str, measured: &str) {
        println!("  {name:<62} {measured:>16}");
    }

    fn target(&mut self, name: &str, measured: &str, target: &str, met: bool) {
        println!("  {name:<62} {measured:>16}   {target:<8} {}", if met { '✓' } else { '✗' });
        if !met {
            self.missed.push(format!("{name}: {measured}, wanted {target}"));
        }
    }
}

fn main() -> ExitCode {
    // `cargo bench` and `cargo test` add arguments of their own.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, rest @ ..] = args.as_slice()
        && word == "worker"
    {
        return hand_over::worker(rest);
    }
    if args.iter().any(|arg| arg == "--test" || arg == "--list") || !args.iter().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS; // run as a test: there is nothing to check
    }
    let named: Vec<&str> = args.iter().map(String::as_str).filter(|arg| NAMES.contains(arg)).collect();
    let check = args.iter().any(|arg| arg == "--check");
    let mut table = Table::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for name in NAMES.into_iter().filter(|name| named.is_empty() || named.contains(name)) {
        println!("\n{name}");
        if name == "cluster" {
            runtime.block_on(cluster::measure(&mut table));
            continue;
        }
        if name == "redlock" {
            runtime.block_on(redlock::measure(&mut table));
            continue;
        }
        let server = RedisServer::start();
        runtime.block_on(async {
            match name {
                "pairs" => pairs::measure(&server, &mut table).await,
                "hand-over" => hand_over::measure(&server, &mut table).await,
                _ => keep_alive::measure(&server, &mut table).await,
            }
        });
    }
    println!();
    if table.missed.is_empty() {
        println!("every target was met");
        return ExitCode::SUCCESS;
    }
    println!("missed:");
    table.missed.iter().for_each(|line| println!("  {line}"));
    if check { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
