//! Upgradeable readers, latches and barriers.

use std::{sync::Arc, time::Duration};

use leasehold::System;
use leasehold_core::Backend;
use leasehold_etcd::{Config, Etcd};
use leasehold_testkit::{primitives, servers::EtcdCluster};

#[tokio::test]
async fn upgrades_latches_and_barriers() {
    let server = EtcdCluster::start(1);
    let config = Config::parse(&server.url()).expect("the URL is valid").timeout(Duration::from_secs(20));
    let open = || {
        let opening = Etcd::connect(config.clone(), Arc::new(System::current()));
        async { Arc::new(opening.await.expect("the server is up")) as Arc<dyn Backend> }
    };
    primitives::all(&[open().await, open().await]).await;
}
