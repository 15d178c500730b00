//! The whole suite, on a real server: two handles of it, as two processes would have them.

use std::sync::{Arc, OnceLock};

use leasehold::System;
use leasehold_postgres::{Config, Postgres};
use leasehold_testkit::{Stage, conformance, servers::PostgresServer};

fn main() {
    // One server for all: every test uses names of its own. It ends with this process.
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    conformance::main("postgres", || async {
        let config = Config::parse(&SERVER.get_or_init(PostgresServer::start).url()).expect("the URL is one");
        let open = || Postgres::connect(config.clone().connections(2), Arc::new(System::current()));
        let first = open().await.expect("the server is there");
        let second = open().await.expect("the server is there");
        Stage::real(Arc::new(first)).opened_again(Arc::new(second))
    });
}
