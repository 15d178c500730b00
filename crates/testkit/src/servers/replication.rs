//! A Redis primary, its replicas, and three Sentinels: plainly, or by TLS and with passwords.

use std::{fs, io};

use super::{
    daemon::{Daemon, eventually, free_port, fresh_folder},
    redis::{RedisServer, TlsFiles, ask_as},
};

/// A primary, its replicas, and three Sentinels that watch over them.
#[derive(Debug)]
pub struct Replication {
    /// The servers: at the start, the first is the primary.
    pub servers: Vec<RedisServer>,
    /// The Sentinels.
    pub sentinels: Vec<Sentinel>,
}

/// What guards a [`Replication`]: TLS between all of them, and passwords that differ between servers and Sentinels. The
/// user `default` needs one on each; users for clients are for the test to make.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// What the servers show.
    pub servers: &'a TlsFiles,
    /// What the Sentinels show.
    pub sentinels: &'a TlsFiles,
    /// Under which host the Sentinels know the servers: an address or a name of this machine.
    pub host: &'a str,
    /// Lines more in the configuration of each Sentinel.
    pub lines: &'a [&'a str],
}

impl<'a> Guard<'a> {
    /// All show the same, and are known by their address.
    pub fn new(files: &'a TlsFiles) -> Guard<'a> {
        Guard { servers: files, sentinels: files, host: HOST, lines: &[] }
    }
}

/// A Sentinel.
#[derive(Debug)]
pub struct Sentinel {
    port: u16,
    tls_port: Option<u16>,
    password: Option<&'static str>,
    daemon: Daemon,
}

const HOST: &str = "127.0.0.1";
/// Of the user `default`: on the servers, and on the Sentinels.
const SERVERS_PASSWORD: &str = "among-servers";
const SENTINELS_PASSWORD: &str = "among-sentinels";
/// By which the Sentinels are let in by the servers, with what the manual says that they need.
const WATCHER_PASSWORD: &str = "from-sentinel-to-server";
const WATCHER: &str = "ACL SETUSER sentinel on >from-sentinel-to-server allchannels +multi +slaveof +ping +exec \
     +subscribe +config|rewrite +role +publish +info +client|setname +client|kill +script|kill";

impl Replication {
    /// The name under which the Sentinels know the primary.
    pub const SERVICE: &'static str = "main";

    /// A primary with this many replicas, all in step, and no Sentinels.
    ///
    /// # Panics
    /// If they do not serve.
    pub fn without_sentinels(replicas: usize) -> Replication {
        Replication::of(replicas, None)
    }

    /// The same, with three Sentinels that agree on the primary and take it for dead after a second.
    ///
    /// # Panics
    /// If they do not serve.
    pub fn start(replicas: usize) -> Replication {
        Replication::of(replicas, None).watched(None)
    }

    /// The same, by TLS and with passwords.
    ///
    /// # Panics
    /// If they do not serve.
    pub fn guarded(replicas: usize, guard: &Guard<'_>) -> Replication {
        let replication = Replication::of(replicas, Some(guard));
        for server in &replication.servers {
            let words: Vec<&str> = WATCHER.split_whitespace().collect();
            assert_eq!(server.command(&words), "OK");
        }
        replication.watched(Some(guard))
    }

    fn of(replicas: usize, guard: Option<&Guard<'_>>) -> Replication {
        let run = |more: &[&str]| {
            let Some(guard) = guard else { return RedisServer::with(more) };
            let mut options = vec!["--requirepass", SERVERS_PASSWORD, "--masterauth", SERVERS_PASSWORD];
            options.extend(["--tls-replication", "yes", "--replica-announce-ip", guard.host]);
            options.extend(more);
            RedisServer::with_tls(guard.servers, &options)
        };
        let primary = run(&[]);
        let of = format!("{} {}", guard.map_or(HOST, |guard| guard.host), primary.peer_port());
        let mut servers = vec![primary];
        servers.extend((0..replicas).map(|_| run(&["--replicaof", &of])));
        let count = replicas.to_string();
        eventually("the replicas do not follow", || {
            let info = servers[0].ask(&["INFO", "replication"])?;
            let online = info.matches("state=online").count() == replicas;
            let acknowledged = servers[0].ask(&["WAIT", &count, "1000"])? == count;
            if online && acknowledged { Ok(()) } else { Err(io::Error::other(info)) }
        });
        Replication { servers, sentinels: Vec::new() }
    }

