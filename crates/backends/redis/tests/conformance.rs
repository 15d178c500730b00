//! The whole suite, on a real server: two handles of it, as two processes would have them.

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_redis::{Config, Redis};
use leasehold_testkit::{Stage, conformance, servers::RedisServer};

fn main() {
    // One server for all: every test uses names of its own. It ends with this process.
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    conformance::main("redis", || async {
        let config = Config::parse(&SERVER.get_or_init(RedisServer::start).url()).expect("the URL is one");
        let open = || Redis::connect(config.clone(), Arc::new(System::current()));
        let first = open().await.expect("the server is there");
        let second = open().await.expect("the server is there");
        Stage::real(Arc::new(first)).opened_again(Arc::new(second))
    });
}
