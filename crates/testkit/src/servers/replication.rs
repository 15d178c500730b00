//! A Redis primary, its replicas and three Sentinels, with or without TLS and passwords.

use std::{fs, io};

use super::{
    daemon::{Daemon, eventually, free_port, fresh_folder},
    redis::{RedisServer, TlsFiles, send_command_as},
};

/// A primary, its replicas, and three Sentinels that monitor them.
#[derive(Debug)]
pub struct Replication {
    /// The servers. At the start, the first one is the primary.
    pub servers: Vec<RedisServer>,
    /// The Sentinels.
    pub sentinels: Vec<Sentinel>,
}

/// TLS and passwords of a [`Replication`].
///
/// All connections between servers and Sentinels use TLS. The user `default` needs a password, which differs
/// between servers and Sentinels. The test creates the users for its clients itself.
#[derive(Clone, Copy, Debug)]
pub struct ReplicationSecurity<'a> {
    /// The TLS files of the servers.
    pub servers: &'a TlsFiles,
    /// The TLS files of the Sentinels.
    pub sentinels: &'a TlsFiles,
    /// The host by which the Sentinels know the servers: an address or a name of this machine.
    pub host: &'a str,
    /// Additional lines in the configuration of each Sentinel.
    pub lines: &'a [&'a str],
}

impl<'a> ReplicationSecurity<'a> {
    /// The same TLS files for all servers and Sentinels, which know each other by address.
    pub fn new(files: &'a TlsFiles) -> ReplicationSecurity<'a> {
        ReplicationSecurity { servers: files, sentinels: files, host: HOST, lines: &[] }
    }
}

/// A Redis Sentinel.
#[derive(Debug)]
pub struct Sentinel {
    port: u16,
    tls_port: Option<u16>,
    password: Option<&'static str>,
    daemon: Daemon,
}

const HOST: &str = "127.0.0.1";
/// The password of the user `default` on the servers.
const SERVERS_PASSWORD: &str = "among-servers";
/// The password of the user `default` on the Sentinels.
const SENTINELS_PASSWORD: &str = "among-sentinels";
/// The password of the user `sentinel` on the servers.
const SENTINEL_USER_PASSWORD: &str = "from-sentinel-to-server";
/// Creates the user `sentinel` on a server, with the permissions that the Redis manual lists for Sentinels.
const SENTINEL_USER: &str = "ACL SETUSER sentinel on >from-sentinel-to-server allchannels +multi +slaveof +ping +exec \
     +subscribe +config|rewrite +role +publish +info +client|setname +client|kill +script|kill";

impl Replication {
    /// The service name by which the Sentinels know the primary.
    pub const SERVICE: &'static str = "main";

    /// Starts a primary with this many replicas, which have caught up, and no Sentinels.
    ///
    /// # Panics
    /// If they do not answer.
    pub fn without_sentinels(replicas: usize) -> Replication {
        Replication::start_servers(replicas, None)
    }

    /// Starts a primary with this many replicas and three Sentinels, which consider the primary dead after a
    /// second.
    ///
    /// # Panics
    /// If they do not answer.
    pub fn start(replicas: usize) -> Replication {
        Replication::start_servers(replicas, None).with_sentinels(None)
    }

    /// As [`start`](Replication::start), with TLS and passwords.
    ///
    /// # Panics
    /// If they do not answer.
    pub fn guarded(replicas: usize, security: &ReplicationSecurity<'_>) -> Replication {
        let replication = Replication::start_servers(replicas, Some(security));
        for server in &replication.servers {
            let words: Vec<&str> = SENTINEL_USER.split_whitespace().collect();
            assert_eq!(server.command(&words), "OK");
        }
        replication.with_sentinels(Some(security))
    }

    fn start_servers(replicas: usize, security: Option<&ReplicationSecurity<'_>>) -> Replication {
        let run = |more: &[&str]| {
            let Some(security) = security else { return RedisServer::with(more) };
            let mut options = vec!["--requirepass", SERVERS_PASSWORD, "--masterauth", SERVERS_PASSWORD];
            options.extend(["--tls-replication", "yes", "--replica-announce-ip", security.host]);
            options.extend(more);
            RedisServer::with_tls(security.servers, &options)
        };
        let primary = run(&[]);
        let of = format!("{} {}", security.map_or(HOST, |security| security.host), primary.peer_port());
        let mut servers = vec![primary];
        servers.extend((0..replicas).map(|_| run(&["--replicaof", &of])));
        // `WAIT` shows that the replicas have caught up, not only that they are connected.
        let count = replicas.to_string();
        eventually("the replicas do not follow", || {
            let info = servers[0].try_command(&["INFO", "replication"])?;
            let online = info.matches("state=online").count() == replicas;
            let acknowledged = servers[0].try_command(&["WAIT", &count, "1000"])? == count;
            if online && acknowledged { Ok(()) } else { Err(io::Error::other(info)) }
        });
        Replication { servers, sentinels: Vec::new() }
    }

