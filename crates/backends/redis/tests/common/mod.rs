//! Helpers for the tests on real servers.
#![allow(dead_code, reason = "every test program uses some of them")]
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{sync::Arc, time::Duration};

use leasehold::{Client, OwnerToken, System};
use leasehold_redis::{Config, Redis};
#[allow(unused_imports, reason = "every test program uses some of them")]
pub(crate) use leasehold_testkit::calls::{
    claim, eventually, granted, in_time, is_blocked, kind_and_effect, release, renew, report, token_of,
};

/// A ttl that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A ttl that a test can wait for, and that is long enough for a loaded machine.
pub(crate) const SHORT: Duration = Duration::from_millis(800);
/// The longest time that an operation may take on a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn open(url: &str) -> Redis {
    let config = Config::parse(url).expect("the URL is valid");
    Redis::connect(config, Arc::new(System::current())).await.expect("the server is there")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::new(Arc::new(open(url).await))
}

pub(crate) fn owner() -> OwnerToken {
    OwnerToken::fresh(&System::current())
}
