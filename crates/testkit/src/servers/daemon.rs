//! A server process with a folder of its own.

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::default_signals::DEFAULT_SIGNALS;

/// How long a server may take to start, to change its state or to end, on a busy machine.
pub(super) const SERVER_TIMEOUT: Duration = Duration::from_secs(30);
/// How many lines of a log a failure shows.
const LOG_LINES: usize = 30;

/// The supervisor: a shell that starts the program and prints its process id. When the pipe to its standard
/// input closes, because the test ended or was killed, it kills the program. The output of the program goes
/// to the log.
const SUPERVISOR: &str = r#""$@" >&2 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait; "#;
/// The same for a program that must clean up after itself: SIGQUIT first, and SIGKILL five seconds later.
const GENTLE_SUPERVISOR: &str = r#""$@" >&2 & p=$!; echo $p; read -r _; kill -CONT $p 2>/dev/null; kill -QUIT $p 2>/dev/null
(sleep 5; kill -9 $p 2>/dev/null) & k=$!; wait $p; kill $k 2>/dev/null; "#;
/// At the end of a supervisor: removes the folder that `$0` names.
const REMOVE_FOLDER: &str = r#"rm -rf -- "$0""#;

/// A server process. It ends when this handle is dropped, and also when the process of the test ends in any
/// way.
#[derive(Debug)]
pub struct Daemon {
    supervisor: Child,
    pid: Pid,
    log: PathBuf,
}

impl Daemon {
    /// Starts a program. Its output goes to the file `log`. If `folder` is given, it is removed when the
    /// program has ended.
    ///
    /// # Panics
    /// If the supervisor cannot be started.
    pub fn start(program: &str, args: &[String], log: &Path, folder: Option<&Path>) -> Daemon {
        Daemon::supervised_by(SUPERVISOR, program, args, log, folder)
    }

    /// As [`start`](Daemon::start), for a program that leaves something behind when it is killed: at the end
    /// it gets SIGQUIT, and SIGKILL only if it does not end.
    ///
    /// # Panics
    /// If the supervisor cannot be started.
    pub fn start_gently(program: &str, args: &[String], log: &Path, folder: Option<&Path>) -> Daemon {
        Daemon::supervised_by(GENTLE_SUPERVISOR, program, args, log, folder)
    }

    fn supervised_by(
        supervisor: &str,
        program: &str,
        args: &[String],
        log: &Path,
        folder: Option<&Path>,
    ) -> Daemon {
        let script =
            if folder.is_some() { format!("{supervisor}{REMOVE_FOLDER}") } else { supervisor.to_owned() };
        let mut supervisor = Command::new("sh")
            .args(["-c", &script])
            .arg(folder.unwrap_or(Path::new("sh")))
            // The shell starts background commands with SIGINT and SIGQUIT ignored.
            .args(["env", DEFAULT_SIGNALS])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(log).expect("a log can be written"))
            .spawn()
            .expect("a shell can be started");
        let output = supervisor.stdout.take().expect("its output is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("the shell prints the process id");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        Daemon { supervisor, pid: pid.expect("a process id is a number"), log: log.to_owned() }
    }

    /// The process id of the server.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Tries until the server answers.
    ///
    /// # Panics
    /// At once if the process has exited (the port is taken, the program is not installed), with the end of
    /// its log; or when it does not answer in time.
    pub(super) fn await_answer<T>(&self, server: &str, mut attempt: impl FnMut() -> io::Result<T>) -> T {
        let until = Instant::now() + SERVER_TIMEOUT;
        loop {
            let answer = attempt();
            // Also after a good answer: another server may have answered, which took the port.
            assert!(
                self.is_running(),
                "{server} exited at its start. The end of its log:\n{}",
                self.log_end()
            );
            match answer {
                Ok(answer) => return answer,
                Err(error) if Instant::now() > until => {
                    let log = self.log_end();
                    panic!(
                        "{server} does not answer after {SERVER_TIMEOUT:?}: {error}. The end of its log:\n{log}"
                    )
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// The last lines of the log.
    fn log_end(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Kills the server at once, as a power cut would, and waits until it is gone: then its port is free
    /// again.
    pub fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let until = Instant::now() + SERVER_TIMEOUT;
        while self.is_running() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the server (SIGSTOP): it is alive and does not answer. Returns when the last of its threads has
    /// stopped.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&self) {
        kill_process(self.pid, Signal::STOP).expect("the server runs");
        eventually("the server does not stop", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.pid.as_raw_nonzero()))?;
            let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
            let stopped =
                |stat: &str| stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('T'));
            let running = stats.filter(|stat| !stopped(stat)).count();
            if running == 0 { Ok(()) } else { Err(io::Error::other(format!("{running} threads run"))) }
        });
    }

