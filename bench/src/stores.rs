//! The servers, and what they spend.

use std::{
    collections::{HashMap, HashSet},
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use leasehold_testkit::{
    Proxy,
    servers::{EtcdCluster, PostgresServer, RedisNodes, RedisServer, ZooKeeperServer},
};
use tokio::runtime::Runtime;

use crate::{
    serving::Serving,
    works::{Nodes, StoreKind},
};

/// The size of the Redlock quorum.
const SIZE: usize = 5;
/// How many of the nodes are killed in [`Nodes::TwoDown`].
const DOWN: usize = 2;
/// The delay of the slow node in each direction, at most.
const SLOW: Duration = Duration::from_millis(50);
/// How long the nodes seem to have run: longer than leasehold waits before a new node may vote.
const NODE_AGE: Duration = Duration::from_secs(600);

/// A server that was started for one work.
#[derive(Debug)]
pub struct Store {
    /// `host:port`, or several with commas.
    pub address: String,
    /// The URL for leasehold.
    pub url: String,
    /// The name and version of the server.
    pub version: String,
    /// Ends before the Redis that it serves.
    serving: Option<Serving>,
    servers: Servers,
    /// The processes of the servers.
    processes: Vec<u32>,
}

#[derive(Debug)]
enum Servers {
    Redis(RedisServer),
    Redlock { nodes: RedisNodes, state: Nodes, proxy: Option<Proxy> },
    Postgres(#[expect(dead_code, reason = "dropping it stops the server")] PostgresServer),
    Etcd(#[expect(dead_code, reason = "dropping it stops the server")] EtcdCluster),
    ZooKeeper(#[expect(dead_code, reason = "dropping it stops the server")] ZooKeeperServer),
    None,
}

/// What servers have spent so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Time on a core.
    pub cpu: CpuTime,
    /// Commands and bytes, if the server counts them.
    pub traffic: Option<Traffic>,
}

/// What Redis counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Commands, those of scripts included.
    pub commands: f64,
    /// Bytes received.
    pub bytes_in: f64,
    /// Bytes sent.
    pub bytes_out: f64,
    /// What asking for these figures cost, which the next ones contain: commands, and bytes sent.
    asking: (f64, f64),
}

impl Traffic {
    /// The traffic since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Traffic) -> Traffic {
        let (commands, bytes) = earlier.asking;
        Traffic {
            commands: self.commands - earlier.commands - commands,
            bytes_in: self.bytes_in - earlier.bytes_in,
            bytes_out: self.bytes_out - earlier.bytes_out - bytes,
            asking: self.asking,
        }
    }
}

impl Store {
    /// Starts a store. `runtime` runs the proxy in front of a slow node.
    ///
    /// # Errors
    /// If the server is not installed or does not answer.
    pub fn start(kind: StoreKind, runtime: &Runtime) -> Result<Store, String> {
        let before = descendants(&[std::process::id()]);
        let started = catch_unwind(AssertUnwindSafe(|| start(kind, runtime)));
        let mut store = started.map_err(|panic| {
            let text =
                panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it did not start".to_owned());
            text.lines().next().unwrap_or_default().to_owned()
        })?;
        let after = descendants(&[std::process::id()]);
        store.processes = after.difference(&before).copied().collect();
        Ok(store)
    }

    /// Starts a leasehold server on this store. From now on the URL is that of the server.
    ///
    /// # Errors
    /// If it does not start.
    pub fn serve(&mut self, program: &[String]) -> Result<(), String> {
        let serving = Serving::start(program, &self.url)?;
        serving.url().clone_into(&mut self.url);
        self.serving = Some(serving);
        Ok(())
    }

    /// Called when all clients are connected: a node becomes slow, or two nodes are killed.
    pub fn injure(&self) {
        if let Servers::Redlock { nodes, state, proxy } = &self.servers {
            if let Some(proxy) = proxy {
                proxy.delay(SLOW);
            }
            if *state == Nodes::TwoDown {
                nodes.servers[..DOWN].iter().for_each(RedisServer::kill);
            }
        }
    }

    /// What the servers have spent so far.
    pub fn usage(&self) -> Usage {
        let mut usage = self.usage_of_servers();
        if let Some(serving) = &self.serving {
            usage.cpu = usage.cpu.and(serving.cpu_time());
        }
        usage
    }

    fn usage_of_servers(&self) -> Usage {
        match &self.servers {
            Servers::Redis(server) => redis_usage(std::slice::from_ref(server)),
            Servers::Redlock { nodes, state: Nodes::TwoDown, .. } => redis_usage(&nodes.servers[DOWN..]),
            Servers::Redlock { nodes, .. } => redis_usage(&nodes.servers),
            _ => Usage { cpu: CpuTime::of_trees(&self.processes), traffic: None },
        }
    }

    /// The number of keys, if this is one Redis server.
    pub fn keys(&self) -> Option<u64> {
        let Servers::Redis(server) = &self.servers else { return None };
        server.command(&["DBSIZE"]).trim().parse().ok()
    }

    /// Removes all keys that killed clients have left, if this is one Redis server.
    pub fn clear(&self) {
        if let Servers::Redis(server) = &self.servers {
            server.command(&["FLUSHALL"]);
        }
    }
}

fn start(kind: StoreKind, runtime: &Runtime) -> Store {
    let store = |address: String, url: String, version: String, servers: Servers| Store {
        address,
        url,
        version,
        serving: None,
        servers,
        processes: Vec::new(),
    };
    let local = |port: u16| format!("127.0.0.1:{port}");
    match kind {
        StoreKind::Redis | StoreKind::Served => {
            let server = RedisServer::start();
            store(local(server.port()), server.url(), redis_version(&server), Servers::Redis(server))
        }
        StoreKind::Redlock(state) => {
            let nodes = RedisNodes::long_lived(SIZE, NODE_AGE);
            let mut ports: Vec<u16> = nodes.servers.iter().map(RedisServer::port).collect();
            let proxy = (state == Nodes::OneSlow).then(|| runtime.block_on(Proxy::start(ports[0], 7)));
            if let Some(proxy) = &proxy {
                ports[0] = proxy.port();
            }
            let addresses: Vec<String> = ports.iter().map(|port| local(*port)).collect();
            let (url, version) = (RedisNodes::url_of(ports), redis_version(&nodes.servers[0]));
            store(addresses.join(","), url, version, Servers::Redlock { nodes, state, proxy })
        }
        StoreKind::Postgres => {
            // Two peers have a connection for each of 64 tasks.
            let server = PostgresServer::with(&["max_connections=300"]);
            let version = server.sql("SHOW server_version");
            let version = version.split_whitespace().next().unwrap_or_default();
            let version = format!("PostgreSQL {version}");
            store(local(server.port()), server.url(), version, Servers::Postgres(server))
        }
        StoreKind::Etcd => {
            let server = EtcdCluster::start(1);
            let version = crate::machine::first_line("etcd", &["--version"]).replace("etcd Version:", "etcd");
            store(local(server.ports()[0]), server.url(), version, Servers::Etcd(server))
        }
        StoreKind::ZooKeeper => {
            let server = ZooKeeperServer::start();
            let facts = server.ask("srvr");
            let version = facts.lines().find_map(|line| line.strip_prefix("Zookeeper version: "));
            let version = version.and_then(|line| line.split(['-', ',']).next()).unwrap_or("unknown");
            let version = format!("ZooKeeper {version}");
            store(local(server.port()), server.url(), version, Servers::ZooKeeper(server))
        }
        StoreKind::File => store(String::new(), String::new(), String::new(), Servers::None),
    }
}

fn redis_version(server: &RedisServer) -> String {
    let facts = server.command(&["INFO", "server"]);
    let version = facts.lines().find_map(|line| line.trim_end().strip_prefix("redis_version:"));
    format!("Redis {}", version.unwrap_or("unknown"))
}

fn redis_usage(servers: &[RedisServer]) -> Usage {
    let mut seconds = 0.0;
    let mut traffic = Traffic::default();
    for server in servers {
        let facts = server.command(&["INFO", "everything"]);
        let value = |name: &str| {
            let line = facts.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0)
        };
        seconds += value("used_cpu_user") + value("used_cpu_sys");
        traffic.commands += value("total_commands_processed");
        traffic.bytes_in += value("total_net_input_bytes");
        traffic.bytes_out += value("total_net_output_bytes");
        traffic.asking.0 += 1.0;
        traffic.asking.1 += facts.len() as f64;
    }
    let cpu = Duration::from_secs_f64(seconds);
    Usage { cpu: CpuTime { ticks: cpu, exact: cpu }, traffic: Some(traffic) }
}

