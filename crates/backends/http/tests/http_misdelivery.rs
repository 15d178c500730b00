//! A proxy delivers answers to the wrong request. The backend must not believe any of them.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use common::TestServer;
use leasehold_testkit::misdelivery;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_another_request_is_never_believed() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(common::open_store(format!("sqlite:{}", path.display())));
    misdelivery::check(server.port, |port| async move {
        common::open(&format!("{}?timeout=2s", common::url(port))).await
    })
    .await;
}
