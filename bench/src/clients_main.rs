//! `cargo xtask bench clients`: the clients of other languages, through the server, beside lock libraries straight to Redis.

use std::{
    collections::BTreeMap,
    io::IsTerminal as _,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use leasehold_bench_peers::{
    clients::{Language, ONE, SIXTEEN, explanation, failures, languages, markdown},
    machine::{IdleStates, facts, toolchains},
    peers::{Peer, Program, Programs},
    results::{Machine, Table},
    run::{Effort, Runner},
    works::Work,
};

const USAGE: &str = "\
cargo xtask bench clients [OPTION…]

  --quick            few and short rounds: a look, no proof
  --language NAME    only this language; may be repeated
  --program PATH     serve with this program, instead of one that is built as `cargo xtask build` does

Nothing is written: the table is printed, in Markdown.
";

const FULL: Effort = effort(7, Duration::from_millis(1000));
const QUICK: Effort = effort(3, Duration::from_millis(400));

const fn effort(repetitions: usize, lasting: Duration) -> Effort {
    Effort { repetitions, lasting, long_repetitions: 0, fair_lasting: Duration::ZERO, commands: 0 }
}

#[derive(Default)]
struct Options {
    quick: bool,
    languages: Vec<String>,
    program: Option<PathBuf>,
}

impl Options {
    fn read() -> Result<Options, String> {
        let mut options = Options::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n\n{USAGE}"));
            match word.as_str() {
                "--quick" => options.quick = true,
                "--language" => options.languages.push(value()?),
                "--program" => options.program = Some(existing(&value()?)?),
                _ => return Err(format!("unknown option {word}\n\n{USAGE}")),
            }
        }
        Ok(options)
    }

    /// The languages to measure.
    fn chosen(&self) -> Result<Vec<Language>, String> {
        let is_named = |name: &str, language: &Language| name.eq_ignore_ascii_case(language.name);
        if let Some(name) =
            self.languages.iter().find(|name| !languages().any(|language| is_named(name, &language)))
        {
            let all: Vec<&str> = languages().map(|language| language.name).collect();
            return Err(format!("there is no client for {name:?}: there are {}", all.join(", ")));
        }
        let is_chosen = |language: &Language| {
            self.languages.is_empty() || self.languages.iter().any(|name| is_named(name, language))
        };
        Ok(languages().filter(is_chosen).collect())
    }
}

/// The program at this path. The runner may work in another folder, so the path is made absolute.
fn existing(path: &str) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::read().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let languages = options.chosen()?;
    let effort = if options.quick { QUICK } else { FULL };
    let mut runner = runner(effort, options.program.clone())?;
    // Everything is built before anything is measured.
    for program in languages.iter().map(|language| language.client.program).chain([Program::Shell]) {
        let _ = runner.programs.command(program);
    }
    let idle = IdleStates::hold_off();
    let machine = facts(&idle);
    let started = Instant::now();
    let peers: Vec<&'static Peer> =
        languages.iter().flat_map(|language| [language.client, language.library]).collect();
    let [one, sixteen] = [&ONE, &SIXTEEN].map(|work: &Work| runner.measure(work, &peers));
    println!("\n{}", circumstances(&machine, &effort, started.elapsed()));
    println!("{}\n", versions(&peers, &runner.versions));
    print_results(&languages, [&one, &sixteen], machine.cores);
    Ok(())
}

fn runner(effort: Effort, program: Option<PathBuf>) -> Result<Runner, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    // No peer that is written in Rust takes part.
    let mut programs = Programs::new(PathBuf::from("leasehold-peer-rust"));
    if let Some(program) = program {
        programs.use_built(Program::Shell, &program);
    }
    Ok(Runner {
        programs,
        effort,
        runtime: runtime.map_err(|error| format!("no runtime: {error}"))?,
        terminal: std::io::stdout().is_terminal(),
        versions: BTreeMap::new(),
    })
}

fn circumstances(machine: &Machine, effort: &Effort, took: Duration) -> String {
    let idle = if machine.idle_states_held_off { "held off" } else { "not held off" };
    format!(
        "{} cores, {}; load before the run {:.2}; idle states of the processor {idle}; {} rounds of {} ms; {} s in all",
        machine.cores,
        machine.processor,
        machine.load_at_start,
        effort.repetitions,
        effort.lasting.as_millis(),
        took.as_secs()
    )
}

fn versions(peers: &[&Peer], servers: &BTreeMap<String, String>) -> String {
    let libraries = peers.iter().filter(|peer| !peer.version.is_empty());
    let libraries = libraries.map(|peer| format!("{} {}", peer.name, peer.version));
    let rest =
        servers.clone().into_iter().chain(toolchains()).map(|(name, version)| format!("{name} {version}"));
    libraries.chain(rest).collect::<Vec<String>>().join(", ")
}

fn print_results(languages: &[Language], tables: [&Table; 2], cores: usize) {
    print!("{}", markdown(languages, tables[0], tables[1]));
    for line in failures(tables) {
        println!("{line}");
    }
    println!("\n{}", explanation(cores));
}
