//! The conformance suite once more, through PgBouncer in transaction mode. The pool gives its server connections to other
//! clients after each transaction, so nothing may rely on a session, and no notifications arrive.

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
        let config = Config::parse(&format!("{}?timeout=2s", pool.url())).expect("it is a URL");
        let open = move || {
            let connecting = Postgres::connect(config.clone(), Arc::new(System::current()));
            async { Arc::new(connecting.await.expect("the pool accepts connections")) as Arc<dyn Backend> }
        };
        BackendUnderTest::real(open().await).opened_again(open().await).reopened_by(open)
    });
}