    fn watched(mut self, guard: Option<&Guard<'_>>) -> Replication {
        let primary = self.servers[0].peer_port();
        self.sentinels.extend((0..3).map(|_| Sentinel::start(primary, guard)));
        let known_as = format!("{}:", guard.map_or(HOST, |guard| guard.host));
        for sentinel in &self.sentinels {
            eventually("the Sentinels do not agree", || {
                let quorum = sentinel.ask(&["SENTINEL", "CKQUORUM", Replication::SERVICE])?;
                let known = sentinel.ask(&["SENTINEL", "REPLICAS", Replication::SERVICE])?;
                let replicas_known = known.matches(&known_as).count() >= self.servers.len() - 1;
                let ready = quorum.starts_with("OK 3 usable") && replicas_known;
                if ready { Ok(()) } else { Err(io::Error::other(format!("{quorum} {known}"))) }
            });
        }
        self
    }

    /// The URL by which a client finds the primary; of the ports for TLS, if there are such.
    pub fn url(&self) -> String {
        let port = |sentinel: &Sentinel| sentinel.tls_port.unwrap_or(sentinel.port);
        let hosts: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("{HOST}:{}", port(sentinel))).collect();
        format!("redis+sentinel://{}/{}", hosts.join(","), Replication::SERVICE)
    }

    /// Where the Sentinels say that the primary is. With TLS, that is its port for it.
    ///
    /// # Panics
    /// If none answers.
    pub fn primary_port(&self) -> u16 {
        let sentinel = self.sentinels.first().expect("there are Sentinels");
        eventually("a Sentinel does not answer", || {
            let answer = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Replication::SERVICE])?;
            let port = answer.split(' ').nth(1).and_then(|port| port.parse().ok());
            port.ok_or_else(|| io::Error::other(answer))
        })
    }

    /// Waits until the Sentinels have made another server the primary, and it knows.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn await_failover(&self, from: u16) -> &RedisServer {
        eventually("no failover", || {
            let now = self.primary_port();
            let server = self.servers.iter().find(|server| server.peer_port() == now && now != from);
            let server = server.ok_or_else(|| io::Error::other("still the old one"))?;
            let role = server.ask(&["ROLE"])?;
            if role.starts_with("master") { Ok(server) } else { Err(io::Error::other(role)) }
        })
    }
}

impl Sentinel {
    fn start(primary: u16, guard: Option<&Guard<'_>>) -> Sentinel {
        let (port, folder) = (free_port(), fresh_folder("sentinel"));
        let (path, service) = (folder.join("sentinel.conf"), Replication::SERVICE);
        let host = guard.map_or(HOST, |guard| guard.host);
        let mut lines = vec![
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", folder.display()),
            "logfile log".to_owned(),
        ];
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
        let tls_port = guard.map(|guard| {
            let tls_port = free_port();
            lines.extend(guard.sentinels.settings(tls_port).map(|(name, value)| format!("{name} {value}")));
            lines.extend([
                "tls-replication yes".to_owned(),
                format!("requirepass {SENTINELS_PASSWORD}"),
                format!("sentinel sentinel-pass {SENTINELS_PASSWORD}"),
                format!("sentinel auth-user {service} sentinel"),
                format!("sentinel auth-pass {service} {WATCHER_PASSWORD}"),
            ]);
            lines.extend(guard.lines.iter().map(|&line| line.to_owned()));
            tls_port
        });
        fs::write(&path, lines.join("\n") + "\n").expect("a configuration can be written");
        let args = [path.to_string_lossy().into_owned(), "--sentinel".to_owned()];
        let daemon = Daemon::start("redis-server", &args, &folder.join("out"), Some(&folder));
        let sentinel = Sentinel { port, tls_port, password: guard.map(|_| SENTINELS_PASSWORD), daemon };
        eventually("a Sentinel does not serve", || sentinel.ask(&["PING"]));
        sentinel
    }

    fn ask(&self, words: &[&str]) -> io::Result<String> {
        ask_as(self.port, self.password, words)
    }

    /// Where it listens without TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Asks it something, as [`RedisServer::command`] does.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn command(&self, words: &[&str]) -> String {
        self.ask(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Stops it: it is there and does not answer.
    ///
    /// # Panics
    /// If it is down.
    pub fn freeze(&self) {
        self.daemon.freeze();
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.daemon.thaw();
    }
}
