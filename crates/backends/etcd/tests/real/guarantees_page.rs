//! Compares the row for etcd in the guarantees page with what the backend reports.

use leasehold::Backend as _;
use leasehold_testkit::servers::EtcdCluster;

#[tokio::test]
async fn the_readme_has_the_guarantee_that_the_backend_reports() {
    let cluster = EtcdCluster::start(1);
    let etcd = crate::common::open(&cluster.url()).await;
    let info = etcd.info();
    let row = format!("| {} | {} | {} |", info.guarantee, info.because, info.tokens_break_when);
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guarantees.md");
    let page = std::fs::read_to_string(page).expect("the guarantees page is there");
    assert!(page.contains(&row), "{row}");
}
