//! Helpers that the tests on real servers share.
#![allow(dead_code, reason = "every test program uses a part of this")]
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{sync::Arc, time::Duration};

use leasehold::{Claim, Client, OwnerToken, Resource, System};
use leasehold_postgres::{Config, Postgres};
#[allow(unused_imports, reason = "every test program uses a part of this")]
pub(crate) use leasehold_testkit::calls::{
    blocked, claim, eventually, granted, in_time, kind_and_effect, release, renew, report, token_of,
};

/// A ttl that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_secs(90);
/// The time limit of a test step on a loaded machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn connect(url: &str) -> leasehold::Result<Postgres> {
    Postgres::connect(Config::parse(url)?, Arc::new(System::current())).await
}

pub(crate) async fn open(url: &str) -> Postgres {
    connect(url).await.expect("the server accepts connections")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::new(Arc::new(open(url).await))
}

pub(crate) fn owner() -> OwnerToken {
    OwnerToken::fresh(&System::current())
}

/// A claim that queues, with a place that does not expire during a test.
pub(crate) fn queued_claim(resource: &Resource) -> Claim {
    let mut claim = claim(resource, LONG).queued();
    claim.place_ttl = LONG;
    claim
}
