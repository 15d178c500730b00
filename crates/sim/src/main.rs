//! `leasehold-sim --seed 7` replays a run; `--seeds 1000` explores.

use std::{process::ExitCode, time::Instant};

use leasehold_sim::{Report, Summary, run_quorum_seed, run_seed};

const USAGE: &str = "\
usage: leasehold-sim --seed N [--trace]          replay one run
       leasehold-sim --seeds N [--from K]        explore N runs, from seed K on (default 1)
With --quorum the runs are over a majority of nodes, not over one server; so are the bugs.";

#[derive(Default)]
struct Options {
    seed: Option<u64>,
    seeds: Option<u64>,
    from: Option<u64>,
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
    let runs = if options.quorum { Runs::Quorum } else { Runs::Server };
    match (options.seed, options.seeds) {
        (Some(seed), _) => replay(runs, seed, options.trace),
        (None, Some(seeds)) => explore(runs, options.from.unwrap_or(1), seeds),
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

fn explore(runs: Runs, from: u64, seeds: u64) -> ExitCode {
    let started = Instant::now();
    let mut summary = Summary::default();
    for seed in from..from.saturating_add(seeds) {
        let report = runs.run(seed, false);
        if let Some(violation) = &report.violation {
            println!("seed {seed}: {violation}");
            let flag = runs.flag();
            println!("  replay: cargo run --release -p leasehold-sim -- {flag}--seed {seed} --trace");
        }
        summary.add(report);
    }
    let took = started.elapsed().as_secs_f64();
    println!("{summary}");
    println!("seeds per second {:>12.0}", seeds as f64 / took);
    if summary.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
