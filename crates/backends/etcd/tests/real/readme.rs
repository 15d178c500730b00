//! What the README says of this backend is what the backend says of itself.

use leasehold::Backend as _;
use leasehold_testkit::servers::EtcdCluster;

#[tokio::test]
async fn the_table_of_backends_is_true() {
    let cluster = EtcdCluster::start(1);
    let etcd = crate::common::open(&cluster.url()).await;
    let info = etcd.info();
    let row = format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when);
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../README.md");
    let readme = std::fs::read_to_string(readme).expect("there is one");
    assert!(readme.contains(&row), "{row}");
}
