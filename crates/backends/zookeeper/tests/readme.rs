//! What the README says of this backend is what the backend says of itself.

mod common;

use std::{fs, path::Path};

use leasehold::Backend as _;
use leasehold_testkit::servers::ZooKeeperServer;

#[tokio::test]
async fn the_table_of_backends_is_true() {
    let server = ZooKeeperServer::start();
    let zookeeper = common::open(&server.url()).await;
    let info = zookeeper.info();
    let row = format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when);
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../README.md");
    let readme = fs::read_to_string(readme).expect("there is one");
    assert!(readme.contains(&row), "{row}");
}
