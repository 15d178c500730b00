//! The servers of all stories, started once.

use std::{
    collections::HashMap,
    path::Path as FilePath,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::Path, routing};
use leasehold_core::Resource;
use leasehold_fence::http::{FenceLayer, SqliteMarks};
use leasehold_testkit::servers::{
    EtcdCluster, PostgresServer, RedisCluster, RedisNodes, RedisServer, ZooKeeperServer,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Where leases are taken.
pub(crate) struct Lease {
    pub(crate) name: &'static str,
    pub(crate) url: fn(&Servers) -> String,
}

pub(crate) const LEASES: &[Lease] = &[
    Lease { name: "sqlite", url: |servers| servers.fresh_file("leases") },
    Lease { name: "redis", url: |servers| servers.redis.url() },
    Lease { name: "redis cluster", url: |servers| servers.cluster.url() },
    Lease { name: "redlock", url: |servers| servers.nodes.url() },
    Lease { name: "postgres", url: |servers| servers.postgres.url() },
    Lease { name: "etcd", url: |servers| servers.etcd.url() },
    Lease { name: "zookeeper", url: |servers| servers.zookeeper.url() },
];

pub(crate) struct Servers {
    pub(crate) redis: RedisServer,
    cluster: RedisCluster,
    nodes: RedisNodes,
    etcd: EtcdCluster,
    zookeeper: ZooKeeperServer,
    pub(crate) postgres: PostgresServer,
    pub(crate) folder: TempDir,
    /// What the HTTP service holds.
    pub(crate) reports: Arc<Mutex<HashMap<String, String>>>,
    pub(crate) address: String,
    _runtime: Runtime,
}

impl Servers {
    pub(crate) fn start() -> Servers {
        let (folder, reports) = (tempfile::tempdir().unwrap(), Arc::default());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = runtime.block_on(serve(&folder.path().join("marks.db"), Arc::clone(&reports)));
        Servers {
            redis: RedisServer::start(),
            cluster: RedisCluster::without_replicas(),
            // As old as the default gate of the URL wants them.
            nodes: RedisNodes::long_lived(3, Duration::from_secs(600)),
            etcd: EtcdCluster::start(1),
            zookeeper: ZooKeeperServer::start(),
            postgres: PostgresServer::start(),
            folder,
            reports,
            address,
            _runtime: runtime,
        }
    }

    /// A name that no other story has.
    pub(crate) fn fresh(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// The URL of a file that is not there yet.
    pub(crate) fn fresh_file(&self, name: &str) -> String {
        format!("sqlite:{}/{name}-{}.db", self.folder.path().display(), self.fresh())
    }
}

/// A service that keeps reports, behind the fence.
pub(crate) async fn serve(marks: &FilePath, reports: Arc<Mutex<HashMap<String, String>>>) -> String {
    let marks = rusqlite::Connection::open(marks).unwrap();
    let fence = FenceLayer::new(SqliteMarks::new(marks).unwrap(), |request| {
        request.uri.path().strip_prefix("/reports/").map(|id| Resource::new("report", id)).transpose()
    });
    let put = async move |Path(id): Path<String>, body: String| {
        reports.lock().unwrap().insert(id, body);
    };
    let app = Router::new().route("/reports/{id}", routing::put(put)).layer(fence);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}
