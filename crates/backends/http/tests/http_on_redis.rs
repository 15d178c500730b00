//! The conformance suite through two servers on one Redis server, with one client each: a claim may join the queue at one server and
//! wait at the other.

mod common;

use std::sync::OnceLock;

use common::TestServer;
use leasehold_testkit::{BackendUnderTest, conformance, servers::RedisServer};

fn main() {
    static SERVERS: OnceLock<(RedisServer, TestServer, TestServer)> = OnceLock::new();
    conformance::main("http_on_redis", || async {
        let (_, first, second) = SERVERS.get_or_init(|| {
            let redis = RedisServer::start();
            let start = || TestServer::start(common::open_store(redis.url()));
            let (first, second) = (start(), start());
            (redis, first, second)
        });
        let url = second.url();
        let (first, second) = (common::open(&first.url()).await, common::open(&url).await);
        BackendUnderTest::real(first).opened_again(second).reopened_by(move || {
            let url = url.clone();
            async move { common::open(&url).await }
        })
    });
}
