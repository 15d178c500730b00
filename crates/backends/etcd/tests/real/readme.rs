//! Compares the row for etcd in the README with what the backend reports.

use leasehold::Backend as _;
use leasehold_testkit::servers::EtcdCluster;

#[tokio::test]
async fn the_readme_has_the_guarantee_that_the_backend_reports() {
    let cluster = EtcdCluster::start(1);
    let etcd = crate::common::open(&cluster.url()).await;
    let info = etcd.info();
    let row = format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when);
    let readme = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../README.md");
    let readme = std::fs::read_to_string(readme).expect("the README is there");
    assert!(readme.contains(&row), "{row}");
}
