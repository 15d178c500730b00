//! What leasehold costs on the memory backend, beside the limits that it must keep.
//!
//! ```text
//! cargo xtask bench [overhead] [flat] [keep-alive] [--check]
//! ```

mod counting;
mod flat;
mod keep_alive;
mod measure;
mod overhead;
mod waiters;

use std::{env, process::ExitCode};

use leasehold_bench::Table;

const USAGE: &str = "\
cargo xtask bench [NAME…] [--check]

  overhead      an uncontended acquire and release: allocations, time
  flat          a grant, a release and a hand-over among 10 to 100,000 waiters and holders
  keep-alive    one client keeping 100,000 leases alive: memory, CPU, lateness

  peers         leasehold beside other lock libraries; has options of its own: peers --help
  clients       the clients of other languages, through the server; has options of its own: clients --help

  --check       fail if a target is missed
";

const NAMES: [&str; 3] = ["overhead", "flat", "keep-alive"];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let known = |arg: &String| arg == "--check" || NAMES.contains(&arg.as_str());
    if !args.iter().all(known) {
        print!("{USAGE}");
        let asked = args.iter().any(|arg| arg == "--help" || arg == "-h");
        return if asked { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let check = args.iter().any(|arg| arg == "--check");
    let chosen = |name: &str| args.iter().all(|arg| arg == "--check") || args.iter().any(|arg| arg == name);

    // One thread: the benchmark measures the work, not how two cores synchronise.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be started");
    let mut table = Table::default();
    for name in NAMES.into_iter().filter(|name| chosen(name)) {
        runtime.block_on(async {
            match name {
                "overhead" => overhead::measure(&mut table).await,
                "flat" => flat::measure(&mut table).await,
                _ => keep_alive::measure(&mut table).await,
            }
        });
    }
    table.finish(check)
}