/// CPU time of processes, measured in two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Of all threads, also of those that have ended; in steps of 10 ms.
    ticks: Duration,
    /// Of all threads that run now, in nanoseconds.
    exact: Duration,
}

impl CpuTime {
    /// The CPU time of these processes and of all that they started.
    pub fn of_trees(roots: &[u32]) -> CpuTime {
        let mut sum = CpuTime::default();
        for pid in descendants(roots).into_iter().chain(roots.iter().copied()).collect::<HashSet<u32>>() {
            sum.ticks += ticks_of(pid).unwrap_or_default();
            sum.exact += exact_of(pid).unwrap_or_default();
        }
        sum
    }

    /// The time of both together.
    #[must_use]
    pub fn and(self, other: CpuTime) -> CpuTime {
        CpuTime { ticks: self.ticks + other.ticks, exact: self.exact + other.exact }
    }

    /// The time since `earlier`. The exact figure, unless threads that have ended make it too small.
    pub fn since(self, earlier: CpuTime) -> Duration {
        const STEP: Duration = Duration::from_millis(30);
        let (ticks, exact) =
            (self.ticks.saturating_sub(earlier.ticks), self.exact.saturating_sub(earlier.exact));
        if exact + STEP < ticks { ticks } else { exact }
    }
}

/// A kernel built as usual counts 100 ticks a second for `/proc`, whatever its own frequency is.
const TICK: Duration = Duration::from_millis(10);

