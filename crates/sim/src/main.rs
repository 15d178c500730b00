//! `leasehold-sim --seed 7` replays a run; `--seeds 1000` explores.

use std::{path::Path, process::ExitCode, time::Instant};

use leasehold_sim::{Report, Summary, planted, run_quorum_seed, run_seed};

const USAGE: &str = "\
usage: leasehold-sim --seed N [--trace]          replay one run
       leasehold-sim --seeds N [--from K]        explore N runs, from seed K on (default 1)
       leasehold-sim --planted                   build the simulator with known bugs, and find each of them
With --quorum the runs are over a majority of nodes, not over one server. With --stop-at-first the first violation ends
the exploration.";

#[derive(Default)]
struct Options {
    seed: Option<u64>,
    seeds: Option<u64>,
    from: Option<u64>,
    planted: bool,
    stop_at_first: bool,
    quorum: bool,
    trace: bool,
}

/// Over one server, or over a quorum of nodes.
#[derive(Clone, Copy)]
enum Runs {
    Server,
    Quorum,
}

impl Runs {
    fn run(self, seed: u64, tracing: bool) -> Report {
        match self {
            Runs::Server => run_seed(seed, tracing),
            Runs::Quorum => run_quorum_seed(seed, tracing),
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Runs::Server => "",
            Runs::Quorum => "--quorum ",
        }
    }
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    if options.planted {
        return find_planted();
    }
    let runs = if options.quorum { Runs::Quorum } else { Runs::Server };
    match (options.seed, options.seeds) {
        (Some(seed), _) => replay(runs, seed, options.trace),
        (None, Some(seeds)) => explore(runs, options.from.unwrap_or(1), seeds, options.stop_at_first),
        (None, None) => {
            eprintln!("{USAGE}");
            ExitCode::from(64)
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let text = arguments.next().ok_or_else(|| format!("{argument} wants a number"))?;
            text.parse().map_err(|_| format!("{text:?} is not a number"))
        };
        match argument.as_str() {
            "--seed" => options.seed = Some(number()?),
            "--seeds" => options.seeds = Some(number()?),
            "--from" => options.from = Some(number()?),
            "--planted" => options.planted = true,
            "--stop-at-first" => options.stop_at_first = true,
            "--quorum" => options.quorum = true,
            "--trace" => options.trace = true,
            _ => return Err(format!("{argument:?} is not known")),
        }
    }
    Ok(options)
}

fn replay(runs: Runs, seed: u64, trace: bool) -> ExitCode {
    let report = runs.run(seed, trace);
    let (hash, violation) = (report.hash, report.violation.clone());
    let mut summary = Summary::default();
    summary.add(report);
    println!("{summary}");
    println!("trace hash       {hash:016x}");
    violation.map_or(ExitCode::SUCCESS, |violation| {
        println!("seed {seed}: {violation}");
        ExitCode::FAILURE
    })
}

fn find_planted() -> ExitCode {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let searches = match planted::find_all(&workspace) {
        Ok(searches) => searches,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let missed = searches.iter().filter(|search| search.violation.is_none()).count();
    for planted::Search { bug, violation } in &searches {
        println!("{:<24} {}", bug.name, bug.what);
        println!("{:<24}   {}", "", violation.as_deref().unwrap_or("NOT FOUND"));
    }
    println!("{} passed, {missed} failed", searches.len() - missed);
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn explore(runs: Runs, from: u64, seeds: u64, stop_at_first: bool) -> ExitCode {
    let started = Instant::now();
    let mut summary = Summary::default();
    for seed in from..from.saturating_add(seeds) {
        let report = runs.run(seed, false);
        if let Some(violation) = &report.violation {
            println!("seed {seed}: {violation}");
            let flag = runs.flag();
            println!("  replay: cargo run --release -p leasehold-sim -- {flag}--seed {seed} --trace");
        }
        let stop = stop_at_first && report.violation.is_some();
        summary.add(report);
        if stop {
            break;
        }
    }
    let took = started.elapsed().as_secs_f64();
    println!("{summary}");
    println!("seeds per second {:>12.0}", seeds as f64 / took);
    if summary.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
