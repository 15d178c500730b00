//! Replies that reach the wrong request: a test for every backend that talks to a server (ADR 0033).
//!
//! The test opens the backend twice through a [`Proxy`] that delivers replies to the wrong request, and once
//! directly. A case is a pair of requests of the same verb whose correct replies differ. A backend that takes
//! one reply for the other would report a grant of a held resource, a renewal of an evicted claim, or an
//! order that was not executed.
//!
//! 1. Swapped replies: both requests run at the same time, on two connections, and each gets the reply of the
//!    other.
//! 2. Repeated and stale replies: the requests follow each other on one connection, and the second gets the
//!    reply of the first.
//! 3. Each request must return the correct reply, or fail with an unknown effect.
//! 4. Afterwards, without the fault, the same handles must work again.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use leasehold::System;
use leasehold_core::{
    Backend, BackendExt as _, Claim, CommandOutcome, Effect, Error, ErrorKind, Eviction, FencingToken,
    Holder, OperatorAction, OperatorCommand, OwnerToken, Query, ReleaseRequest, Released, RenewRequest,
    Renewal, Resource, Result, Share, Verdict,
};

use crate::proxy::{Misdelivery, Proxy};

const TTL: Duration = Duration::from_secs(60);
/// How often each case runs: it depends on timing whether the fault hits the intended request.
const ROUNDS: u32 = 4;
/// How often a handle may fail after the fault has ended: each of its connections may break once more.
const FAILURES_MAX: u32 = 40;
/// A call must return within this time, also if its reply was lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

type BackendHandle = Arc<dyn Backend>;

/// Runs every case with every kind of misdelivery.
///
/// `open` opens the backend at a port of 127.0.0.1, as another process would. Its requests must time out
/// within seconds.
///
/// # Panics
/// If the backend accepts a wrong reply, or a handle does not work again.
pub async fn check<O: Future<Output = BackendHandle>>(server: u16, open: impl Fn(u16) -> O) {
    let proxy = Proxy::start(server, 33).await;
    let (direct, handle_a, handle_b) =
        (open(server).await, open(proxy.port()).await, open(proxy.port()).await);
    let test = MisdeliveryTest { proxy, direct, handle_a, handle_b };
    for how in [Misdelivery::Swap, Misdelivery::Repeat, Misdelivery::Stale] {
        let before = test.proxy.misdelivered();
        for round in 0..ROUNDS {
            test.run_pair(how, &acquires(&test).await).await;
            test.run_pair(how, &renewals(&test, how).await).await;
            test.run_pair(how, &releases(&test, round).await).await;
            test.run_pair(how, &orders(&test).await).await;
            test.run_pair(how, &inspections(&test).await).await;
        }
        assert!(test.proxy.misdelivered() > before, "{how:?}: no reply was delivered to the wrong request");
    }
}

/// The handles of the test: two through the proxy, and a direct one.
struct MisdeliveryTest {
    proxy: Proxy,
    direct: BackendHandle,
    handle_a: BackendHandle,
    handle_b: BackendHandle,
}

/// Two requests of one verb, each with its correct reply.
struct RequestPair {
    first: (CaseRequest, ReplySummary),
    second: (CaseRequest, ReplySummary),
}

/// A request of a case.
#[derive(Debug)]
enum CaseRequest {
    Acquire(Box<Claim>),
    Renew(RenewRequest),
    Release(ReleaseRequest),
    Order(OperatorCommand),
    Inspect(Resource),
}

/// The part of a reply in which the two replies of a pair differ.
#[derive(Debug, PartialEq, Eq)]
enum ReplySummary {
    Granted,
    Blocked,
    Renewed(FencingToken),
    Gone,
    Released(Released),
    /// Whether the order was executed.
    Ordered(bool),
    /// The label of the only holder.
    HeldBy(String),
    Other(String),
}

