//! The whole suite once more, through PgBouncer in transaction mode: the server's connections are somebody else's after
//! each transaction, so nothing may rely on a session, and nothing is heard.

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_core::Backend;
use leasehold_postgres::{Config, Postgres};
use leasehold_testkit::{
    BackendUnderTest, conformance,
    servers::{PgBouncer, PostgresServer},
};

fn main() {
    static SERVERS: OnceLock<(PgBouncer, PostgresServer)> = OnceLock::new();
    conformance::main("postgres_behind_a_pool", || async {
        let (pool, _) = SERVERS.get_or_init(|| {
            let server = PostgresServer::start();
            (PgBouncer::start(&server, 4), server)
        });
        let config = Config::parse(&format!("{}?timeout=2s", pool.url())).expect("the URL is one");
        let open = move || {
            let connecting = Postgres::connect(config.clone(), Arc::new(System::current()));
            async { Arc::new(connecting.await.expect("the pool is there")) as Arc<dyn Backend> }
        };
        BackendUnderTest::real(open().await).opened_again(open().await).reopened_by(open)
    });
}
