//! Runs the conformance suite of the testkit on a ZooKeeper server that the test starts.

use std::sync::{Arc, LazyLock};

use leasehold::System;
use leasehold_core::Backend;
use leasehold_testkit::{BackendUnderTest, conformance, servers::ZooKeeperServer};
use leasehold_zookeeper::{Config, ZooKeeper};

static SERVER: LazyLock<ZooKeeperServer> = LazyLock::new(ZooKeeperServer::start);

async fn open() -> Arc<dyn Backend> {
    let config = Config::parse(&SERVER.url()).expect("the URL is well formed");
    let environment = Arc::new(System::current());
    Arc::new(ZooKeeper::connect(config, environment).await.expect("the server answers"))
}

fn main() {
    conformance::main("zookeeper", || async {
        BackendUnderTest::real(open().await).opened_again(open().await).reopened_by(open)
    });
}