impl MisdeliveryTest {
    async fn run_pair(&self, how: Misdelivery, pair: &RequestPair) {
        // Loads scripts and opens connections before the fault, so that the fault hits the requests of the
        // pair.
        self.await_recovery().await;
        let (first, second) = (&pair.first, &pair.second);
        if how == Misdelivery::Swap {
            self.proxy.misdeliver(how, 1);
            let (reply_a, reply_b) =
                tokio::join!(send(&*self.handle_a, &first.0), send(&*self.handle_b, &second.0));
            check_reply(how, first, reply_a);
            check_reply(how, second, reply_b);
        } else {
            if how == Misdelivery::Repeat {
                self.proxy.misdeliver(how, 1);
            }
            check_reply(how, first, send(&*self.handle_a, &first.0).await);
            self.evict_holder_of(&second.0).await;
            if how == Misdelivery::Stale {
                self.proxy.misdeliver(how, 1);
            }
            check_reply(how, second, send(&*self.handle_a, &second.0).await);
        }
        self.proxy.heal();
        self.await_recovery().await;
    }

    /// Evicts the holder between two renewals, so that the second renewal finds no grant.
    async fn evict_holder_of(&self, second: &CaseRequest) {
        if let CaseRequest::Renew(request) = second {
            let evict = OperatorAction::Evict(Eviction::Now);
            let order = OperatorCommand::new(request.resource.clone(), evict, "test", "misdelivery");
            let outcome = self.direct.order(&order).await.expect("the direct handle answers");
            assert_eq!(outcome, CommandOutcome::Done, "the claim held");
        }
    }