    fn with_sentinels(mut self, security: Option<&ReplicationSecurity<'_>>) -> Replication {
        let primary = self.servers[0].peer_port();
        self.sentinels.extend((0..3).map(|_| Sentinel::start(primary, security)));
        let known_as = format!("{}:", security.map_or(HOST, |security| security.host));
        for sentinel in &self.sentinels {
            eventually("the Sentinels do not agree", || {
                let quorum = sentinel.try_command(&["SENTINEL", "CKQUORUM", Replication::SERVICE])?;
                let known = sentinel.try_command(&["SENTINEL", "REPLICAS", Replication::SERVICE])?;
                let replicas_known = known.matches(&known_as).count() >= self.servers.len() - 1;
                let ready = quorum.starts_with("OK 3 usable") && replicas_known;
                if ready { Ok(()) } else { Err(io::Error::other(format!("{quorum} {known}"))) }
            });
        }
        self
    }

    /// The URL by which a client finds the primary. With TLS, it has the TLS ports of the Sentinels.
    pub fn url(&self) -> String {
        let port = |sentinel: &Sentinel| sentinel.tls_port.unwrap_or(sentinel.port);
        let hosts: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("{HOST}:{}", port(sentinel))).collect();
        format!("redis+sentinel://{}/{}", hosts.join(","), Replication::SERVICE)
    }

    /// The port of the primary, as the first Sentinel reports it. With TLS, its TLS port.
    ///
    /// # Panics
    /// If the Sentinel does not reply.
    pub fn primary_port(&self) -> u16 {
        let sentinel = self.sentinels.first().expect("there are Sentinels");
        eventually("a Sentinel does not report the primary", || {
            let reply =
                sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Replication::SERVICE])?;
            let port = reply.split(' ').nth(1).and_then(|port| port.parse().ok());
            port.ok_or_else(|| io::Error::other(reply))
        })
    }

    /// Waits until the Sentinels have made a server other than that on port `from` the primary, and the
    /// server knows.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn await_failover(&self, from: u16) -> &RedisServer {
        eventually("no failover", || {
            let now = self.primary_port();
            let server = self.servers.iter().find(|server| server.peer_port() == now && now != from);
            let server = server.ok_or_else(|| io::Error::other("it is still the old primary"))?;
            let role = server.try_command(&["ROLE"])?;
            if role.starts_with("master") { Ok(server) } else { Err(io::Error::other(role)) }
        })
    }
}

impl Sentinel {
    fn start(primary: u16, security: Option<&ReplicationSecurity<'_>>) -> Sentinel {
        let (port, folder) = (free_port(), fresh_folder("sentinel"));
        let (path, service) = (folder.join("sentinel.conf"), Replication::SERVICE);
        let host = security.map_or(HOST, |security| security.host);
        let mut lines =
            vec![format!("port {port}"), "bind 127.0.0.1".to_owned(), format!("dir {}", folder.display())];
        if host != HOST {
            lines.extend(
                ["resolve-hostnames", "announce-hostnames"].map(|what| format!("sentinel {what} yes")),
            );
        }
        lines.extend([
            format!("sentinel monitor {service} {host} {primary} 2"),
            format!("sentinel down-after-milliseconds {service} 1000"),
            format!("sentinel failover-timeout {service} 5000"),
        ]);
        let tls_port = security.map(|security| {
            let tls_port = free_port();
            lines
                .extend(security.sentinels.settings(tls_port).map(|(name, value)| format!("{name} {value}")));
            lines.extend([
                "tls-replication yes".to_owned(),
                format!("requirepass {SENTINELS_PASSWORD}"),
                format!("sentinel sentinel-pass {SENTINELS_PASSWORD}"),
                format!("sentinel auth-user {service} sentinel"),
                format!("sentinel auth-pass {service} {SENTINEL_USER_PASSWORD}"),
            ]);
            lines.extend(security.lines.iter().map(|&line| line.to_owned()));
            tls_port
        });
        fs::write(&path, lines.join("\n") + "\n").expect("a configuration can be written");
        let args = [path.to_string_lossy().into_owned(), "--sentinel".to_owned()];
        let daemon = Daemon::start("redis-server", &args, &folder.join("log"), Some(&folder));
        let sentinel = Sentinel { port, tls_port, password: security.map(|_| SENTINELS_PASSWORD), daemon };
        sentinel.daemon.await_answer("a Sentinel (package redis-server)", || sentinel.try_command(&["PING"]));
        sentinel
    }

    fn try_command(&self, words: &[&str]) -> io::Result<String> {
        send_command_as(self.port, self.password, words)
    }

    /// The port without TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Executes a command, as [`RedisServer::command`] does.
    ///
    /// # Panics
    /// If the Sentinel does not reply.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Stops the Sentinel (SIGSTOP): it is alive and does not answer.
    ///
    /// # Panics
    /// If it does not run.
    pub fn freeze(&self) {
        self.daemon.freeze();
    }

    /// Continues a frozen Sentinel.
    pub fn thaw(&self) {
        self.daemon.thaw();
    }
}
