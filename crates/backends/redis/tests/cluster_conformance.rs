//! The whole suite, on a real cluster: two handles of it, as two processes would have them. As the user that the
//! documentation describes.

#[path = "common/acl.rs"]
mod acl;

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_redis::{Config, Redis};
use leasehold_testkit::{BackendUnderTest, conformance, servers::RedisCluster};

fn main() {
    // One cluster for all: every test uses names of its own. It ends with this process.
    static CLUSTER: OnceLock<(RedisCluster, String)> = OnceLock::new();
    conformance::main("redis-cluster", || async {
        let (_, url) = CLUSTER.get_or_init(|| acl::start_cluster(&[]));
        let config = Config::parse(url).expect("the URL is one");
        let open = || Redis::connect(config.clone(), Arc::new(System::current()));
        let first = open().await.expect("the cluster is there");
        let second = open().await.expect("the cluster is there");
        BackendUnderTest::real(Arc::new(first)).opened_again(Arc::new(second))
    });
}
