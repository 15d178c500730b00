//! PostgreSQL: one server; a primary with a standby. Pools in front of it are in `pools`.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::daemon::{Daemon, PATIENCE, eventually, free_port, fresh_folder};

/// The account that runs a server when the tests run as root: PostgreSQL refuses to be root.
const ACCOUNT: &str = "postgres";

/// A PostgreSQL server. Everyone from this host is its superuser `postgres`, in the database `postgres`.
///
/// ```no_run
/// use leasehold_testkit::servers::PostgresServer;
///
/// let server = PostgresServer::start();
/// assert_eq!(server.sql("SELECT 1 + 1"), "2");
/// ```
#[derive(Debug)]
pub struct PostgresServer {
    port: u16,
    folder: PathBuf,
    settings: Vec<String>,
    daemon: Mutex<Option<Daemon>>,
}

impl PostgresServer {
    /// One that does not wait for its disk: quick, and it forgets at a power cut, but not at a kill.
    ///
    /// # Panics
    /// If the package `postgresql` is not installed, or the server does not serve.
    pub fn start() -> PostgresServer {
        PostgresServer::with(&["fsync=off"])
    }

    /// One that waits for its disk, as it does by default.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn durable() -> PostgresServer {
        PostgresServer::with(&[])
    }

    /// One with these settings: `["max_connections=10"]`.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn with(settings: &[&str]) -> PostgresServer {
        let server = PostgresServer::prepared(settings);
        let data = server.data();
        let args = ["-D", &data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"];
        succeed(&mut as_account(&binary("initdb"), &args));
        server.run();
        server
    }

    fn prepared(settings: &[&str]) -> PostgresServer {
        let folder = fresh_folder("postgres");
        give(&folder);
        PostgresServer {
            port: free_port(),
            folder,
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            daemon: Mutex::new(None),
        }
    }

    /// A standby that streams from this one. A synchronous one is waited for by every commit here.
    ///
    /// # Panics
    /// If it does not follow.
    pub fn standby(&self, synchronous: bool) -> PostgresServer {
        let settings: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        let standby = PostgresServer::prepared(&settings);
        let (from, data) = (format!("host=127.0.0.1 port={} user=postgres", self.port), standby.data());
        let args = ["-d", &from, "-D", &data, "-R", "-X", "stream", "-c", "fast", "--no-sync"];
        succeed(&mut as_account(&binary("pg_basebackup"), &args));
        standby.run();
        if synchronous {
            self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
            self.sql("SELECT pg_reload_conf()");
        }
        // Of several synchronous ones, one is waited for and the others are ready to be.
        let others = if synchronous { "'sync', 'potential', 'quorum'" } else { "'async'" };
        let lagging = format!(
            "SELECT pid, state, sync_state FROM pg_stat_replication \
             WHERE state <> 'streaming' OR sync_state NOT IN ({others})"
        );
        eventually("the standby does not follow", || {
            let status = standby.try_sql("SELECT status FROM pg_stat_wal_receiver")?;
            let lagging = self.try_sql(&lagging)?;
            let follows = status == "streaming" && lagging.is_empty();
            if follows { Ok(()) } else { Err(io::Error::other(format!("{status} {lagging}"))) }
        });
        standby
    }

    /// Makes a standby a primary.
    ///
    /// # Panics
    /// If it does not become one.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote(true, 60)"), "t", "the standby is promoted");
    }

    fn run(&self) {
        let mut args = vec!["-D".to_owned(), self.data()];
        let mut set = |setting: String| args.extend(["-c".to_owned(), setting]);
        set(format!("port={}", self.port));
        set("listen_addresses=127.0.0.1".to_owned());
        set(format!("unix_socket_directories={}", self.folder.display()));
        // No shared memory outside the folder, and no more of it than a test needs.
        set("dynamic_shared_memory_type=mmap".to_owned());
        set("shared_buffers=16MB".to_owned());
        self.settings.iter().for_each(|setting| set(setting.clone()));
        let (program, args) = words(&binary("postgres"), &args);
        // A killed one leaves a segment of shared memory behind.
        *self.lock() =
            Some(Daemon::start_gently(&program, &args, &self.folder.join("log"), Some(&self.folder)));
        eventually("postgres does not serve: is the package postgresql installed?", || {
            self.try_sql("SELECT 1").map_err(|error| {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                io::Error::other(format!("{error}\n{log}"))
            })
        });
    }

    fn data(&self) -> String {
        self.folder.join("data").to_string_lossy().into_owned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of its database `postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Executes SQL on a connection of its own; the rows as lines, the columns parted by `|`.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, text: &str) -> String {
        self.try_sql(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// The same, or what the server says against it.
    ///
    /// # Errors
    /// What the server says, or that there is none.
    pub fn try_sql(&self, text: &str) -> io::Result<String> {
        let port = self.port.to_string();
        let mut psql = Command::new(binary("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &port]);
        psql.args(["-U", "postgres", "-d", "postgres", "-c", text]).env("PGCONNECT_TIMEOUT", "5");
        let output = psql.output()?;
        if output.status.success() { Ok(said(&output.stdout)) } else { Err(failure(&output)) }
    }

    /// Asks every role but `postgres` for its password.
    ///
    /// # Panics
    /// If that cannot be set.
    pub fn require_passwords(&self) {
        let rules = "host all postgres 127.0.0.1/32 trust\nhost replication postgres 127.0.0.1/32 trust\n\
                     host all all 127.0.0.1/32 scram-sha-256\n";
        let path = Path::new(&self.data()).join("pg_hba.conf");
        fs::write(path, rules).expect("its configuration can be written");
        self.sql("SELECT pg_reload_conf()");
    }

    /// A key and a certificate for `localhost` in its folder, which is also the one to trust.
    ///
    /// # Panics
    /// If the package `openssl` is not installed.
    pub fn certificate(&self, name: &str) -> (String, String) {
        let file = |end: &str| self.folder.join(format!("{name}.{end}")).to_string_lossy().into_owned();
        let (key, certificate) = (file("key"), file("crt"));
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ]);
        openssl.args(["-keyout", &key, "-out", &certificate, "-addext", "subjectAltName=DNS:localhost"]);
        succeed(openssl.args(["-addext", "basicConstraints=CA:FALSE"]));
        (key, certificate)
    }

    /// Lets it speak TLS from now on, to who comes as `localhost`. Answers the certificate to trust.
    ///
    /// # Panics
    /// If that cannot be set.
    pub fn speak_tls(&self) -> String {
        let (key, certificate) = self.certificate("server");
        // It wants its key to itself.
        fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("it is ours");
        for file in [&key, &certificate] {
            give(Path::new(file));
        }
        self.sql(&format!("ALTER SYSTEM SET ssl_cert_file = '{certificate}'"));
        self.sql(&format!("ALTER SYSTEM SET ssl_key_file = '{key}'"));
        self.sql("ALTER SYSTEM SET ssl = on");
        self.sql("SELECT pg_reload_conf()");
        eventually("the server does not read its settings", || {
            if self.try_sql("SHOW ssl")? == "on" { Ok(()) } else { Err(io::Error::other("it is off")) }
        });
        certificate
    }

    /// Kills it and all that belongs to it at once. It stays down until [`run_again`](PostgresServer::run_again).
    pub fn kill(&self) {
        let all = self.processes();
        // Stopped first: else the rest of it would learn of the first death, and end in good order.
        signal_all(&all, Signal::STOP);
        signal_all(&all, Signal::KILL);
        if let Some(daemon) = &*self.lock() {
            daemon.kill();
        }
        let until = Instant::now() + PATIENCE;
        while all.iter().any(|pid| runs(*pid)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it in good order: clients are cut off, everything is written.
    ///
    /// # Panics
    /// If it does not end.
    pub fn stop(&self) {
        let daemon = self.lock();
        let Some(daemon) = daemon.as_ref().filter(|daemon| daemon.is_running()) else { return };
        let _ = kill_process(daemon.pid(), Signal::INT);
        let until = Instant::now() + PATIENCE;
        while daemon.is_running() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts it again on the same port, with what is on its disk.
    ///
    /// # Panics
    /// If it does not serve.
    pub fn run_again(&self) {
        // The folder goes with the process that is down, so the data steps aside meanwhile.
        let kept = fresh_folder("postgres-kept");
        give(&kept);
        fs::rename(self.data(), kept.join("data")).expect("its data can be moved");
        *self.lock() = None;
        fs::create_dir_all(&self.folder).expect("a folder can be made");
        give(&self.folder);
        fs::rename(kept.join("data"), self.data()).expect("its data can be moved back");
        let _ = fs::remove_dir_all(&kept);
        self.run();
    }

    /// Stops it and all that belongs to it: it is there and does not answer.
    pub fn freeze(&self) {
        signal_all(&self.processes(), Signal::STOP);
    }

    /// Stops those of its processes whose title has this in it: `walreceiver`.
    ///
    /// # Panics
    /// If there is none.
    pub fn freeze_part(&self, title: &str) {
        let part: Vec<_> =
            self.processes().into_iter().filter(|pid| title_of(*pid).contains(title)).collect();
        assert!(!part.is_empty(), "there is no process with {title} in its title");
        signal_all(&part, Signal::STOP);
    }

    /// Lets everything go on.
    pub fn thaw(&self) {
        signal_all(&self.processes(), Signal::CONT);
    }

    /// The first process, then its children: there are no others.
    fn processes(&self) -> Vec<Pid> {
        let Some(first) = self.lock().as_ref().filter(|daemon| daemon.is_running()).map(Daemon::pid) else {
            return Vec::new();
        };
        let mut all = vec![first];
        all.extend(children(first));
        all
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.thaw();
    }
}

/// A program of the newest PostgreSQL that Debian has installed, or the one on the path.
pub(super) fn binary(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions
        .map(|entry| entry.path())
        .filter(|path| path.join("bin/postgres").exists())
        .max_by_key(|path| number(path).unwrap_or(0));
    newest.map_or_else(|| PathBuf::from(name), |folder| folder.join("bin").join(name))
}

/// A program and its arguments, to be run by an account that is not root.
pub(super) fn words(program: &Path, args: &[String]) -> (String, Vec<String>) {
    let program = program.to_string_lossy().into_owned();
    if !rustix::process::geteuid().is_root() {
        return (program, args.to_vec());
    }
    let mut all: Vec<String> =
        [format!("--reuid={ACCOUNT}"), format!("--regid={ACCOUNT}"), "--init-groups".into()].into();
    all.push(program);
    all.extend_from_slice(args);
    ("setpriv".to_owned(), all)
}

fn as_account(program: &Path, args: &[&str]) -> Command {
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let (program, args) = words(program, &args);
    let mut command = Command::new(program);
    // Not everyone may look into the folder that the tests run in.
    command.args(args).current_dir("/");
    command
}

/// Gives a folder to the account that runs the server.
pub(super) fn give(folder: &Path) {
    if rustix::process::geteuid().is_root() {
        succeed(Command::new("chown").arg("-R").arg(ACCOUNT).arg(folder));
    }
}

fn succeed(command: &mut Command) {
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{command:?}: {}", failure(&output)),
        Err(error) => panic!("{command:?}: {error}: is the package postgresql installed?"),
    }
}

fn said(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end().to_owned()
}

pub(super) fn failure(output: &Output) -> io::Error {
    io::Error::other(format!("{}: {}", output.status, said(&output.stderr)))
}

fn signal_all(pids: &[Pid], signal: Signal) {
    for pid in pids {
        // Some may have ended by themselves.
        let _ = kill_process(*pid, signal);
    }
}

fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let is_child = |pid: &Pid| stat(*pid).and_then(|fields| fields.get(1).cloned()).as_ref() == Some(&parent);
    pids.filter(is_child).collect()
}

/// What `/proc` says after the name: state, parent, and so on.
fn stat(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Some(stat.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

fn runs(pid: Pid) -> bool {
    stat(pid).is_some_and(|fields| fields.first().is_some_and(|state| state != "Z"))
}

fn title_of(pid: Pid) -> String {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}
