//! Runs the conformance suite of the testkit on a real etcd server, with two clients, as two processes would
//! have them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold::System;
use leasehold_core::Backend;
use leasehold_etcd::{Config, Etcd};
use leasehold_testkit::{BackendUnderTest, conformance, servers::EtcdCluster};

fn main() {
    // One server for all tests: every test uses its own resources. The server ends with this process.
    static SERVER: OnceLock<EtcdCluster> = OnceLock::new();
    conformance::main("etcd", || async {
        let config =
            Config::parse(&SERVER.get_or_init(|| EtcdCluster::start(1)).url()).expect("the URL is valid");
        // Many tests run at the same time, perhaps on a loaded machine, so a slow reply is not a failure.
        let config = config.timeout(Duration::from_secs(20));
        let open = move || {
            let opening = Etcd::connect(config.clone(), Arc::new(System::current()));
            async { Arc::new(opening.await.expect("the server is up")) as Arc<dyn Backend> }
        };
        let (first, second) = (open().await, open().await);
        BackendUnderTest::real(first)
            .opened_again(second)
            .reopened_by(open)
            // etcd counts in whole seconds, and its shortest lease has two. A lease is one second longer than
            // the ttl, an eviction adds up to one more, and etcd looks for expired leases twice a second.
            .short_ttl(Duration::from_secs(2))
            .grace(Duration::from_millis(3200))
    });
}
