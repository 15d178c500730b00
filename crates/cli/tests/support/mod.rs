//! Runs the real program on a SQLite store in a directory of its own, and waits for what it does.
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

mod default_signals;
pub mod pty;
pub mod serving;

use leasehold::{Client, Eviction, OperatorCommand, Snapshot};
use rustix::process::{Pid, Signal, kill_process};

/// How long a test waits for something. It is far longer than anything takes, so a test that gets here has
/// failed.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A temporary directory with a store in it.
pub struct TestDir {
    pub directory: tempfile::TempDir,
}

impl TestDir {
    pub fn new() -> TestDir {
        TestDir { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn database(&self) -> PathBuf {
        self.path("leases.db")
    }

    /// `leasehold` on this store.
    pub fn leasehold(&self) -> Command {
        self.command(env!("CARGO_BIN_EXE_leasehold"))
    }

    /// A shell that finds the program as `$L`.
    pub fn shell(&self, script: &str) -> Command {
        let mut shell = self.command("sh");
        shell.env("L", env!("CARGO_BIN_EXE_leasehold")).args(["-c", script]).stdin(Stdio::null());
        shell
    }

    /// A program in this directory, with default signals and without variables of our environment that
    /// `leasehold` reads.
    pub fn command(&self, program: &str) -> Command {
        let mut command = default_signals::command(program);
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

    /// `leasehold run OPTIONS… x/1 -- sh -c SCRIPT`
    pub fn script(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.run(options);
        command.args(["x/1", "--", "sh", "-c", script]);
        command
    }

    /// The state of a resource in the store.
    pub fn look(&self, kind: &str, id: &str) -> Snapshot {
        self.with_client(async |client| client.look(kind, id).await.unwrap())
    }

    /// Evicts the holder of `x/1`.
    pub fn evict(&self, how: Eviction) {
        self.order(leasehold::OperatorAction::Evict(how));
    }

    /// Sends an order for `x/1` to the store.
    pub fn order(&self, action: leasehold::OperatorAction) {
        let order = OperatorCommand::new("x/1".parse().unwrap(), action, "a test", "to see what happens");
        self.with_client(async |client| client.order(&order).await.unwrap());
    }

    /// Runs `work` with a client of the library on this store.
    pub fn with_client<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = format!("sqlite:{}", self.database().display());
        runtime.block_on(async { work(leasehold::connect(&url).await.unwrap()).await })
    }

    /// Waits until at least so many waiters are in the queue of `x/1`.
    pub fn until_waiting(&self, count: u32) {
        eventually("they wait", || self.look("x", "1").queue_length >= count);
    }

    /// Locks the file of the store, until the lock is dropped: every other process gets no reply.
    pub fn lock(&self) -> StoreLock {
        let connection = rusqlite::Connection::open(self.database()).unwrap();
        connection.busy_timeout(TIMEOUT).unwrap();
        connection.execute_batch("BEGIN EXCLUSIVE").unwrap();
        StoreLock(connection)
    }
}

/// Bytes that a program printed, as text.
pub fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An exclusive lock on the file of the store.
pub struct StoreLock(rusqlite::Connection);

impl Drop for StoreLock {
    fn drop(&mut self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

/// Waits until the condition is true. Panics after the timeout.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(wait_until(condition), "gave up waiting until {what}");
}

/// Waits until the condition is true. False after the timeout.
pub fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// A running process and the lines that it has printed.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

/// Starts a command and reads its output.
pub trait Start {
    fn start(&mut self) -> Running;
}

impl Start for Command {
    fn start(&mut self) -> Running {
        let mut child = self.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = read_lines(child.stdout.take().unwrap());
        let errors = read_lines(child.stderr.take().unwrap());
        Running { child, lines, errors }
    }
}

/// Reads lines in a thread.
fn read_lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
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
    pub fn next_line(&self) -> String {
        self.lines.recv_timeout(TIMEOUT).expect("a line on stdout")
    }

    /// Reads lines on stdout until this one.
    #[track_caller]
    pub fn wait_for_line(&self, wanted: &str) {
        while self.next_line() != wanted {}
    }

    /// The next line on stderr.
    #[track_caller]
    pub fn next_error_line(&self) -> String {
        self.errors.recv_timeout(TIMEOUT).expect("a line on stderr")
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

    /// Waits for the end. The exit code (`-n` after signal n), and the lines of leasehold on stderr.
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
        let _ = self.child.kill(); // after a failed test nothing stays running: the guardian ends the command
        let _ = self.child.wait();
    }
}

/// The exit code (`-n` after signal n) and the lines on stderr.
#[track_caller]
pub fn exit_and_errors(output: &Output) -> (i32, Vec<String>) {
    let errors = String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect();
    (output.status.code().unwrap_or_else(|| -output.status.signal().unwrap()), errors)
}

pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Whether this process exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The state of a process, as the letter of `ps`.
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

/// Waits until a script has written a number to this file.
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
