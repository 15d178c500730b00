//! A process of a peer, driven by the protocol of `bench/peers/README.md`.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use serde::Deserialize;

use crate::{build_folder, stores::CpuTime};

/// How long a process may take to end after its input has ended.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// What one process measured in one run.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Measured {
    /// Completed pairs, grants, or leases that are alive.
    pub done: u64,
    /// How long the work took.
    pub took_ns: u64,
    /// Failed attempts.
    #[serde(default)]
    pub errors: u64,
    /// The time of each pair.
    #[serde(default)]
    pub latencies_ns: Vec<u64>,
    /// `[time, holder, …]`.
    #[serde(default)]
    pub grants: Vec<u64>,
}

/// A running process. It is killed when this is dropped, unless it has ended by then.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    lines: Receiver<String>,
    log: std::path::PathBuf,
}

impl Worker {
    /// Starts a process. What it writes to its standard error goes to a log named `name`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &[String], words: &[String], name: &str) -> Result<Worker, String> {
        let logs = build_folder().join("logs");
        let log = logs.join(format!("{}.log", name.replace([' ', '/'], "-")));
        let failed = |error: std::io::Error| format!("cannot start {}: {error}", command[0]);
        fs::create_dir_all(&logs).map_err(failed)?;
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let output = child.stdout.take().expect("its output is a pipe");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Worker { child, lines, log })
    }

    /// Waits until it is connected.
    ///
    /// # Errors
    /// If it ends before, or takes too long.
    pub fn await_ready(&self, timeout: Duration) -> Result<(), String> {
        match self.line(timeout)?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("expected the line `ready`, got `{}`", shortened(other))),
        }
    }

    /// Tells it to work.
    ///
    /// # Errors
    /// If it has ended.
    pub fn go(&mut self, lasting: Duration) -> Result<(), String> {
        let input = self.child.stdin.as_mut().expect("its input is open until it is stopped");
        writeln!(input, "go {}", lasting.as_millis()).map_err(|_| format!("it has ended: {}", self.why()))
    }

    /// Waits for what it measured.
    ///
    /// # Errors
    /// If it ends before, takes too long, or prints something else.
    pub fn measured(&self, timeout: Duration) -> Result<Measured, String> {
        let line = self.line(timeout)?;
        serde_json::from_str(&line).map_err(|error| format!("{error} in `{}`", shortened(&line)))
    }

    fn line(&self, timeout: Duration) -> Result<String, String> {
        self.lines.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no answer for {} s", timeout.as_secs()),
            RecvTimeoutError::Disconnected => format!("it has ended: {}", self.why()),
        })
    }

    /// The last line of its log.
    fn why(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        shortened(log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing"))
    }

    /// The CPU time that it has spent so far.
    pub fn cpu_time(&self) -> CpuTime {
        CpuTime::of_trees(&[self.child.id()])
    }

    /// Ends it at once. What it holds stays at the server.
    pub fn kill(mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let until = Instant::now() + END_TIMEOUT;
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn shortened(line: &str) -> String {
    line.chars().take(160).collect()
}
