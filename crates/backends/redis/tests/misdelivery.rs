//! A proxy that gives replies to the wrong request: none is believed.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::sync::Arc;

use leasehold::Backend;
use leasehold_testkit::{misdelivery, servers::RedisServer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_believed_that_belongs_to_another_request() {
    let server = RedisServer::start();
    misdelivery::check(server.port(), |port| async move {
        let url = format!("redis://127.0.0.1:{port}/?timeout=500ms");
        Arc::new(common::open(&url).await) as Arc<dyn Backend>
    })
    .await;
}
