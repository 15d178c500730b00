//! The row of this backend in the guarantees page is the same as what the backend reports.

mod common;

use std::{fs, path::Path};

use leasehold::Backend as _;
use leasehold_testkit::servers::ZooKeeperServer;

#[tokio::test]
async fn the_row_of_this_backend_is_up_to_date() {
    let server = ZooKeeperServer::start();
    let zookeeper = common::open(&server.url()).await;
    let info = zookeeper.info();
    let row = format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guarantees.md");
    let page = fs::read_to_string(page).expect("the guarantees page exists");
    assert!(page.contains(&row), "the guarantees page does not contain {row}");
}
