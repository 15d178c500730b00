//! Independent Redis servers: the nodes of a quorum.

use std::time::Duration;

use super::redis::RedisServer;

/// Redis servers that know nothing of each other.
#[derive(Debug)]
pub struct RedisNodes {
    /// The servers.
    pub servers: Vec<RedisServer>,
}

impl RedisNodes {
    /// Starts `size` servers, each with these additional options.
    ///
    /// # Panics
    /// If they do not serve.
    pub fn start(size: usize, options: &[&str]) -> RedisNodes {
        RedisNodes { servers: (0..size).map(|_| RedisServer::with(options)).collect() }
    }

    /// Starts `size` servers that may vote at once, as if they had run for longer than `gate` and had voted
    /// before. A test need not wait until the gate has passed.
    ///
    /// # Panics
    /// As [`start`](RedisNodes::start).
    pub fn long_lived(size: usize, gate: Duration) -> RedisNodes {
        RedisNodes::start(size, &[]).grown_old(gate)
    }

    /// Makes the nodes look as if they had run for longer than `gate` and had voted before.
    #[must_use]
    pub fn grown_old(self, gate: Duration) -> RedisNodes {
        let size = self.servers.len();
        for server in &self.servers {
            let info = server.command(&["INFO", "server"]);
            let run = info.lines().find_map(|line| line.trim_end().strip_prefix("run_id:"));
            let run = run.expect("a server has a run id");
            // The birth mark of a node that votes (ADR 0016).
            let mark = format!("v1|00|{size}|{}|{run}|0|voting", gate.as_millis());
            server.command(&["SET", "lock:v1:birth", &mark]);
        }
        self
    }

    /// The URL of all nodes, without options.
    pub fn url(&self) -> String {
        RedisNodes::url_of(self.servers.iter().map(RedisServer::port))
    }

    /// The URL of servers, or of proxies in front of them, on these ports.
    pub fn url_of(ports: impl IntoIterator<Item = u16>) -> String {
        let hosts: Vec<_> = ports.into_iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redlock://{}", hosts.join(","))
    }
}
