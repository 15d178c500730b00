//! What is measured.

use crate::peers::{self, Peer};

/// The store on which a work is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// One Redis server without persistence.
    Redis,
    /// The same, and `leasehold serve` on it: the `url` is that of the server, the `address` that of Redis.
    Served,
    /// Five independent Redis servers.
    Redlock(Nodes),
    /// One PostgreSQL server with its default settings: every commit waits for the disk.
    Postgres,
    /// One etcd server.
    Etcd,
    /// One ZooKeeper server.
    ZooKeeper,
    /// A file of this host.
    File,
}

/// The state of the five nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// All five answer.
    AllUp,
    /// Two of them were killed.
    TwoDown,
    /// One of them answers up to 50 ms late in each direction.
    OneSlow,
}

/// What the tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each task acquires and releases a resource of its own.
    Pair {
        /// Tasks side by side.
        tasks: usize,
    },
    /// All tasks want the same resource.
    Handover {
        /// Processes that take part.
        processes: usize,
        /// Tasks of each process.
        tasks: usize,
        /// How long each holder keeps it.
        hold_us: u64,
    },
    /// All tasks wait in line for the same resource, which is granted in order of arrival.
    Fair {
        /// Tasks in line.
        waiters: usize,
    },
    /// One process keeps leases alive.
    Keep {
        /// How many.
        leases: usize,
    },
    /// A shell runs `true` under a lock.
    Shell,
}

/// A work: one table of the results.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Its name for `--only`, such as `redis-pair-64`.
    pub name: &'static str,
    /// Its title in the page.
    pub title: &'static str,
    /// Where it runs.
    pub store: StoreKind,
    /// What is done.
    pub kind: Kind,
    /// The locks that take part.
    pub peers: &'static [&'static Peer],
}

impl Work {
    /// The figure that the work is about.
    pub fn main_figure(&self) -> &'static str {
        match self.kind {
            Kind::Pair { tasks: 1 } | Kind::Shell => "p50_us",
            Kind::Pair { .. } | Kind::Fair { .. } => "per_second",
            Kind::Handover { .. } => "changes_per_second",
            Kind::Keep { .. } => "client_core_percent",
        }
    }

    /// The number of tasks of all processes.
    pub fn waiters(&self) -> usize {
        match self.kind {
            Kind::Pair { tasks } => tasks,
            Kind::Handover { processes, tasks, .. } => processes * tasks,
            Kind::Fair { waiters } => waiters,
            Kind::Keep { leases } => leases,
            Kind::Shell => 1,
        }
    }
}

/// The work of this name.
pub fn work_named(name: &str) -> Option<&'static Work> {
    WORKS.iter().find(|work| work.name == name)
}

const ONE: Kind = Kind::Pair { tasks: 1 };
const MANY: Kind = Kind::Pair { tasks: 64 };
const TOGETHER: Kind = Kind::Handover { processes: 1, tasks: 16, hold_us: 0 };
const TOGETHER_1_MS: Kind = Kind::Handover { processes: 1, tasks: 16, hold_us: 1000 };
const APART: Kind = Kind::Handover { processes: 4, tasks: 4, hold_us: 0 };
const APART_1_MS: Kind = Kind::Handover { processes: 4, tasks: 4, hold_us: 1000 };

const fn work(
    name: &'static str,
    title: &'static str,
    store: StoreKind,
    kind: Kind,
    peers: &'static [&'static Peer],
) -> Work {
    Work { name, title, store, kind, peers }
}