    /// Continues a frozen server (SIGCONT).
    pub fn thaw(&self) {
        let _ = kill_process(self.pid, Signal::CONT);
    }

    /// Whether the process runs. A frozen one counts as running.
    pub fn is_running(&self) -> bool {
        // A zombie still has its process id, and does not run.
        test_kill_process(self.pid).is_ok() && self.state() != Some('Z')
    }

    /// Whether the process runs and is not frozen.
    pub(super) fn is_awake(&self) -> bool {
        self.is_running() && self.state() != Some('T')
    }

    /// The state of the process as `/proc` has it: `R`, `S`, `T` (stopped), `Z` (zombie).
    fn state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).ok()?;
        stat.rsplit(')').next()?.trim().chars().next()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.thaw();
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

/// A port on which no process listens at the moment, and that this process has not returned before.
pub(super) fn free_port() -> u16 {
    // Below the ephemeral ports: an outgoing connection could take one of those before the server listens.
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test processes that run side by side start at different ports.
    let start = std::process::id().wrapping_mul(7919);
    let ports = std::iter::repeat_with(|| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))
        .take(COUNT as usize)
        .map(|number| (FIRST + number % COUNT) as u16);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a port is free")
}

/// A new, empty folder.
pub(super) fn fresh_folder(name: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("leasehold-{name}-{}-{number}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

/// Tries until it succeeds. Panics with `failure` and the last error when that takes too long.
pub(super) fn eventually<T>(failure: &str, mut attempt: impl FnMut() -> io::Result<T>) -> T {
    let until = Instant::now() + SERVER_TIMEOUT;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) if Instant::now() > until => panic!("{failure}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A connection to a port of this host.
pub(super) fn connect_to(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}

/// A program and its arguments, wrapped so that the tests' root account runs them as another account.
pub(super) fn run_as(account: &str, program: &Path, args: &[String]) -> (String, Vec<String>) {
    let program = program.to_string_lossy().into_owned();
    if !rustix::process::geteuid().is_root() {
        return (program, args.to_vec());
    }
    let mut all: Vec<String> =
        [format!("--reuid={account}"), format!("--regid={account}"), "--init-groups".into()].into();
    all.push(program);
    all.extend_from_slice(args);
    ("setpriv".to_owned(), all)
}

/// What a program printed, as text.
pub(super) fn output_text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end().to_owned()
}

/// How a program ended, and what it printed as its error.
pub(super) fn command_failure(output: &Output) -> io::Error {
    io::Error::other(format!("{}: {}", output.status, output_text(&output.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Daemon {
        let folder = fresh_folder("daemon");
        let args = ["-c".to_owned(), script.to_owned()];
        Daemon::start("sh", &args, &folder.join("log"), Some(&folder))
    }

    #[test]
    #[should_panic(expected = "a server exited at its start. The end of its log:\nthe port is taken")]
    fn a_server_that_exits_at_its_start_is_reported_at_once_with_its_log() {
        let daemon = start("echo the port is taken; exit 1");
        daemon.await_answer("a server", || -> io::Result<()> { Err(io::Error::other("refused")) });
    }

    #[test]
    #[should_panic(expected = "No such file or directory")]
    fn a_program_that_is_not_installed_is_reported_at_once() {
        let folder = fresh_folder("daemon");
        let daemon = Daemon::start("/no/such/program", &[], &folder.join("log"), Some(&folder));
        daemon.await_answer("a server", || -> io::Result<()> { Err(io::Error::other("refused")) });
    }

    #[test]
    fn a_server_has_the_default_action_for_signals() {
        let daemon = start("echo ready; exec sleep 600");
        let is_ready = || if daemon.log_end() == "ready" { Ok(()) } else { Err(io::Error::other("not yet")) };
        daemon.await_answer("the server", is_ready);
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid().as_raw_nonzero())).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
        let ignored = u64::from_str_radix(ignored, 16).unwrap();
        for signal in [Signal::INT, Signal::QUIT, Signal::HUP, Signal::TERM] {
            assert_eq!(ignored >> (signal.as_raw() - 1) & 1, 0, "{signal:?} is ignored: {ignored:x}");
        }
    }
}
