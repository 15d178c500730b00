//! A proxy delivers replies to the wrong request. The backend must not believe any of them.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::sync::Arc;

use leasehold::Backend;
use leasehold_testkit::{misdelivery, servers::ZooKeeperServer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_to_another_request_is_never_believed() {
    let server = ZooKeeperServer::start();
    misdelivery::check(server.port(), |port| async move {
        Arc::new(common::open(&common::url_through(port)).await) as Arc<dyn Backend>
    })
    .await;
}
