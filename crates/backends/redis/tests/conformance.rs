//! The whole suite, on a real server: two handles of it, as two processes would have them. As the user that the
//! documentation describes, who may do what is needed and nothing else.

#[path = "common/acl.rs"]
mod acl;

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_redis::{Config, Redis};
use leasehold_testkit::{BackendUnderTest, conformance, servers::RedisServer};

fn main() {
    // One server for all: every test uses names of its own. It ends with this process.
    static SERVER: OnceLock<(RedisServer, String)> = OnceLock::new();
    conformance::main("redis", || async {
        let (_, url) = SERVER.get_or_init(acl::start);
        let config = Config::parse(url).expect("the URL is one");
        let open = || Redis::connect(config.clone(), Arc::new(System::current()));
        let first = open().await.expect("the server is there");
        let second = open().await.expect("the server is there");
        BackendUnderTest::real(Arc::new(first)).opened_again(Arc::new(second))
    });
}
