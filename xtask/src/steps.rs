//! Runs steps one after the other and reports the result of each.
//!
//! The output of a step goes to a log file, and is shown only if the step fails: a page of results is easier to read than
//! thousands of lines.

use std::{
    fs::{self, File},
    io::{IsTerminal, Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::output::{self, Count};

/// Runs steps and keeps their results.
pub(crate) struct Steps {
    verbose: bool,
    terminal: bool,
    logs: PathBuf,
    /// Some steps run at once, so the time of all of them is not the sum of theirs.
    started: Instant,
    done: Vec<FinishedStep>,
}

struct FinishedStep {
    name: String,
    took: Duration,
    failure: Option<Failure>,
}

/// A command that was started.
struct Running {
    child: Child,
    /// Its output.
    path: PathBuf,
    seen: File,
    started: Instant,
}

/// Why a step failed.
struct Failure {
    /// The text to show.
    why: String,
    /// The names of the failed tests, if the step runs tests.
    tests: Vec<String>,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure { why, tests: Vec::new() }
    }
}

impl Steps {
    pub(crate) fn new(verbose: bool) -> Steps {
        let logs = crate::target_dir().join("xtask");
        let terminal = std::io::stdout().is_terminal();
        Steps { verbose, terminal, logs, started: Instant::now(), done: Vec::new() }
    }

    /// Runs a command as a step.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) -> bool {
        let started = self.begin(name);
        let outcome =
            if self.verbose { stream(command).map_err(Failure::from) } else { self.capture(name, command) };
        self.end(name, started, outcome)
    }

    /// Runs a function as a step.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Result<(), String>) -> bool {
        let started = self.begin(name);
        let outcome = check();
        self.end(name, started, outcome.map_err(Failure::from))
    }

    fn begin(&self, name: &str) -> Instant {
        if self.verbose || !self.terminal {
            say(&format!("· {name}\n"));
        }
        Instant::now()
    }

    fn end(&mut self, name: &str, started: Instant, outcome: Result<(), Failure>) -> bool {
        let took = started.elapsed();
        if self.terminal && !self.verbose {
            say("\r\x1b[K");
        }
        if let Err(failure) = &outcome {
            say(&format!("{}\n", failure.why));
        }
        let done = FinishedStep { name: name.to_owned(), took, failure: outcome.err() };
        say(&format!("{}\n", self.line(&done)));
        let passed = done.failure.is_none();
        self.done.push(done);
        passed
    }

    fn line(&self, done: &FinishedStep) -> String {
        let (mark, colour) = if done.failure.is_none() { ("✓ ok    ", 32) } else { ("✗ failed", 31) };
        let mark = if self.terminal { format!("\x1b[{colour}m{mark}\x1b[0m") } else { mark.to_owned() };
        format!("{mark} {:<28} {:>7.1} s", done.name, done.took.as_secs_f64())
    }

    /// Runs commands at once, each as a step: for steps that mostly wait.
    pub(crate) fn commands_at_once(&mut self, commands: Vec<(String, Command)>) -> bool {
        if self.verbose {
            // Their lines would be mixed.
            let passed: Vec<bool> =
                commands.into_iter().map(|(name, mut command)| self.command(&name, &mut command)).collect();
            return passed.into_iter().all(|passed| passed);
        }
        let started = Instant::now();
        let start = |(name, mut command): (String, Command)| {
            let running = self.start(&name, &mut command);
            (name, command, running)
        };
        let running: Vec<_> = commands.into_iter().map(start).collect();
        let mut all_passed = true;
        for (name, command, running) in running {
            self.begin(&name);
            let outcome = running.and_then(|running| self.finish(&name, &command, running));
            all_passed &= self.end(&name, started, outcome);
        }
        all_passed
    }

    fn capture(&self, name: &str, command: &mut Command) -> Result<(), Failure> {
        let running = self.start(name, command)?;
        self.finish(name, command, running)
    }

    fn start(&self, name: &str, command: &mut Command) -> Result<Running, Failure> {
        let path = self.logs.join(format!("{}.log", name.replace([' ', '/'], "-")));
        let cannot = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        fs::create_dir_all(&self.logs).map_err(cannot)?;
        let log = File::create(&path).map_err(cannot)?;
        let errors = log.try_clone().map_err(cannot)?;
        let seen = File::open(&path).map_err(cannot)?;
        if self.terminal {
            command.env("CARGO_TERM_COLOR", "always");
        }
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn().map_err(|error| format!("cannot run {command:?}: {error}"))?;
        Ok(Running { child, path, seen, started: Instant::now() })
    }

    /// Waits for the end of a command.
    fn finish(&self, name: &str, command: &Command, running: Running) -> Result<(), Failure> {
        let Running { mut child, path, mut seen, started } = running;
        let cannot = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        let mut text = Vec::new();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(cannot)? {
                break status;
            }
            if self.terminal {
                drop(seen.read_to_end(&mut text));
                let line = output::last_line(&text);
                say(&format!("\r\x1b[K  … {name:<28} {:>5} s  {line}", started.elapsed().as_secs()));
            }
            thread::sleep(Duration::from_millis(100));
        };
        drop(seen.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        if let Some(count) = Count::of(&text) {
            say(&format!("{}\r{count}\n", if self.terminal { "\x1b[K" } else { "" }));
        }
        if status.success() {
            return Ok(());
        }
        let excerpt = output::excerpt(&text);
        let why = format!("{excerpt}\n\n{command:?}\n{status}; the whole output is in {}", path.display());
        Err(Failure { why, tests: output::failed_tests(&text) })
    }

    /// Prints the summary. An error if any step failed.
    pub(crate) fn summary(self) -> Result<(), String> {
        let took = self.started.elapsed();
        let failed: Vec<_> = self.done.iter().filter(|done| done.failure.is_some()).collect();
        println!();
        match failed.as_slice() {
            [] => {
                println!("all {} steps passed in {:.0} s", self.done.len(), took.as_secs_f64());
                Ok(())
            }
            some => {
                // The output of the failed steps is far above: list all results once more.
                for done in &self.done {
                    println!("{}", self.line(done));
                    let tests = done.failure.iter().flat_map(|failure| &failure.tests);
                    tests.for_each(|test| println!("           {test}"));
                }
                println!();
                let names: Vec<_> = some.iter().map(|done| done.name.as_str()).collect();
                Err(format!("{} of {} steps failed: {}", some.len(), self.done.len(), names.join(", ")))
            }
        }
    }
}

fn stream(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}\n{status}")) }
}

fn say(text: &str) {
    print!("{text}");
    drop(std::io::stdout().flush());
}
