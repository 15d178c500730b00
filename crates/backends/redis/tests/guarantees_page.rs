//! The table of backends in the guarantees page says the same as `BackendInfo`.

use std::{fs, path::Path, sync::Arc, time::Duration};

use leasehold::System;
use leasehold_core::Backend as _;
use leasehold_redis::{Config, Redis};
use leasehold_testkit::servers::{RedisNodes, RedisServer};

#[tokio::test]
async fn the_row_of_redis_is_true() {
    let server = RedisServer::start();
    let config = Config::parse(&server.url()).expect("the URL is valid");
    let redis = Redis::connect(config, Arc::new(System::current())).await.expect("the server is there");
    let info = redis.info();
    let row = format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guarantees.md");
    let page = fs::read_to_string(page).expect("the guarantees page exists");
    assert!(page.contains(&row), "{row}");
}

#[tokio::test]
async fn the_row_of_redlock_is_true() {
    let nodes = RedisNodes::long_lived(5, Duration::from_secs(60));
    let redlock = leasehold::open(&nodes.url()).await.expect("the servers are there");
    let info = redlock.info();
    let row = format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guarantees.md");
    let page = fs::read_to_string(page).expect("the guarantees page exists");
    assert!(page.contains(&row), "{row}");
}
