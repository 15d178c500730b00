//! A server process with a folder of its own.

use std::{
    fs,
    io::{self, BufRead as _, BufReader},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// How long a server may take to serve, on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Starts the program and tells its process id; when the other end of the pipe is gone, ends it.
const KEEPER: &str = r#""$@" & echo $!; read -r _; kill -9 $! 2>/dev/null; wait; "#;
/// The same for a program that must clean up after itself: it is asked to quit, and killed if it does not.
const GENTLE_KEEPER: &str = r#""$@" & p=$!; echo $p; read -r _; kill -CONT $p 2>/dev/null; kill -QUIT $p 2>/dev/null
(sleep 5; kill -9 $p 2>/dev/null) & k=$!; wait $p; kill $k 2>/dev/null; "#;
/// The same, and removes the folder that `$0` names.
const CLEANER: &str = r#"rm -rf -- "$0""#;

/// A process, which ends with this handle or with the process that holds it, however that ends.
#[derive(Debug)]
pub struct Daemon {
    keeper: Child,
    pid: Pid,
}

impl Daemon {
    /// Starts a program. With a `folder` to clean, that is removed when the program has ended.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(program: &str, args: &[String], log: &Path, folder: Option<&Path>) -> Daemon {
        Daemon::kept_by(KEEPER, program, args, log, folder)
    }

    /// The same for a program that leaves something behind when it is killed: at the end it is asked to quit.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_gently(program: &str, args: &[String], log: &Path, folder: Option<&Path>) -> Daemon {
        Daemon::kept_by(GENTLE_KEEPER, program, args, log, folder)
    }

    fn kept_by(keeper: &str, program: &str, args: &[String], log: &Path, folder: Option<&Path>) -> Daemon {
        let log = fs::File::create(log).expect("a log can be written");
        let script = if folder.is_some() { format!("{keeper}{CLEANER}") } else { keeper.to_owned() };
        let errors = log.try_clone().expect("a file can be opened twice");
        let mut keeper = Command::new("sh")
            .args(["-c", &script])
            .arg(folder.unwrap_or(Path::new("sh")))
            .arg("env")
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("a shell can be started");
        let output = keeper.stdout.take().expect("its output is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("the shell tells the process id");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        Daemon { keeper, pid: pid.expect("a process id is a number") }
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Kills it at once, as a power cut would.
    pub fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
        // Until the port is free again.
        let until = Instant::now() + PATIENCE;
        while self.is_running() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops it: it is there and does not answer. Returns when the last of its threads has stopped.
    ///
    /// # Panics
    /// If it is not there to be stopped.
    pub fn freeze(&self) {
        kill_process(self.pid, Signal::STOP).expect("the server is there to be stopped");
        eventually("the server does not stop", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.pid.as_raw_nonzero()))?;
            let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
            let stopped =
                |stat: &str| stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('T'));
            let running = stats.filter(|stat| !stopped(stat)).count();
            if running == 0 { Ok(()) } else { Err(io::Error::other(format!("{running} threads run"))) }
        });
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        let _ = kill_process(self.pid, Signal::CONT);
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        // A zombie is there and does not run.
        test_kill_process(self.pid).is_ok() && self.state() != Some('Z')
    }

    /// Whether it runs and is not frozen.
    pub(super) fn is_awake(&self) -> bool {
        self.is_running() && self.state() != Some('T')
    }

    fn state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())).ok()?;
        stat.rsplit(')').next()?.trim().chars().next()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.thaw();
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// A port that nobody listens on at the moment, and that this process has not handed out before. It is below those from
/// which connections go out: one of those would have taken it by the time the server listens.
pub(super) fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that run side by side look in different places.
    let start = std::process::id().wrapping_mul(7919);
    let ports = std::iter::repeat_with(|| start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))
        .take(COUNT as usize)
        .map(|number| (FIRST + number % COUNT) as u16);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a port is free")
}

/// A fresh folder.
pub(super) fn fresh_folder(name: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("leasehold-{name}-{}-{number}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

/// Tries until it succeeds; panics with the reason when it takes too long.
pub(super) fn eventually<T>(what: &str, mut attempt: impl FnMut() -> io::Result<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) if Instant::now() > until => panic!("{what}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A connection to a port of this host.
pub(super) fn dial(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(stream)
}
