//! Pools in front of PostgreSQL: PgBouncer and Pgpool-II.

use std::{fs, io, path::Path, process::Command};

use super::{
    daemon::{Daemon, eventually, free_port, fresh_folder},
    postgres::{PostgresServer, binary, failure, give, words},
};

/// PgBouncer in front of a server.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _daemon: Daemon,
}

impl PgBouncer {
    /// One that keeps this many connections to the server, in transaction mode: a connection of the server is another
    /// client's after each transaction.
    ///
    /// # Panics
    /// If the package `pgbouncer` is not installed, or it does not serve.
    pub fn start(server: &PostgresServer, connections: u32) -> PgBouncer {
        PgBouncer::with(server, &["pool_mode = transaction", &format!("default_pool_size = {connections}")])
    }

    /// One in session mode: a client has a connection of the server until it disconnects.
    ///
    /// # Panics
    /// As [`start`](PgBouncer::start).
    pub fn in_session_mode(server: &PostgresServer, connections: u32) -> PgBouncer {
        PgBouncer::with(server, &["pool_mode = session", &format!("default_pool_size = {connections}")])
    }

    /// One with these settings: `["pool_mode = transaction", "max_client_conn = 10"]`.
    ///
    /// # Panics
    /// As [`start`](PgBouncer::start).
    pub fn with(server: &PostgresServer, settings: &[&str]) -> PgBouncer {
        let (port, folder) = (free_port(), fresh_folder("pgbouncer"));
        let path = folder.join("pgbouncer.ini");
        let lines = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\n{}\n",
            server.port(),
            settings.join("\n")
        );
        fs::write(&path, lines).expect("a configuration can be written");
        give(&folder);
        let (program, args) = words(Path::new("/usr/sbin/pgbouncer"), &[path.to_string_lossy().into_owned()]);
        let daemon = Daemon::start(&program, &args, &folder.join("log"), Some(&folder));
        let bouncer = PgBouncer { port, _daemon: daemon };
        eventually("pgbouncer does not serve: is the package pgbouncer installed?", || {
            serves(&bouncer.url())
        });
        bouncer
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server's database `postgres`, by way of it.
    pub fn url(&self) -> String {
        url(self.port)
    }
}

/// Pgpool-II in front of a server. A client has a connection of the server until it disconnects; then the next client gets
/// that connection. It passes on the server's own key data.
#[derive(Debug)]
pub struct Pgpool {
    port: u16,
    _daemon: Daemon,
}

impl Pgpool {
    /// One for at most this many clients at a time.
    ///
    /// # Panics
    /// If the package `pgpool2` is not installed, or it does not serve.
    pub fn start(server: &PostgresServer, clients: u32) -> Pgpool {
        let (port, folder) = (free_port(), fresh_folder("pgpool"));
        let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let place = folder.display();
        let lines = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nsocket_dir = '{place}'\npcp_socket_dir = '{place}'\n\
             pcp_port = {}\npid_file_name = '{place}/pid'\nlogdir = '{place}'\nwork_dir = '{place}'\n\
             backend_clustering_mode = 'streaming_replication'\nsr_check_period = 0\n\
             backend_hostname0 = '127.0.0.1'\nbackend_port0 = {}\n\
             backend_flag0 = 'DISALLOW_TO_FAILOVER'\nnum_init_children = {clients}\nmax_pool = 4\nconnection_cache = on\n",
            free_port(),
            server.port()
        );
        for (name, text) in [("pgpool.conf", lines.as_str()), ("pcp.conf", ""), ("pool_hba.conf", "")] {
            fs::write(folder.join(name), text).expect("a configuration can be written");
        }
        give(&folder);
        let args = ["-n", "-f", &file("pgpool.conf"), "-F", &file("pcp.conf"), "-a", &file("pool_hba.conf")];
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let (program, args) = words(Path::new("/usr/sbin/pgpool"), &args);
        let log = folder.join("log");
        let daemon = Daemon::start_gently(&program, &args, &log, Some(&folder));
        let pool = Pgpool { port, _daemon: daemon };
        eventually("pgpool does not serve: is the package pgpool2 installed?", || {
            serves(&pool.url()).map_err(|error| {
                io::Error::other(format!("{error}\n{}", fs::read_to_string(&log).unwrap_or_default()))
            })
        });
        pool
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server's database `postgres`, by way of it.
    pub fn url(&self) -> String {
        url(self.port)
    }
}

fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

fn serves(url: &str) -> io::Result<()> {
    let mut psql = Command::new(binary("psql"));
    psql.args(["-X", "-q", "-d", url, "-c", "SELECT 1"]).env("PGCONNECT_TIMEOUT", "5");
    let output = psql.output()?;
    if output.status.success() { Ok(()) } else { Err(failure(&output)) }
}
