//! Upgradeable readers. ZooKeeper has no latches: a permit does not stay taken after a release.

use std::sync::Arc;

use leasehold::System;
use leasehold_core::Backend;
use leasehold_testkit::{primitives, servers::ZooKeeperServer};
use leasehold_zookeeper::{Config, ZooKeeper};

#[tokio::test]
async fn upgrades_and_no_latches() {
    let server = ZooKeeperServer::start();
    let open = || {
        let config = Config::parse(&server.url()).expect("the URL is well formed");
        let opening = ZooKeeper::connect(config, Arc::new(System::current()));
        async { Arc::new(opening.await.expect("the server answers")) as Arc<dyn Backend> }
    };
    primitives::all(&[open().await, open().await]).await;
}
