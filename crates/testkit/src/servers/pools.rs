//! Connection pools in front of PostgreSQL: PgBouncer and Pgpool-II.

use std::{fs, io, path::Path, process::Command};

use super::{
    daemon::{Daemon, command_failure, free_port, fresh_folder},
    postgres::{PostgresServer, binary, give_to_account, run_by_account},
};

/// PgBouncer in front of a PostgreSQL server.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _daemon: Daemon,
}

impl PgBouncer {
    /// Starts a pool in transaction mode with this many connections to the server. After each transaction,
    /// the connection to the server goes back to the pool, and another client may get it.
    ///
    /// # Panics
    /// If the package `pgbouncer` is not installed, or it does not serve.
    pub fn start(server: &PostgresServer, connections: u32) -> PgBouncer {
        PgBouncer::with(server, &["pool_mode = transaction", &format!("default_pool_size = {connections}")])
    }

    /// Starts a pool in session mode: a client keeps its connection to the server until it disconnects.
    ///
    /// # Panics
    /// As [`start`](PgBouncer::start).
    pub fn in_session_mode(server: &PostgresServer, connections: u32) -> PgBouncer {
        PgBouncer::with(server, &["pool_mode = session", &format!("default_pool_size = {connections}")])
    }

    /// Starts a pool with these settings: `["pool_mode = transaction", "max_client_conn = 10"]`.
    ///
    /// # Panics
    /// As [`start`](PgBouncer::start).
    pub fn with(server: &PostgresServer, settings: &[&str]) -> PgBouncer {
        let (port, folder) = (free_port(), fresh_folder("pgbouncer"));
        let path = folder.join("pgbouncer.ini");
        // No Unix socket: its default folder may not be writable. `auth_type = any`: the server trusts this
        // host anyway.
        let lines = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\n{}\n",
            server.port(),
            settings.join("\n")
        );
        fs::write(&path, lines).expect("a configuration can be written");
        give_to_account(&folder);
        let args = [path.to_string_lossy().into_owned()];
        let (program, args) = run_by_account(Path::new("/usr/sbin/pgbouncer"), &args);
        let daemon = Daemon::start(&program, &args, &folder.join("log"), Some(&folder));
        daemon.await_answer("pgbouncer (package pgbouncer)", || try_select(&url(port)));
        PgBouncer { port, _daemon: daemon }
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server's database `postgres`, through this pool.
    pub fn url(&self) -> String {
        url(self.port)
    }
}

/// Pgpool-II in front of a PostgreSQL server.
///
/// A client keeps its connection to the server until it disconnects. Then the next client gets that
/// connection, and with it the same cancel key of the server.
#[derive(Debug)]
pub struct Pgpool {
    port: u16,
    _daemon: Daemon,
}

impl Pgpool {
    /// Starts a pool for at most this many clients at a time.
    ///
    /// # Panics
    /// If the package `pgpool2` is not installed, or it does not serve.
    pub fn start(server: &PostgresServer, clients: u32) -> Pgpool {
        let (port, folder) = (free_port(), fresh_folder("pgpool"));
        let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let path = folder.display();
        // DISALLOW_TO_FAILOVER: the pool has one server, and must not give it up when a test stops it.
        let lines = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nsocket_dir = '{path}'\npcp_socket_dir = '{path}'\n\
             pcp_port = {}\npid_file_name = '{path}/pid'\nlogdir = '{path}'\nwork_dir = '{path}'\n\
             backend_clustering_mode = 'streaming_replication'\nsr_check_period = 0\n\
             backend_hostname0 = '127.0.0.1'\nbackend_port0 = {}\n\
             backend_flag0 = 'DISALLOW_TO_FAILOVER'\nnum_init_children = {clients}\nmax_pool = 4\nconnection_cache = on\n",
            free_port(),
            server.port()
        );
        for (name, text) in [("pgpool.conf", lines.as_str()), ("pcp.conf", ""), ("pool_hba.conf", "")] {
            fs::write(folder.join(name), text).expect("a configuration can be written");
        }
        give_to_account(&folder);
        let args = ["-n", "-f", &file("pgpool.conf"), "-F", &file("pcp.conf"), "-a", &file("pool_hba.conf")];
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let (program, args) = run_by_account(Path::new("/usr/sbin/pgpool"), &args);
        let daemon = Daemon::start_gently(&program, &args, &folder.join("log"), Some(&folder));
        daemon.await_answer("pgpool (package pgpool2)", || try_select(&url(port)));
        Pgpool { port, _daemon: daemon }
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server's database `postgres`, through this pool.
    pub fn url(&self) -> String {
        url(self.port)
    }
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

/// Whether a query gets through.
fn try_select(url: &str) -> io::Result<()> {
    let mut psql = Command::new(binary("psql"));
    psql.args(["-X", "-q", "-d", url, "-c", "SELECT 1"]).env("PGCONNECT_TIMEOUT", "5");
    let output = psql.output()?;
    if output.status.success() { Ok(()) } else { Err(command_failure(&output)) }
}
