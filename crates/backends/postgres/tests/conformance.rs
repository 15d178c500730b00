//! The whole suite, on a real server: two handles of it, as two processes would have them, and a line that can be full.

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_core::Backend;
use leasehold_postgres::{Config, Postgres};
use leasehold_testkit::{BackendUnderTest, conformance, servers::PostgresServer};

fn main() {
    // One server for all: every test uses names of its own. It ends with this process.
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    conformance::main("postgres", || async {
        let server = SERVER.get_or_init(|| PostgresServer::with(&["fsync=off", "max_connections=200"]));
        let config = Config::parse(&server.url()).expect("the URL is one");
        let config = config.connections(2).pretend_queue_max(100);
        let open = move || {
            let connecting = Postgres::connect(config.clone(), Arc::new(System::current()));
            async { Arc::new(connecting.await.expect("the server is there")) as Arc<dyn Backend> }
        };
        BackendUnderTest::real(open().await).opened_again(open().await).reopened_by(open)
    });
}