    /// Waits until both handles through the proxy work again.
    async fn await_recovery(&self) {
        for backend in [&self.handle_a, &self.handle_b] {
            let mut failures = 0;
            let claim = claim(&fresh_resource("after"), "after");
            loop {
                match backend.acquire_one(&claim).await {
                    Ok(Verdict::Granted(_)) => break,
                    Ok(verdict) => panic!("expected a grant of a free resource, got {verdict:?}"),
                    Err(error) if failures == FAILURES_MAX => {
                        panic!("the handle does not work again: {error:?}")
                    }
                    Err(_) => failures += 1,
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let released = backend.release_one(&ReleaseRequest::new(claim.reference())).await;
            assert_eq!(released.expect("release answers"), Released::Now);
        }
    }

    /// Acquires a new resource through the direct handle. The label names the holder.
    async fn hold(&self, label: &str) -> (Claim, FencingToken) {
        let claim = claim(&fresh_resource(label), label);
        match self.direct.acquire_one(&claim).await {
            Ok(Verdict::Granted(grant)) => (claim, grant.token),
            verdict => panic!("expected a grant of a free resource, got {verdict:?}"),
        }
    }

    /// Acquires a new resource through handle A, because a backend may remember what it holds itself.
    async fn hold_through_a(&self, label: &str) -> (Claim, FencingToken) {
        self.await_recovery().await;
        let claim = claim(&fresh_resource(label), label);
        match self.handle_a.acquire_one(&claim).await {
            Ok(Verdict::Granted(grant)) => (claim, grant.token),
            verdict => panic!("expected a grant of a free resource, got {verdict:?}"),
        }
    }
}

async fn acquires(test: &MisdeliveryTest) -> RequestPair {
    let (held, _) = test.hold("holder").await;
    let (free, blocked) = (claim(&fresh_resource("free"), "ours"), claim(&held.resource, "ours"));
    RequestPair {
        first: (CaseRequest::Acquire(Box::new(free)), ReplySummary::Granted),
        second: (CaseRequest::Acquire(Box::new(blocked)), ReplySummary::Blocked),
    }
}

async fn renewals(test: &MisdeliveryTest, how: Misdelivery) -> RequestPair {
    let (ours, token) = test.hold_through_a("ours").await;
    let renew = |claim: &Claim| CaseRequest::Renew(RenewRequest::new(claim.reference(), TTL));
    // If the requests follow each other, the same claim is renewed twice and evicted in between. If they run
    // at the same time, the second renewal is for a claim that never held.
    let ended =
        if how == Misdelivery::Swap { claim(&fresh_resource("never"), "never") } else { ours.clone() };
    RequestPair {
        first: (renew(&ours), ReplySummary::Renewed(token)),
        second: (renew(&ended), ReplySummary::Gone),
    }
}

async fn releases(test: &MisdeliveryTest, round: u32) -> RequestPair {
    let (ours, _) = test.hold_through_a("ours").await;
    let never = claim(&fresh_resource("never"), "never");
    let release = |claim: &Claim| CaseRequest::Release(ReleaseRequest::new(claim.reference()));
    let ours = (release(&ours), ReplySummary::Released(Released::Now));
    let never = (release(&never), ReplySummary::Released(Released::AlreadyGone));
    if round.is_multiple_of(2) {
        RequestPair { first: ours, second: never }
    } else {
        RequestPair { first: never, second: ours }
    }
}

async fn orders(test: &MisdeliveryTest) -> RequestPair {
    let (held, token) = test.hold("holder").await;
    let (others, _) = test.hold("another").await;
    // A token that the holder does not have, so that the order must not be executed.
    let earlier = FencingToken::new(token.get() - 1).expect("tokens of a clock or a log are not 1 here");
    let ask = OperatorAction::Ask { within: TTL };
    let order = |claim: &Claim, token| {
        CaseRequest::Order(
            OperatorCommand::new(claim.resource.clone(), ask, "test", "misdelivery").for_token(token),
        )
    };
    RequestPair {
        first: (order(&held, token), ReplySummary::Ordered(true)),
        second: (order(&others, earlier), ReplySummary::Ordered(false)),
    }
}

async fn inspections(test: &MisdeliveryTest) -> RequestPair {
    let (ann, _) = test.hold("ann").await;
    let (bob, _) = test.hold("bob").await;
    let inspect = |claim: Claim, name: &str| {
        (CaseRequest::Inspect(claim.resource), ReplySummary::HeldBy(name.to_owned()))
    };
    RequestPair { first: inspect(ann, "ann"), second: inspect(bob, "bob") }
}

fn fresh_resource(label: &str) -> Resource {
    let id = OwnerToken::fresh(&System::current()).reveal();
    Resource::new("misdelivery", &format!("{label}-{id}")).expect("the name follows the grammar")
}

fn claim(resource: &Resource, label: &str) -> Claim {
    let (owner, holder) = (OwnerToken::fresh(&System::current()), Arc::new(Holder::new("host", 1, label)));
    Claim::new(resource.clone(), owner, Share::WHOLE, TTL, holder)
}

async fn send(backend: &dyn Backend, request: &CaseRequest) -> Result<ReplySummary> {
    let reply = async {
        Ok(match request {
            CaseRequest::Acquire(claim) => match backend.acquire_one(claim).await? {
                Verdict::Granted(_) => ReplySummary::Granted,
                Verdict::Blocked(_) => ReplySummary::Blocked,
                verdict => other(&verdict),
            },
            CaseRequest::Renew(renewal) => {
                match backend.renew(std::slice::from_ref(renewal)).await.remove(0)? {
                    Renewal::Renewed(renewed) => ReplySummary::Renewed(renewed.token),
                    Renewal::Gone { .. } => ReplySummary::Gone,
                    renewal => other(&renewal),
                }
            }
            CaseRequest::Release(release) => ReplySummary::Released(backend.release_one(release).await?),
            CaseRequest::Order(order) => {
                ReplySummary::Ordered(backend.order(order).await? == CommandOutcome::Done)
            }
            CaseRequest::Inspect(resource) => {
                let snapshots = backend.inspect(&Query::One(resource.clone())).await?.into_snapshots();
                match snapshots.as_slice() {
                    [snapshot] if snapshot.resource == *resource && snapshot.holders.len() == 1 => {
                        ReplySummary::HeldBy(snapshot.holders[0].holder.label.clone())
                    }
                    snapshots => other(&snapshots),
                }
            }
        })
    };
    tokio::time::timeout(CALL_TIMEOUT, reply)
        .await
        .unwrap_or_else(|_| panic!("{request:?} did not return within {CALL_TIMEOUT:?}"))
}

fn other(reply: &dyn fmt::Debug) -> ReplySummary {
    ReplySummary::Other(format!("{reply:?}"))
}

/// Asserts that the reply is correct, or an error that does not claim that the request had no effect.
fn check_reply(
    how: Misdelivery,
    (request, expected): &(CaseRequest, ReplySummary),
    reply: Result<ReplySummary, Error>,
) {
    match reply {
        Ok(reply) => {
            assert_eq!(reply, *expected, "{how:?}: {request:?} accepted the reply to another request");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{how:?}: {request:?}: {error:?}");
            let changes_nothing = matches!(request, CaseRequest::Inspect(_));
            assert!(changes_nothing || error.effect() == Effect::Unknown, "{how:?}: {request:?}: {error:?}");
        }
    }
}
