//! Upgradeable readers, latches and barriers, on memory, SQLite, Redis and PostgreSQL. Redlock has none of them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{sync::Arc, time::Duration};

use leasehold::{Client, ErrorKind, Memory};
use leasehold_testkit::{
    primitives,
    servers::{PostgresServer, RedisNodes, RedisServer},
};

async fn twice(url: &str) -> primitives::TwoBackends {
    [leasehold::open(url).await.unwrap(), leasehold::open(url).await.unwrap()]
}

#[tokio::test]
async fn memory() {
    let backend: Arc<Memory> = Arc::new(Memory::new());
    primitives::all(&[backend.clone(), backend]).await;
}

#[tokio::test]
async fn sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("leases.db").display());
    primitives::all(&twice(&url).await).await;
}

#[tokio::test]
async fn redis() {
    let server = RedisServer::start();
    primitives::all(&twice(&server.url()).await).await;
}

#[tokio::test]
async fn postgres() {
    let server = PostgresServer::start();
    primitives::all(&twice(&server.url()).await).await;
}

#[tokio::test]
async fn redlock_refuses_them() {
    let nodes = RedisNodes::long_lived(3, Duration::from_secs(600));
    let client = Client::new(leasehold::open(&nodes.url()).await.unwrap());
    let upgradable = client.rwlock("index", "main").upgradable().upgradable_read().acquire().await;
    assert_eq!(upgradable.unwrap_err().kind(), ErrorKind::Unsupported);
    let latch = client.count_down_latch("import", "42", 2).count_down("a").await;
    assert_eq!(latch.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(client.list("").await.unwrap().is_empty(), "nothing stays held");
}
