//! One PostgreSQL server, or a primary with standbys. The connection pools in front of it are in `pools`.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::daemon::{
    Daemon, SERVER_TIMEOUT, command_failure, eventually, free_port, fresh_folder, output_text, run_as,
};

/// The account that runs a server when the tests run as root: PostgreSQL refuses to run as root.
const ACCOUNT: &str = "postgres";

/// A PostgreSQL server. Every connection from this host may be the superuser `postgres`, without a password.
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
    /// Starts a server with `fsync=off`: fast, and its data survives a kill, but would not survive a power
    /// cut.
    ///
    /// # Panics
    /// If the package `postgresql` is not installed, or the server does not answer.
    pub fn start() -> PostgresServer {
        PostgresServer::with(&["fsync=off"])
    }

    /// Starts a server with the default settings: every commit waits for the disk.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn durable() -> PostgresServer {
        PostgresServer::with(&[])
    }

    /// Starts a server with these settings: `["max_connections=10"]`.
    ///
    /// # Panics
    /// As [`start`](PostgresServer::start).
    pub fn with(settings: &[&str]) -> PostgresServer {
        let server = PostgresServer::prepared(settings);
        let data = server.data();
        let args = ["-D", &data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"];
        run_command(&mut account_command(&binary("initdb"), &args));
        server.run();
        server
    }

    fn prepared(settings: &[&str]) -> PostgresServer {
        let folder = fresh_folder("postgres");
        give_to_account(&folder);
        PostgresServer {
            port: free_port(),
            folder,
            settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
            daemon: Mutex::new(None),
        }
    }

    /// Starts a standby that streams from this server. If it is synchronous, every commit on this server
    /// waits for it.
    ///
    /// # Panics
    /// If the standby does not follow.
    pub fn standby(&self, synchronous: bool) -> PostgresServer {
        let settings: Vec<&str> = self.settings.iter().map(String::as_str).collect();
        let standby = PostgresServer::prepared(&settings);
        let (from, data) = (format!("host=127.0.0.1 port={} user=postgres", self.port), standby.data());
        let args = ["-d", &from, "-D", &data, "-R", "-X", "stream", "-c", "fast", "--no-sync"];
        run_command(&mut account_command(&binary("pg_basebackup"), &args));
        standby.run();
        if synchronous {
            self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
            self.sql("SELECT pg_reload_conf()");
        }
        // Of several synchronous standbys, commits wait for one ('sync'), and the others replace it if it
        // fails.
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

    /// Promotes this standby to a primary.
    ///
    /// # Panics
    /// If it is not promoted.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote(true, 60)"), "t", "the standby is promoted");
    }

    fn run(&self) {
        let mut args = vec!["-D".to_owned(), self.data()];
        let mut set = |setting: String| args.extend(["-c".to_owned(), setting]);
        set(format!("port={}", self.port));
        set("listen_addresses=127.0.0.1".to_owned());
        set(format!("unix_socket_directories={}", self.folder.display()));
        // Little shared memory, and all of it in the folder of the server.
        set("dynamic_shared_memory_type=mmap".to_owned());
        set("shared_buffers=16MB".to_owned());
        self.settings.iter().for_each(|setting| set(setting.clone()));
        let (program, args) = run_by_account(&binary("postgres"), &args);
        // A killed server would leave a System V shared memory segment behind, so it is ended gently.
        let log = self.folder.join("log");
        let daemon = Daemon::start_gently(&program, &args, &log, Some(&self.folder));
        daemon.await_answer("postgres (package postgresql)", || self.try_sql("SELECT 1"));
        *self.lock() = Some(daemon);
    }

    fn data(&self) -> String {
        self.folder.join("data").to_string_lossy().into_owned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of its database `postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The folder of the server.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Executes SQL on a new connection. Returns the rows as lines, with `|` between the columns.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// As [`sql`](PostgresServer::sql), for SQL that may fail.
    ///
    /// # Errors
    /// If the server refuses the SQL, or does not run.
    pub fn try_sql(&self, sql: &str) -> io::Result<String> {
        let port = self.port.to_string();
        let mut psql = Command::new(binary("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &port]);
        psql.args(["-U", "postgres", "-d", "postgres", "-c", sql]).env("PGCONNECT_TIMEOUT", "5");
        let output = psql.output()?;
        if output.status.success() { Ok(output_text(&output.stdout)) } else { Err(command_failure(&output)) }
    }

    /// Requires a password from every role except `postgres`.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn require_passwords(&self) {
        let rules = "host all postgres 127.0.0.1/32 trust\nhost replication postgres 127.0.0.1/32 trust\n\
                     host all all 127.0.0.1/32 scram-sha-256\n";
        let path = Path::new(&self.data()).join("pg_hba.conf");
        fs::write(path, rules).expect("its configuration can be written");
        self.sql("SELECT pg_reload_conf()");
    }

    /// Creates a private key and a self-signed certificate for `localhost` in the server's folder. Returns
    /// their paths.
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
        run_command(openssl.args(["-addext", "basicConstraints=CA:FALSE"]));
        (key, certificate)
    }

    /// Turns TLS on, with a certificate for `localhost`. Returns the path of the certificate that clients
    /// must trust.
    ///
    /// # Panics
    /// If the configuration cannot be changed.
    pub fn speak_tls(&self) -> String {
        let (key, certificate) = self.certificate("server");
        // PostgreSQL refuses a key that other accounts may read.
        fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("it is ours");
        for file in [&key, &certificate] {
            give_to_account(Path::new(file));
        }
        self.sql(&format!("ALTER SYSTEM SET ssl_cert_file = '{certificate}'"));
        self.sql(&format!("ALTER SYSTEM SET ssl_key_file = '{key}'"));
        self.sql("ALTER SYSTEM SET ssl = on");
        self.sql("SELECT pg_reload_conf()");
        eventually("the server does not read its settings", || {
            if self.try_sql("SHOW ssl")? == "on" { Ok(()) } else { Err(io::Error::other("ssl is off")) }
        });
        certificate
    }

    /// Kills the server and all its processes at once. It stays down until
    /// [`run_again`](PostgresServer::run_again).
    pub fn kill(&self) {
        let all = self.processes();
        // Stopped first: otherwise the other processes would notice the first death and shut down cleanly.
        signal_all(&all, Signal::STOP);
        signal_all(&all, Signal::KILL);
        if let Some(daemon) = &*self.lock() {
            daemon.kill();
        }
        let until = Instant::now() + SERVER_TIMEOUT;
        while all.iter().any(|pid| is_running(*pid)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Shuts the server down cleanly: it disconnects its clients and writes all data.
    pub fn stop(&self) {
        let daemon = self.lock();
        let Some(daemon) = daemon.as_ref().filter(|daemon| daemon.is_running()) else { return };
        let _ = kill_process(daemon.pid(), Signal::INT);
        let until = Instant::now() + SERVER_TIMEOUT;
        while daemon.is_running() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts the server again on the same port, with the data on its disk.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn run_again(&self) {
        // Dropping the old process removes its folder, so the data is moved away and back.
        let kept = fresh_folder("postgres-kept");
        give_to_account(&kept);
        fs::rename(self.data(), kept.join("data")).expect("its data can be moved");
        *self.lock() = None;
        fs::create_dir_all(&self.folder).expect("a folder can be made");
        give_to_account(&self.folder);
        fs::rename(kept.join("data"), self.data()).expect("its data can be moved back");
        let _ = fs::remove_dir_all(&kept);
        self.run();
    }

    /// Stops the server and all its processes (SIGSTOP): they are alive and do not answer.
    pub fn freeze(&self) {
        signal_all(&self.processes(), Signal::STOP);
    }

    /// Stops the processes of the server whose title contains `title`, such as `walreceiver`.
    ///
    /// # Panics
    /// If there is no such process.
    pub fn freeze_part(&self, title: &str) {
        let part: Vec<_> =
            self.processes().into_iter().filter(|pid| title_of(*pid).contains(title)).collect();
        assert!(!part.is_empty(), "there is no process with {title} in its title");
        signal_all(&part, Signal::STOP);
    }

    /// Continues all processes of the server.
    pub fn thaw(&self) {
        signal_all(&self.processes(), Signal::CONT);
    }

    /// The main process and its children. They have no children of their own.
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

/// The path of a program of the newest PostgreSQL that Debian has installed, or its bare name for a search in
/// `PATH`.
pub(super) fn binary(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions
        .map(|entry| entry.path())
        .filter(|path| path.join("bin/postgres").exists())
        .max_by_key(|path| number(path).unwrap_or(0));
    newest.map_or_else(|| PathBuf::from(name), |folder| folder.join("bin").join(name))
}

/// A program and its arguments, wrapped so that the tests' root account runs them as [`ACCOUNT`].
pub(super) fn run_by_account(program: &Path, args: &[String]) -> (String, Vec<String>) {
    run_as(ACCOUNT, program, args)
}

fn account_command(program: &Path, args: &[&str]) -> Command {
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let (program, args) = run_by_account(program, &args);
    let mut command = Command::new(program);
    // `ACCOUNT` may have no access to the folder in which the tests run.
    command.args(args).current_dir("/");
    command
}

/// Makes [`ACCOUNT`] the owner of a folder, if it runs the server.
pub(super) fn give_to_account(folder: &Path) {
    if rustix::process::geteuid().is_root() {
        run_command(Command::new("chown").arg("-R").arg(ACCOUNT).arg(folder));
    }
}

fn run_command(command: &mut Command) {
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{command:?}: {}", command_failure(&output)),
        Err(error) => panic!("{command:?}: {error}: is the package postgresql installed?"),
    }
}

fn signal_all(pids: &[Pid], signal: Signal) {
    for pid in pids {
        // A process may have ended meanwhile.
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

/// The fields of `/proc/PID/stat` after the name: state, parent, and so on.
fn stat(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Some(stat.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

fn is_running(pid: Pid) -> bool {
    stat(pid).is_some_and(|fields| fields.first().is_some_and(|state| state != "Z"))
}

fn title_of(pid: Pid) -> String {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).into_owned()
}
