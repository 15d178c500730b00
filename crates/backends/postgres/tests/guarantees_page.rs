//! The guarantees page and the backend describe the same guarantee.

mod common;

use std::{fs, path::Path};

use leasehold_core::Backend as _;
use leasehold_testkit::servers::PostgresServer;

#[tokio::test]
async fn the_table_of_backends_is_true() {
    let server = PostgresServer::durable();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guarantees.md");
    let page = fs::read_to_string(page).expect("the file is readable");
    for standby in [false, true] {
        let _standby = standby.then(|| server.standby(true));
        let postgres = common::open(&server.url()).await;
        let info = postgres.info();
        let row = format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when);
        assert!(page.contains(&row), "{row}");
    }
}
