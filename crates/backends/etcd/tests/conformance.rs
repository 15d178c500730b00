//! The whole suite, on a real server: two handles of it, as two processes would have them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold::System;
use leasehold_core::Backend;
use leasehold_etcd::{Config, Etcd};
use leasehold_testkit::{BackendUnderTest, conformance, servers::EtcdCluster};

fn main() {
    // One server for all: every test uses names of its own. It ends with this process.
    static SERVER: OnceLock<EtcdCluster> = OnceLock::new();
    conformance::main("etcd", || async {
        let config =
            Config::parse(&SERVER.get_or_init(|| EtcdCluster::start(1)).url()).expect("the URL is one");
        // Many tests at once, on a machine with more to do: a slow answer is no failure.
        let config = config.timeout(Duration::from_secs(20));
        let open = move || {
            let opening = Etcd::connect(config.clone(), Arc::new(System::current()));
            async { Arc::new(opening.await.expect("the server is there")) as Arc<dyn Backend> }
        };
        let (first, second) = (open().await, open().await);
        BackendUnderTest::real(first)
            .opened_again(second)
            .reopened_by(open)
            // etcd counts in whole seconds, from two on; a lease is one longer than asked for, an eviction adds one more at
            // the most, and etcd looks for those that have ended twice a second.
            .short_ttl(Duration::from_secs(2))
            .grace(Duration::from_millis(3200))
    });
}
