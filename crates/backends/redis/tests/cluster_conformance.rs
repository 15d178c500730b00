//! The conformance suite on a real cluster: two clients, as of two processes, that log in as the documented
//! user.

#[path = "common/acl.rs"]
mod acl;

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_redis::{Config, Redis};
use leasehold_testkit::{BackendUnderTest, conformance, servers::RedisCluster};

fn main() {
    // All tests share one cluster and use their own resource names. It ends with this process.
    static CLUSTER: OnceLock<(RedisCluster, String)> = OnceLock::new();
    conformance::main("redis-cluster", || async {
        let (_, url) = CLUSTER.get_or_init(|| acl::start_cluster(&[]));
        let config = Config::parse(url).expect("the URL is valid");
        let open = || Redis::connect(config.clone(), Arc::new(System::current()));
        let first = open().await.expect("the cluster is there");
        let second = open().await.expect("the cluster is there");
        BackendUnderTest::real(Arc::new(first)).opened_again(Arc::new(second))
    });
}
