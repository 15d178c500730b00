//! The conformance suite on a real server: with two handles, as two processes have them, and with a queue that can be
//! filled.

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_core::Backend;
use leasehold_postgres::{Config, Postgres};
use leasehold_testkit::{BackendUnderTest, conformance, servers::PostgresServer};

fn main() {
    // One server for all tests: every test uses its own resources. The server ends with this process.
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    conformance::main("postgres", || async {
        let server = SERVER.get_or_init(|| PostgresServer::with(&["fsync=off", "max_connections=200"]));
        let config = Config::parse(&server.url()).expect("it is a URL");
        let config = config.connections(2).pretend_queue_max(128);
        let open = move || {
            let connecting = Postgres::connect(config.clone(), Arc::new(System::current()));
            async { Arc::new(connecting.await.expect("the server accepts connections")) as Arc<dyn Backend> }
        };
        BackendUnderTest::real(open().await).opened_again(open().await).reopened_by(open)
    });
}