fn ticks_of(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit(')').next()?;
    // After the name: the state is the first field, and the user time is the twelfth.
    let ticks: u32 =
        rest.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u32>().ok()).sum();
    Some(TICK * ticks)
}

fn exact_of(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(nanos.sum()))
}

/// All processes that these processes have started, directly or not.
fn descendants(roots: &[u32]) -> HashSet<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        children.entry(parent.unwrap_or(0)).or_default().push(pid);
    }
    let mut found = HashSet::new();
    let mut open: Vec<u32> = roots.to_vec();
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if found.insert(*child) {
                open.push(*child);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_ended_threads_is_not_forgotten() {
        let time = |ticks: u64, exact: u64| CpuTime {
            ticks: Duration::from_millis(ticks),
            exact: Duration::from_micros(exact),
        };
        assert_eq!(time(120, 123_456).since(time(100, 101_000)), Duration::from_micros(22_456));
        assert_eq!(time(500, 90_000).since(time(100, 101_000)), Duration::from_millis(400));
    }

    #[test]
    fn this_process_has_spent_time() {
        let before = CpuTime::of_trees(&[std::process::id()]);
        let mut sum = 0_u64;
        for number in 0..20_000_000_u64 {
            sum = std::hint::black_box(sum.wrapping_add(number * number));
        }
        let spent = CpuTime::of_trees(&[std::process::id()]).since(before);
        assert!(spent > Duration::ZERO, "{spent:?}, {sum}");
    }

    #[test]
    fn a_started_process_is_a_descendant() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = descendants(&[std::process::id()]).contains(&child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
    }
}
