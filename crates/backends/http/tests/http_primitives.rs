//! Upgradeable readers and latches, through a server.

mod common;

use common::TestServer;
use leasehold_testkit::primitives;

#[tokio::test]
async fn upgrades_and_latches() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(common::open_store(format!("sqlite:{}", path.display())));
    primitives::all(&[common::open(&server.url()).await, common::open(&server.url()).await]).await;
}