/// All works, in the order of the page.
pub const WORKS: &[Work] = &[
    work("redis-pair-1", "Redis: acquire and release, one task", StoreKind::Redis, ONE, peers::REDIS),
    work("redis-pair-64", "Redis: acquire and release, 64 tasks", StoreKind::Redis, MANY, peers::REDIS),
    work(
        "redis-handover-16-0ms",
        "Redis: hand-over, 16 waiters of one process, hold 0",
        StoreKind::Redis,
        TOGETHER,
        peers::REDIS_WAITING,
    ),
    work(
        "redis-handover-16-1ms",
        "Redis: hand-over, 16 waiters of one process, hold 1 ms",
        StoreKind::Redis,
        TOGETHER_1_MS,
        peers::REDIS_WAITING,
    ),
    work(
        "redis-handover-4x4-0ms",
        "Redis: hand-over, 4 processes of 4 waiters, hold 0",
        StoreKind::Redis,
        APART,
        peers::REDIS_WAITING,
    ),
    work(
        "redis-handover-4x4-1ms",
        "Redis: hand-over, 4 processes of 4 waiters, hold 1 ms",
        StoreKind::Redis,
        APART_1_MS,
        peers::REDIS_WAITING,
    ),
    work(
        "redis-fair-10",
        "Redis: a fair line of 10",
        StoreKind::Redis,
        Kind::Fair { waiters: 10 },
        peers::REDIS_FAIR,
    ),
    work(
        "redis-fair-1000",
        "Redis: a fair line of 1,000",
        StoreKind::Redis,
        Kind::Fair { waiters: 1000 },
        peers::REDIS_FAIR,
    ),
    work(
        "redis-fair-5000",
        "Redis: a fair line of 5,000",
        StoreKind::Redis,
        Kind::Fair { waiters: 5000 },
        peers::REDIS_FAIR,
    ),
    work(
        "redis-keep-10000",
        "Redis: 10,000 leases kept alive, ttl 30 s",
        StoreKind::Redis,
        Kind::Keep { leases: 10_000 },
        peers::REDIS_RENEWING,
    ),
    work(
        "redis-keep-100000",
        "Redis: 100,000 leases kept alive, ttl 30 s",
        StoreKind::Redis,
        Kind::Keep { leases: 100_000 },
        peers::REDIS_RENEWING,
    ),
    work(
        "redlock-up-1",
        "Redlock over five servers, all up, one task",
        StoreKind::Redlock(Nodes::AllUp),
        ONE,
        peers::REDLOCK,
    ),
    work(
        "redlock-up-64",
        "Redlock over five servers, all up, 64 tasks",
        StoreKind::Redlock(Nodes::AllUp),
        MANY,
        peers::REDLOCK,
    ),
    work(
        "redlock-down-1",
        "Redlock over five servers, two down, one task",
        StoreKind::Redlock(Nodes::TwoDown),
        ONE,
        peers::REDLOCK,
    ),
    work(
        "redlock-down-64",
        "Redlock over five servers, two down, 64 tasks",
        StoreKind::Redlock(Nodes::TwoDown),
        MANY,
        peers::REDLOCK,
    ),
    work(
        "redlock-slow-1",
        "Redlock over five servers, one slow, one task",
        StoreKind::Redlock(Nodes::OneSlow),
        ONE,
        peers::REDLOCK,
    ),
    work(
        "redlock-slow-64",
        "Redlock over five servers, one slow, 64 tasks",
        StoreKind::Redlock(Nodes::OneSlow),
        MANY,
        peers::REDLOCK,
    ),
    work(
        "postgres-pair-1",
        "PostgreSQL: acquire and release, one task",
        StoreKind::Postgres,
        ONE,
        peers::POSTGRES,
    ),
    work(
        "postgres-pair-64",
        "PostgreSQL: acquire and release, 64 tasks",
        StoreKind::Postgres,
        MANY,
        peers::POSTGRES,
    ),
    work(
        "postgres-handover-16-0ms",
        "PostgreSQL: hand-over, 16 waiters of one process, hold 0",
        StoreKind::Postgres,
        TOGETHER,
        peers::POSTGRES_WAITING,
    ),
    work(
        "postgres-handover-4x4-0ms",
        "PostgreSQL: hand-over, 4 processes of 4 waiters, hold 0",
        StoreKind::Postgres,
        APART,
        peers::POSTGRES_WAITING,
    ),
    work(
        "postgres-handover-4x4-1ms",
        "PostgreSQL: hand-over, 4 processes of 4 waiters, hold 1 ms",
        StoreKind::Postgres,
        APART_1_MS,
        peers::POSTGRES_WAITING,
    ),
    work("etcd-pair-1", "etcd: acquire and release, one task", StoreKind::Etcd, ONE, peers::ETCD),
    work("etcd-pair-64", "etcd: acquire and release, 64 tasks", StoreKind::Etcd, MANY, peers::ETCD),
    work(
        "etcd-handover-16-0ms",
        "etcd: hand-over, 16 waiters of one process, hold 0",
        StoreKind::Etcd,
        TOGETHER,
        peers::ETCD,
    ),
    work(
        "etcd-handover-4x4-0ms",
        "etcd: hand-over, 4 processes of 4 waiters, hold 0",
        StoreKind::Etcd,
        APART,
        peers::ETCD,
    ),
    work(
        "etcd-handover-4x4-1ms",
        "etcd: hand-over, 4 processes of 4 waiters, hold 1 ms",
        StoreKind::Etcd,
        APART_1_MS,
        peers::ETCD,
    ),
    work(
        "zookeeper-pair-1",
        "ZooKeeper: acquire and release, one task",
        StoreKind::ZooKeeper,
        ONE,
        peers::ZOOKEEPER,
    ),
    work(
        "zookeeper-pair-64",
        "ZooKeeper: acquire and release, 64 tasks",
        StoreKind::ZooKeeper,
        MANY,
        peers::ZOOKEEPER,
    ),
    work(
        "zookeeper-handover-16-0ms",
        "ZooKeeper: hand-over, 16 waiters of one process, hold 0",
        StoreKind::ZooKeeper,
        TOGETHER,
        peers::ZOOKEEPER,
    ),
    work(
        "zookeeper-handover-16-1ms",
        "ZooKeeper: hand-over, 16 waiters of one process, hold 1 ms",
        StoreKind::ZooKeeper,
        TOGETHER_1_MS,
        peers::ZOOKEEPER,
    ),
    work(
        "zookeeper-handover-4x4-0ms",
        "ZooKeeper: hand-over, 4 processes of 4 waiters, hold 0",
        StoreKind::ZooKeeper,
        APART,
        peers::ZOOKEEPER,
    ),
    work(
        "zookeeper-handover-4x4-1ms",
        "ZooKeeper: hand-over, 4 processes of 4 waiters, hold 1 ms",
        StoreKind::ZooKeeper,
        APART_1_MS,
        peers::ZOOKEEPER,
    ),
    work(
        "shell-file",
        "Shell: a command under a lock in a file",
        StoreKind::File,
        Kind::Shell,
        peers::SHELL_FILE,
    ),
    work(
        "shell-etcd",
        "Shell: a command under a lock in etcd",
        StoreKind::Etcd,
        Kind::Shell,
        peers::SHELL_ETCD,
    ),
];
