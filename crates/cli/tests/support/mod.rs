//! A store in a directory of its own, the real program, and waiting for what it does.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)]

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};

pub mod pty;

use leasehold::{Client, Eviction, OperatorCommand, Snapshot};
use rustix::process::{Pid, Signal, kill_process};

/// Far longer than anything takes: a test that gets here has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with a store in it.
pub struct Site {
    pub directory: tempfile::TempDir,
}

impl Site {
    pub fn new() -> Site {
        Site { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn database(&self) -> PathBuf {
        self.path("leases.db")
    }

    /// The program, on this store, without anything of our own environment that it would read.
    pub fn leasehold(&self) -> Command {
        self.command(env!("CARGO_BIN_EXE_leasehold"))
    }

    /// A shell that finds the program as `$L`.
    pub fn shell(&self, script: &str) -> Command {
        let mut shell = self.command("sh");
        shell.env("L", env!("CARGO_BIN_EXE_leasehold")).args(["-c", script]).stdin(Stdio::null());
        shell
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(name);
            }
        }
        command.env("LEASEHOLD_DIR", self.directory.path());
        command.env("HOME", self.directory.path()).env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
        command.current_dir(self.directory.path());
        command
    }

    /// `leasehold run ARGUMENTS…`
    pub fn run<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = self.leasehold();
        command.arg("run").args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a script under `x/1`, with these options of `run` before.
    pub fn script(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.run(options);
        command.args(["x/1", "--", "sh", "-c", script]);
        command
    }

    /// What the store says of it.
    pub fn look(&self, kind: &str, id: &str) -> Snapshot {
        self.ask(async |client| client.look(kind, id).await.unwrap())
    }

    /// Ends whoever holds `x/1`.
    pub fn evict(&self, how: Eviction) {
        self.order(leasehold::OperatorAction::Evict(how));
    }

    pub fn order(&self, command: leasehold::OperatorAction) {
        let order = OperatorCommand::new("x/1".parse().unwrap(), command, "a test", "to see what happens");
        self.ask(async |client| client.order(&order).await.unwrap());
    }

    pub fn ask<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = format!("sqlite:{}", self.database().display());
        runtime.block_on(async { work(leasehold::connect(&url).await.unwrap()).await })
    }

    /// Waits until so many wait in line for `x/1`.
    pub fn until_waiting(&self, count: u32) {
        eventually("they wait", || self.look("x", "1").queue_length >= count);
    }

    /// Keeps everyone else from the store until it is dropped.
    pub fn lock(&self) -> Locked {
        let connection = rusqlite::Connection::open(self.database()).unwrap();
        connection.busy_timeout(PATIENCE).unwrap();
        connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
        Locked(connection)
    }
}

/// What was written, as text.
pub fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub struct Locked(rusqlite::Connection);

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

/// Waits until something is so.
#[track_caller]
pub fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    assert!(comes_true(is_so), "gave up waiting until {what}");
}

pub fn comes_true(mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// A process that was started and is read from.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

pub trait Start {
    fn start(&mut self) -> Running;
}

impl Start for Command {
    fn start(&mut self) -> Running {
        let mut child = self.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = listen(child.stdout.take().unwrap());
        let errors = listen(child.stderr.take().unwrap());
        Running { child, lines, errors }
    }
}

fn listen(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(from).split(b'\n').map_while(Result::ok);
        for line in lines {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    lines
}

impl Running {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The next line on stdout.
    #[track_caller]
    pub fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line on stdout")
    }

    /// Reads lines until this one.
    #[track_caller]
    pub fn until(&self, wanted: &str) {
        while self.line() != wanted {}
    }

    /// The next line on stderr.
    #[track_caller]
    pub fn error(&self) -> String {
        self.errors.recv_timeout(PATIENCE).expect("a line on stderr")
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    pub fn write(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        eventually("it ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    /// The exit code, and what else leasehold said on stderr.
    #[track_caller]
    pub fn end(mut self) -> (i32, Vec<String>) {
        let status = self.wait();
        let ours = self.errors.iter().filter(|line| line.starts_with("leasehold: ") || line.starts_with('{'));
        (status.code().unwrap_or_else(|| -status.signal().unwrap()), ours.collect())
    }

    #[track_caller]
    pub fn code(self) -> i32 {
        self.end().0
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // a test that failed leaves nothing running: the guardian sees to the rest
        let _ = self.child.wait();
    }
}

/// The exit code and the lines on stderr.
#[track_caller]
pub fn ended(output: &Output) -> (i32, Vec<String>) {
    let errors = String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect();
    (output.status.code().unwrap_or_else(|| -output.status.signal().unwrap()), errors)
}

pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Whether this process is there, and more than a zombie.
pub fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The state of a process, as `ps` has it.
pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}

/// The children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The number that a script wrote to a file, once it has.
#[track_caller]
pub fn pid_in(path: &Path) -> i32 {
    let mut pid = None;
    eventually("a pid is written", || {
        pid = fs::read_to_string(path)
            .ok()
            .filter(|text| text.ends_with('\n'))
            .and_then(|text| text.trim().parse().ok());
        pid.is_some()
    });
    pid.unwrap()
}

pub fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}
