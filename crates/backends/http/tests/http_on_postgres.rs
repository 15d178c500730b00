//! The conformance suite through two servers on one PostgreSQL server, with one client each.

mod common;

use std::sync::OnceLock;

use common::TestServer;
use leasehold_testkit::{BackendUnderTest, conformance, servers::PostgresServer};

fn main() {
    static SERVERS: OnceLock<(PostgresServer, TestServer, TestServer)> = OnceLock::new();
    conformance::main("http_on_postgres", || async {
        let (_, first, second) = SERVERS.get_or_init(|| {
            let postgres = PostgresServer::with(&["fsync=off", "max_connections=200"]);
            let start = || {
                let url = postgres.url();
                TestServer::start(common::open_store(url))
            };
            let (first, second) = (start(), start());
            (postgres, first, second)
        });
        let url = second.url();
        let (first, second) = (common::open(&first.url()).await, common::open(&url).await);
        BackendUnderTest::real(first).opened_again(second).reopened_by(move || {
            let url = url.clone();
            async move { common::open(&url).await }
        })
    });
}
