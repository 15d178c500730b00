//! A proxy that gives replies to the wrong request: none is believed.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::sync::Arc;

use leasehold::Backend;
use leasehold_testkit::{misdelivery, servers::ZooKeeperServer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_believed_that_belongs_to_another_request() {
    let server = ZooKeeperServer::start();
    misdelivery::check(server.port(), |port| async move {
        Arc::new(common::open(&common::through(port)).await) as Arc<dyn Backend>
    })
    .await;
}
