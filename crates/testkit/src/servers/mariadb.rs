//! One MariaDB server.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
};

use super::daemon::{Daemon, command_failure, free_port, fresh_folder, run_as};

/// The account that runs a server when the tests run as root: MariaDB refuses to run as root.
const ACCOUNT: &str = "mysql";

/// A MariaDB server. The user `root` needs no password, from this host only.
///
/// ```no_run
/// use leasehold_testkit::servers::MariaDbServer;
///
/// let server = MariaDbServer::start();
/// assert_eq!(server.sql("SELECT 1 + 1"), "2");
/// ```
#[derive(Debug)]
pub struct MariaDbServer {
    port: u16,
    _daemon: Daemon,
}

impl MariaDbServer {
    /// Starts a server that does not wait for the disk.
    ///
    /// # Panics
    /// If the package `mariadb-server` is not installed, or the server does not answer.
    pub fn start() -> MariaDbServer {
        let (port, folder) = (free_port(), fresh_folder("mariadb"));
        give_to_account(&folder);
        create_tables(&folder);
        let file = |name: &str| folder.join(name).display().to_string();
        let args = [
            "--no-defaults".to_owned(),
            format!("--datadir={}", file("data")),
            format!("--socket={}", file("socket")),
            format!("--pid-file={}", file("pid")),
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--skip-name-resolve".to_owned(),
            "--skip-log-bin".to_owned(),
            "--innodb-flush-log-at-trx-commit=0".to_owned(),
            "--innodb-flush-method=nosync".to_owned(),
            "--innodb-buffer-pool-size=16M".to_owned(),
        ];
        let (program, args) = run_as(ACCOUNT, &program("mariadbd"), &args);
        let daemon = Daemon::start(&program, &args, &folder.join("log"), Some(&folder));
        daemon.await_answer("mariadbd (package mariadb-server)", || execute(port, "SELECT 1"));
        MariaDbServer { port, _daemon: daemon }
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a database of this server.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{}/{database}", self.port)
    }

    /// Executes a script with the client program `mariadb`, on a new connection. Returns the rows as lines, with tabs between
    /// the columns.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, script: &str) -> String {
        self.try_sql(script).unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// As [`sql`](MariaDbServer::sql), for SQL that may fail.
    ///
    /// # Errors
    /// If the server refuses the SQL, or does not run.
    pub fn try_sql(&self, script: &str) -> io::Result<String> {
        execute(self.port, script)
    }
}

/// Creates the system tables in the folder of the server.
fn create_tables(folder: &Path) {
    let args = [
        "--no-defaults".to_owned(),
        format!("--datadir={}", folder.join("data").display()),
        "--auth-root-authentication-method=normal".to_owned(),
        "--skip-test-db".to_owned(),
        "--skip-name-resolve".to_owned(),
    ];
    let (program, args) = run_as(ACCOUNT, Path::new("mariadb-install-db"), &args);
    // `ACCOUNT` may have no access to the folder in which the tests run.
    run_command(Command::new(program).args(args).current_dir("/"));
}

fn give_to_account(folder: &Path) {
    if rustix::process::geteuid().is_root() {
        run_command(Command::new("chown").arg("-R").arg(ACCOUNT).arg(folder));
    }
}

fn run_command(command: &mut Command) {
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{command:?}: {}", command_failure(&output)),
        Err(error) => panic!("{command:?}: {error}: is the package mariadb-server installed?"),
    }
}

fn execute(port: u16, script: &str) -> io::Result<String> {
    let mut client = Command::new("mariadb");
    client.args(["--no-defaults", "-N", "-B", "-h", "127.0.0.1", "-u", "root", "-e", script]);
    let output = client.arg(format!("--port={port}")).arg("--connect-timeout=5").output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    } else {
        Err(command_failure(&output))
    }
}

/// The path of a server program: `/usr/sbin` may not be in the `PATH` of an ordinary user.
fn program(name: &str) -> PathBuf {
    let path = Path::new("/usr/sbin").join(name);
    if path.exists() { path } else { PathBuf::from(name) }
}
