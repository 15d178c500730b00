//! `cargo xtask bench peers`: leasehold beside the lock libraries that people would choose instead.

use std::{
    collections::BTreeMap,
    io::IsTerminal as _,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use leasehold_bench_peers::{
    machine::{IdleStates, facts, toolchains},
    page,
    peers::{Peer, Programs},
    results::{Mode, Results},
    root,
    run::{Effort, Runner},
    targets::outcomes,
    works::{WORKS, Work},
};

const USAGE: &str = "\
cargo xtask bench peers [OPTION…]

  --quick            few and short repetitions: a look, no proof
  --only NAME        only works whose names begin with NAME, such as redis-pair; may be repeated
  --peer NAME        only this peer, and leasehold; may be repeated
  --note TEXT        what readers must know about the circumstances; goes into the results
  --save             write the results although not everything was measured
  --report           measure nothing: make docs/benchmarks.md again from bench/results/latest.json
  --list             the names of all works and peers
  --check            fail if a target is missed

Everything (without --only and --peer) is written to bench/results/latest.json, docs/benchmarks.md and docs/images.
";

const FULL: Effort = Effort {
    repetitions: 9,
    lasting: Duration::from_millis(1500),
    long_repetitions: 3,
    fair_lasting: Duration::from_secs(5),
    commands: 40,
};
const QUICK: Effort = Effort {
    repetitions: 3,
    lasting: Duration::from_millis(400),
    long_repetitions: 1,
    fair_lasting: Duration::from_secs(3),
    commands: 10,
};

#[derive(Default)]
struct Options {
    quick: bool,
    save: bool,
    report: bool,
    list: bool,
    check: bool,
    note: String,
    only: Vec<String>,
    peers: Vec<String>,
}

impl Options {
    fn read() -> Result<Options, String> {
        let mut options = Options::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n\n{USAGE}"));
            match word.as_str() {
                "--quick" => options.quick = true,
                "--save" => options.save = true,
                "--report" => options.report = true,
                "--list" => options.list = true,
                "--check" => options.check = true,
                "--note" => options.note = value()?,
                "--only" => options.only.push(value()?),
                "--peer" => options.peers.push(value()?),
                _ => return Err(format!("unknown option {word}\n\n{USAGE}")),
            }
        }
        Ok(options)
    }

    fn wants(&self, work: &Work) -> bool {
        self.only.is_empty() || self.only.iter().any(|prefix| work.name.starts_with(prefix.as_str()))
    }

    fn peers_of(&self, work: &Work) -> Vec<&'static Peer> {
        let named = |peer: &Peer| self.peers.iter().any(|name| name.eq_ignore_ascii_case(peer.name));
        let chosen = |peer: &&&'static Peer| {
            self.peers.is_empty() || peer.name.starts_with("leasehold") || named(peer)
        };
        work.peers.iter().filter(chosen).copied().collect()
    }

    fn is_everything(&self) -> bool {
        self.only.is_empty() && self.peers.is_empty()
    }
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::read().and_then(|options| run(&options)) {
        Ok(code) => code,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode, String> {
    let latest = root().join("bench/results/latest.json");
    if options.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    if options.report {
        page::write(&root(), &Results::load(&latest)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    check_names(options)?;
    let results = measure(options)?;
    let all_met = print_targets(&results);
    if options.is_everything() || options.save {
        results.save(&latest)?;
        page::write(&root(), &results)?;
        println!("\nbench/results/latest.json, docs/benchmarks.md and its pictures are written");
    } else {
        println!("\nnothing is written: not everything was measured (--save writes it all the same)");
    }
    Ok(if options.check && !all_met { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn list() {
    for work in WORKS {
        let peers: Vec<&str> = work.peers.iter().map(|peer| peer.name).collect();
        println!("{:<28} {}", work.name, peers.join(", "));
    }
}

fn check_names(options: &Options) -> Result<(), String> {
    let no_work = |prefix: &&String| !WORKS.iter().any(|work| work.name.starts_with(prefix.as_str()));
    if let Some(prefix) = options.only.iter().find(no_work) {
        return Err(format!("no work has a name that begins with {prefix:?}: --list shows all"));
    }
    let is_peer = |name: &String, peer: &Peer| name.eq_ignore_ascii_case(peer.name);
    let no_peer = |name: &&String| !WORKS.iter().flat_map(|work| work.peers).any(|peer| is_peer(name, peer));
    if let Some(name) = options.peers.iter().find(no_peer) {
        return Err(format!("there is no peer called {name:?}: --list shows all"));
    }
    Ok(())
}

fn measure(options: &Options) -> Result<Results, String> {
    let effort = if options.quick { QUICK } else { FULL };
    let idle = IdleStates::hold_off();
    let machine = facts(&idle);
    let held_off = if idle.are_held_off() {
        "are held off"
    } else {
        "are not held off: /dev/cpu_dma_latency cannot be opened"
    };
    println!(
        "{} cores, load {}; idle states of the processor {held_off}",
        machine.cores, machine.load_at_start
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let mut runner = Runner {
        programs: Programs::new(rust_program()?),
        effort,
        runtime: runtime.map_err(|error| format!("no runtime: {error}"))?,
        terminal: std::io::stdout().is_terminal(),
        versions: BTreeMap::new(),
    };
    let works: Vec<&Work> = WORKS.iter().filter(|work| options.wants(work)).collect();
    // Everything is built before anything is measured.
    for peer in works.iter().flat_map(|work| options.peers_of(work)) {
        let _ = runner.programs.command(peer.program);
    }
    let mut tables = Vec::new();
    for (number, work) in works.iter().enumerate() {
        if !runner.terminal {
            println!("{} of {}: {}", number + 1, works.len(), work.name);
        }
        let table = runner.measure(work, &options.peers_of(work));
        print!("{}", page::plain(work, &table));
        tables.push(table);
    }
    let mut versions = toolchains();
    versions.append(&mut runner.versions);
    for peer in works.iter().flat_map(|work| work.peers).filter(|peer| !peer.version.is_empty()) {
        let library = peer.name.split(' ').next().unwrap_or(peer.name);
        let library = if library == "Go" { "etcd client for Go" } else { library };
        versions.insert(library.to_owned(), peer.version.to_owned());
    }
    Ok(Results {
        day: today(),
        mode: if options.quick { Mode::Quick } else { Mode::Full },
        note: options.note.clone(),
        repetitions: effort.repetitions,
        lasting_ms: u64::try_from(effort.lasting.as_millis()).unwrap_or(u64::MAX),
        machine,
        versions,
        tables,
    })
}

/// The program of the Rust peers: cargo puts it beside this one.
fn rust_program() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = this.with_file_name("leasehold-peer-rust");
    if program.exists() {
        Ok(program)
    } else {
        Err(format!("{} is missing: use `cargo xtask bench peers`", program.display()))
    }
}

/// Prints the targets. Returns whether all of them were met.
fn print_targets(results: &Results) -> bool {
    let outcomes = outcomes(results);
    println!("\nTargets");
    for outcome in &outcomes {
        let (measured, mark) = match (&outcome.measured, outcome.met) {
            (None, _) => ("–", "not measured"),
            (Some(measured), true) => (measured.as_str(), "met"),
            (Some(measured), false) => (measured.as_str(), "missed"),
        };
        println!("  {:<66} {measured:>8}   {:<8} {mark}", outcome.name, outcome.wanted);
    }
    let met = outcomes.iter().filter(|outcome| outcome.met).count();
    println!("  {met} of {} met", outcomes.len());
    met == outcomes.len()
}

/// The day of today in UTC, as `2026-11-18`.
fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / 86_400);
    // The civil calendar, counted in years that begin in March, so that the leap day is the last of its year.
    let days = days as i64 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}
