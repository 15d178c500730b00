//! The servers of all tests, started once.

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
    EtcdCluster, MariaDbServer, PostgresServer, RedisCluster, RedisNodes, RedisServer, ZooKeeperServer,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A backend that leases are acquired on.
pub(crate) struct LeaseBackend {
    pub(crate) name: &'static str,
    pub(crate) url: fn(&Servers) -> String,
}

pub(crate) const BACKENDS: &[LeaseBackend] = &[
    LeaseBackend { name: "sqlite", url: |servers| servers.fresh_file("leases") },
    LeaseBackend { name: "redis", url: |servers| servers.redis.url() },
    LeaseBackend { name: "redis cluster", url: |servers| servers.cluster.url() },
    LeaseBackend { name: "redlock", url: |servers| servers.nodes.url() },
    LeaseBackend { name: "postgres", url: |servers| servers.postgres.url() },
    LeaseBackend { name: "etcd", url: |servers| servers.etcd.url() },
    LeaseBackend { name: "zookeeper", url: |servers| servers.zookeeper.url() },
];

pub(crate) struct Servers {
    pub(crate) redis: RedisServer,
    cluster: RedisCluster,
    nodes: RedisNodes,
    etcd: EtcdCluster,
    zookeeper: ZooKeeperServer,
    pub(crate) postgres: PostgresServer,
    /// With the fence, and a database `shop`.
    pub(crate) mariadb: MariaDbServer,
    pub(crate) folder: TempDir,
    /// The data of the HTTP service.
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
        let mariadb = MariaDbServer::start();
        mariadb.sql(leasehold_fence::mariadb::SCHEMA);
        mariadb.sql("CREATE DATABASE shop");
        Servers {
            redis: RedisServer::start(),
            cluster: RedisCluster::without_replicas(),
            // Old enough for the default gate of the URL.
            nodes: RedisNodes::long_lived(3, Duration::from_secs(600)),
            etcd: EtcdCluster::start(1),
            zookeeper: ZooKeeperServer::start(),
            postgres: PostgresServer::start(),
            mariadb,
            folder,
            reports,
            address,
            _runtime: runtime,
        }
    }

    /// An id that no other test uses.
    pub(crate) fn fresh(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// The URL of a file that does not exist yet.
    pub(crate) fn fresh_file(&self, name: &str) -> String {
        format!("sqlite:{}/{name}-{}.db", self.folder.path().display(), self.fresh())
    }
}

/// Starts a service that stores reports, behind a fence. Returns its address.
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
