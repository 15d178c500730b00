//! Helpers of the tests on real servers.
#![allow(dead_code, reason = "each test program uses only some of these helpers")]
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

pub(crate) mod frame_proxy;

use std::{sync::Arc, time::Duration};

use leasehold::{Claim, Client, Resource, System};
use leasehold_testkit::calls;
#[allow(unused_imports, reason = "each test program uses only some of these helpers")]
pub(crate) use leasehold_testkit::calls::{eventually, granted, in_time, is_blocked, release, report};
use leasehold_zookeeper::{Config, ZooKeeper};

/// The ttl that claims ask for. They are granted the shorter time that their session allows.
pub(crate) const LONG_TTL: Duration = calls::LONG_TTL;
/// How long any step may take on a loaded machine.
pub(crate) const TIME_LIMIT: Duration = calls::TEST_TIMEOUT;

pub(crate) async fn open(url: &str) -> ZooKeeper {
    let config = Config::parse(url).expect("the URL is valid");
    ZooKeeper::connect(config, Arc::new(System::current())).await.expect("the server answers")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::new(Arc::new(open(url).await))
}

/// The URL of a server behind a proxy on this port.
pub(crate) fn url_through(port: u16) -> String {
    format!("zookeeper://127.0.0.1:{port}/?session_timeout=2s&tick=200ms")
}

pub(crate) fn claim(resource: &Resource) -> Claim {
    calls::claim(resource, LONG_TTL)
}
