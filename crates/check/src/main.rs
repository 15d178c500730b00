//! `leasehold-check` makes every check and prints what came of it; `--deep` makes larger ones.

use std::process::ExitCode;

use leasehold_check::{Outcome, Setup, broken, check, deep, sound};

const USAGE: &str = "\
usage: leasehold-check              every order of events, for small sizes
       leasehold-check --deep       the same, larger: takes minutes and gigabytes
       leasehold-check --broken     show, step by step, what breaks when a rule is left out";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mut large, mut steps) = (false, false);
    for argument in &arguments {
        match argument.as_str() {
            "--deep" => large = true,
            "--broken" => steps = true,
            _ => {
                eprintln!("{argument:?} is not known\n{USAGE}");
                return ExitCode::from(64);
            }
        }
    }
    let mut passed = true;
    println!("{:<72} {:>10} {:>6} {:>7}", "every promise holds", "states", "steps", "s");
    for setup in
        if steps { Vec::new() } else { sound() }.into_iter().chain(if large { deep() } else { Vec::new() })
    {
        passed &= holds(&setup, &check(&setup, 2));
    }
    println!("\n{:<72} {:>10} {:>6} {:>7}", "left out, and what breaks", "states", "steps", "s");
    for setup in broken() {
        passed &= breaks(&setup, &check(&setup, 1), steps);
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn line(name: &str, outcome: &Outcome, steps: usize) {
    println!("{name:<72} {:>10} {steps:>6} {:>7.1}", outcome.states, outcome.took.as_secs_f64());
}

fn holds(setup: &Setup, outcome: &Outcome) -> bool {
    line(setup.name, outcome, outcome.depth);
    if let Some((promise, steps)) = &outcome.broken {
        println!("  BROKEN: {promise}");
        steps.iter().for_each(|step| println!("    {step:?}"));
    }
    if let Some(never) = outcome.never {
        println!("  NEVER: {never}");
    }
    outcome.broken.is_none() && outcome.never.is_none()
}

fn breaks(setup: &Setup, outcome: &Outcome, all: bool) -> bool {
    let Some((promise, steps)) = &outcome.broken else {
        line(setup.name, outcome, 0);
        println!("  NOT FOUND: the check is blind to it");
        return false;
    };
    line(&format!("{}: not \"{promise}\"", setup.name), outcome, steps.len());
    if all {
        steps.iter().for_each(|step| println!("    {step:?}"));
    }
    true
}
