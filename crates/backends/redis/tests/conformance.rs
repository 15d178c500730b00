//! The conformance suite on a real server: two clients, as of two processes, that log in as the documented
//! user.

#[path = "common/acl.rs"]
mod acl;

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_redis::{Config, Redis};
use leasehold_testkit::{BackendUnderTest, conformance, servers::RedisServer};

fn main() {
    // All tests share one server and use their own resource names. It ends with this process.
    static SERVER: OnceLock<(RedisServer, String)> = OnceLock::new();
    conformance::main("redis", || async {
        let (_, url) = SERVER.get_or_init(acl::start);
        let config = Config::parse(url).expect("the URL is valid");
        let open = || Redis::connect(config.clone(), Arc::new(System::current()));
        let first = open().await.expect("the server is there");
        let second = open().await.expect("the server is there");
        BackendUnderTest::real(Arc::new(first)).opened_again(Arc::new(second))
    });
}
