//! Runs steps one after the other and reports the result of each.
//!
//! The output of a step goes to a log file, and is shown only if the step fails: a page of results is easier to read than
//! thousands of lines.
//!
//! A step that takes too long fails, with all its processes ended: `process_group.rs`.

use std::{
    fs::{self, File},
    io::{IsTerminal, Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio, exit},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    output::{self, Count},
    process_group::{self, Guard},
};

/// The longest that a step may take: several times as long as any takes on two processors.
const LIMIT: Duration = Duration::from_secs(25 * 60);

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
    process: (Child, Guard),
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
        self.command_within(LIMIT, name, command)
    }

    /// Runs a command as a step that fails if it takes longer than this.
    pub(crate) fn command_within(&mut self, limit: Duration, name: &str, command: &mut Command) -> bool {
        let started = self.begin(name);
        let outcome = if self.verbose {
            stream(command, limit).map_err(Failure::from)
        } else {
            self.start(name, command).and_then(|running| self.finish(name, command, running, limit))
        };
        self.end(name, started, outcome)
    }

    /// Runs a function as a step.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Result<(), String>) -> bool {
        let started = self.begin(name);
        let watch = exit_after_limit(name);
        let outcome = check();
        drop(watch);
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
            let outcome = running.and_then(|running| self.finish(&name, &command, running, LIMIT));
            all_passed &= self.end(&name, started, outcome);
        }
        all_passed
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
        let process =
            process_group::spawn(command).map_err(|error| format!("cannot run {command:?}: {error}"))?;
        Ok(Running { process, path, seen, started: Instant::now() })
    }

    /// Waits for the end of a command.
    fn finish(
        &self,
        name: &str,
        command: &Command,
        running: Running,
        limit: Duration,
    ) -> Result<(), Failure> {
        let Running { process, path, mut seen, started } = running;
        let mut text = Vec::new();
        let show_progress = || {
            if self.terminal {
                drop(seen.read_to_end(&mut text));
                let line = output::last_line(&text);
                say(&format!("\r\x1b[K  … {name:<28} {:>5} s  {line}", started.elapsed().as_secs()));
            }
        };
        let remaining = limit.saturating_sub(started.elapsed());
        let status = process_group::wait(process, remaining, show_progress)
            .map_err(|error| format!("cannot wait for {command:?}: {error}"))?;
        drop(seen.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        if let Some(count) = Count::of(&text) {
            say(&format!("{}\r{count}\n", if self.terminal { "\x1b[K" } else { "" }));
        }
        let ended = match status {
            Some(status) if status.success() => return Ok(()),
            Some(status) => status.to_string(),
            None => too_long(name, limit),
        };
        let excerpt = output::excerpt(&text);
        let why = format!("{excerpt}\n\n{command:?}\n{ended}; the whole output is in {}", path.display());
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

/// Runs a command that shows its output itself.
fn stream(command: &mut Command, limit: Duration) -> Result<(), String> {
    let status = process_group::spawn(command.stdin(Stdio::null()))
        .and_then(|process| process_group::wait(process, limit, || ()))
        .map_err(|error| format!("cannot run {command:?}: {error}"))?;
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("{command:?}\n{status}")),
        None => Err(too_long(&format!("{command:?}"), limit)),
    }
}

/// Ends this program if what is returned lives longer than a step may take: a function cannot be stopped. What the function has started
/// ends with the program.
fn exit_after_limit(name: &str) -> mpsc::Sender<()> {
    let (watch, dropped) = mpsc::channel();
    let name = name.to_owned();
    thread::spawn(move || {
        if dropped.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{}", too_long(&name, LIMIT));
            exit(1);
        }
    });
    watch
}

fn too_long(what: &str, limit: Duration) -> String {
    format!("{what} took longer than {limit:?}, and was ended")
}

fn say(text: &str) {
    print!("{text}");
    drop(std::io::stdout().flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_hangs_fails_by_its_name() {
        let mut steps = Steps::new(false);
        assert!(steps.command("a test of steps", &mut Command::new("true")));
        let limit = Duration::from_millis(200);
        assert!(!steps.command_within(limit, "a step that hangs", Command::new("sleep").arg("600")));
        let why = steps.done[1].failure.as_ref().map(|failure| failure.why.clone()).unwrap();
        assert!(why.contains("a step that hangs took longer than 200ms, and was ended"), "{why}");
        assert_eq!(steps.summary(), Err("1 of 2 steps failed: a step that hangs".to_owned()));
    }
}
