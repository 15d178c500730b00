//! Deadlines over two hops: a client asks a server, which asks the store and waits on its behalf. Whatever is late on the way, the
//! client stops before another one can be granted.
//!
//! The rule of the API: a lease ends when the client *sent* its request, plus `waited_ms` less 1 %, plus `remaining_ms`, less a margin.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{
    Claim, Client, Clock as _, FencingToken, Grant, Holder, OwnerToken, Resource, Share, System, Timestamp,
    Verdict,
};
use leasehold_testkit::{
    Proxy, Recorded,
    history::{Call, History, Journal, Stamp},
    proxy::Direction,
    servers::RedisServer,
    verbs::{VerbReply, VerbRequest},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{
    TIMEOUT, TestDir,
    serving::{Serving, post},
};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(3);
/// What every client of the API subtracts for clocks that differ in speed, and for rounding.
const MARGIN: Duration = Duration::from_millis(32);

/// A lease that a client of the API was granted by a long poll. It is neither renewed nor released.
#[derive(Debug)]
struct Granted {
    owner: OwnerToken,
    token: FencingToken,
    remaining: Duration,
    /// From when the client counts: when it sent the request, and most of what the server waited.
    counted_from: Instant,
    received: Instant,
}

impl Granted {
    /// Until when the client believes in its lease.
    fn deadline(&self) -> Instant {
        self.counted_from + self.remaining - MARGIN
    }
}

/// Asks for `report/42`, with a long poll of a minute.
fn acquire(address: &str, number: u8) -> Granted {
    let mut bytes = *b"an owner's bytes";
    bytes[0] = number;
    let owner = OwnerToken::from_bytes(bytes);
    let claim = json!({
        "resource": "report/42", "owner": owner.reveal(), "ttl_ms": millis(TTL), "wait_ms": 60_000,
    });
    let sent = Instant::now();
    let (status, reply) = post(address, "/v1/acquire", &claim.to_string());
    let received = Instant::now();
    assert_eq!(status, 200, "{reply}");
    let number_of = |name: &str| Duration::from_millis(reply[name].as_u64().unwrap());
    let Value::String(token) = &reply["token"] else { panic!("no token in {reply}") };
    Granted {
        owner,
        token: token.parse().unwrap(),
        remaining: number_of("remaining_ms"),
        counted_from: sent + number_of("waited_ms").mul_f64(0.99),
        received,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

/// The history checker reads the grants as calls that were made when the clients count from.
fn check(mut grants: Vec<Granted>) {
    grants.sort_by_key(|grant| grant.counted_from);
    assert!(grants.is_sorted_by(|one, next| one.token < next.token), "{grants:?}");
    let (start, zero) = (Instant::now(), System::current().now());
    let at = |moment: Instant| -> Timestamp { zero.before(start.saturating_duration_since(moment)) };
    let holder = Arc::new(Holder::new("host", 1, ""));
    let calls = grants.iter().enumerate().map(|(index, grant)| {
        let order = u64::try_from(index).unwrap() * 2;
        let resource = Resource::new("report", "42").unwrap();
        let claim = Claim::new(resource, grant.owner, Share::WHOLE, TTL, Arc::clone(&holder));
        let verdict = Verdict::Granted(Grant::new(grant.token, grant.remaining));
        Call {
            began: Stamp { at: at(grant.counted_from), order },
            request: VerbRequest::Acquire(vec![claim]),
            reply: Some((
                Stamp { at: at(grant.received), order: order + 1 },
                VerbReply::Acquire(vec![Ok(verdict)]),
            )),
        }
    });
    let history = History { calls: calls.collect() };
    if let Err(violations) = history.check(Duration::ZERO) {
        panic!("{violations:#?}\n{grants:#?}");
    }
}

/// Asks in a thread of its own.
fn asking(address: &str, number: u8) -> tokio::task::JoinHandle<Granted> {
    let address = address.to_owned();
    tokio::task::spawn_blocking(move || acquire(&address, number))
}

async fn until_queued(store: &Client, length: u32) {
    let queued = async {
        while store.look("report", "42").await.unwrap().queue_length != length {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, queued).await.expect("the claims are queued");
}

/// A server on a Redis, and a client of that Redis itself, which holds the lease first.
struct Story {
    redis: RedisServer,
    directory: TestDir,
    server: Serving,
    store: Client,
}

impl Story {
    async fn begin() -> Story {
        let redis = RedisServer::start();
        let directory = TestDir::new();
        let server = Serving::on(&directory, Some(&redis.url()), &[]);
        let store = leasehold::connect(&redis.url()).await.unwrap();
        Story { redis, directory, server, store }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_that_waited_longer_than_its_ttl_gives_a_whole_lease() {
    let story = Story::begin().await;
    let held = story.store.lease("report", "42").ttl(TIMEOUT).acquire().await.unwrap();
    let second = asking(&story.server.address, 1);
    until_queued(&story.store, 1).await;
    let third = asking(&story.server.address, 2);
    until_queued(&story.store, 2).await;
    sleep(TTL + TTL / 2).await;
    held.release().await.unwrap();
    let (second, third) = (second.await.unwrap(), third.await.unwrap());
    // Counted from the request alone, it would be over on arrival.
    let left = second.deadline().saturating_duration_since(second.received);
    assert!(left > TTL / 2, "{left:?} of {TTL:?} are left on arrival");
    assert!(second.deadline() < third.received);
    check(vec![second, third]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_late_gives_less_and_one_that_is_too_late_gives_nothing() {
    for delay in [TTL / 3, TTL + TTL / 3] {
        let story = Story::begin().await;
        let proxy = Proxy::start(story.server.socket().port(), 7).await;
        let held = story.store.lease("report", "42").ttl(TIMEOUT).acquire().await.unwrap();
        let second = asking(&format!("127.0.0.1:{}", proxy.port()), 1);
        until_queued(&story.store, 1).await;
        let third = asking(&story.server.address, 2);
        until_queued(&story.store, 2).await;
        proxy.hold(Direction::Replies);
        held.release().await.unwrap();
        until_queued(&story.store, 1).await; // the second one holds, and does not know it
        sleep(delay).await;
        proxy.heal();
        let (second, third) = (second.await.unwrap(), third.await.unwrap());
        assert!(second.deadline() < third.received);
        if delay > TTL {
            assert!(second.deadline() < second.received, "over on arrival, and the client knows it");
        }
        check(vec![second, third]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stood_still_gives_no_time_that_has_passed() {
    let story = Story::begin().await;
    let other = Serving::on(&story.directory, Some(&story.redis.url()), &[]);
    let held = story.store.lease("report", "42").ttl(TIMEOUT).acquire().await.unwrap();
    let second = asking(&story.server.address, 1);
    until_queued(&story.store, 1).await;
    story.server.signal(Signal::STOP);
    let third = asking(&other.address, 2);
    held.release().await.unwrap();
    // The second one is silent, so the third one is granted while that server stands still.
    let third = third.await.unwrap();
    sleep(TTL / 2).await;
    story.server.signal(Signal::CONT);
    let second = second.await.unwrap();
    assert!(third.deadline() < second.received);
    check(vec![second, third]);
}

/// The library as the client: its lease is renewed through a server that stops answering.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_server_stands_still_is_told_before_another_is_granted() {
    let story = Story::begin().await;
    let other = Serving::on(&story.directory, Some(&story.redis.url()), &[]);
    let journal = Journal::new(Arc::new(System::current()));
    let mut clients = Vec::new();
    for server in [&story.server, &other] {
        let backend = leasehold::open(&server.url()).await.unwrap();
        clients.push(Client::new(Arc::new(Recorded::new(backend, &journal))));
    }
    let lost = clients[0].lease("report", "42").ttl(TTL).acquire().await.unwrap();
    story.server.signal(Signal::STOP);
    let next = tokio::spawn(clients[1].lease("report", "42").ttl(TTL).wait(TIMEOUT).acquire());
    timeout(TIMEOUT, lost.ended()).await.expect("told by the clock");
    assert!(!next.is_finished() && lost.check().is_err());
    let next = timeout(TIMEOUT, next).await.expect("granted").unwrap().unwrap();
    assert!(next.token() > lost.token());
    story.server.signal(Signal::CONT);
    // Renewals that stood in the server are carried out now, and change nothing.
    next.check().unwrap();
    sleep(Duration::from_secs(1)).await;
    next.check().unwrap();
    assert!(lost.check().is_err());
    next.release().await.unwrap();
    if let Err(violations) = journal.history().check(Duration::from_millis(50)) {
        panic!("{violations:#?}");
    }
}
