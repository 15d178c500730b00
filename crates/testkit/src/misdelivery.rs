//! Answers that reach the wrong request: a test for every backend that talks to a server.
//!
//! The backend is opened twice through a [`Proxy`] which delivers replies wrongly, and once directly. Each case is a pair of
//! requests of the same verb whose right answers differ, so that taking one answer for the other would be a false one: a
//! grant for a resource that is held, a renewal of what was evicted, an order that was not done.
//!
//! 1. Swapped: both requests are under way at once, on two connections, and each gets the other's reply.
//! 2. Repeated and stale: the two requests follow each other on one connection, and the second gets the reply of the first.
//!
//! In every case a request is answered rightly, or fails with an effect that is not known. Afterwards, without the fault,
//! the same handles work again.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use leasehold::System;
use leasehold_core::{
    Backend, Claim, CommandOutcome, Effect, Error, ErrorKind, Eviction, FencingToken, Holder, OperatorAction,
    OperatorCommand, OwnerToken, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result,
    Share, Verdict,
};

use crate::proxy::{Misdelivery, Proxy};

const TTL: Duration = Duration::from_secs(60);
/// How often each case is played: whether a fault meets the request that it is meant for is a matter of timing.
const ROUNDS: u32 = 4;
/// How often a handle may fail after the fault has ended: its connection may break once more, and it may have several.
const FAILURES_MAX: u32 = 40;
/// However the reply is lost, the answer comes within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

type Opened = Arc<dyn Backend>;

/// Plays every case of every fault.
///
/// `open` opens the backend at this port of the loopback, as another process would; its requests must time out within
/// seconds.
///
/// # Panics
/// If a wrong answer was believed, or a handle does not work again.
pub async fn check<O: Future<Output = Opened>>(server: u16, open: impl Fn(u16) -> O) {
    let proxy = Proxy::start(server, 33).await;
    let (direct, one, other) = (open(server).await, open(proxy.port()).await, open(proxy.port()).await);
    let world = World { proxy, direct, one, other };
    for how in [Misdelivery::Swap, Misdelivery::Repeat, Misdelivery::Stale] {
        let before = world.proxy.misdelivered();
        for round in 0..ROUNDS {
            world.play(how, &acquires(&world).await).await;
            world.play(how, &renewals(&world, how).await).await;
            world.play(how, &releases(&world, round).await).await;
            world.play(how, &orders(&world).await).await;
            world.play(how, &looks(&world).await).await;
        }
        assert!(world.proxy.misdelivered() > before, "{how:?}: no reply was delivered wrongly");
    }
}

struct World {
    proxy: Proxy,
    direct: Opened,
    one: Opened,
    other: Opened,
}

/// Two requests of one verb, and how each must be answered if it is.
struct Pair {
    first: (Asked, Expected),
    second: (Asked, Expected),
}

#[derive(Debug)]
enum Asked {
    Acquire(Box<Claim>),
    Renew(RenewRequest),
    Release(ReleaseRequest),
    Order(OperatorCommand),
    Look(Resource),
}

/// The part of an answer that tells the two apart.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Granted,
    Blocked,
    Kept(FencingToken),
    Gone,
    Released(Released),
    Ordered(bool),
    /// The label of the only holder.
    HeldBy(String),
    Other(String),
}

impl World {
    async fn play(&self, how: Misdelivery, pair: &Pair) {
        // Scripts are loaded and connections made before the fault, so that it meets what is asked here.
        self.works_again().await;
        let (first, second) = (&pair.first, &pair.second);
        if how == Misdelivery::Swap {
            self.proxy.misdeliver(how, 1);
            let (one, other) = tokio::join!(ask(&*self.one, &first.0), ask(&*self.other, &second.0));
            judge(how, first, one);
            judge(how, second, other);
        } else {
            if how == Misdelivery::Repeat {
                self.proxy.misdeliver(how, 1);
            }
            judge(how, first, ask(&*self.one, &first.0).await);
            self.prepare(&second.0).await;
            if how == Misdelivery::Stale {
                self.proxy.misdeliver(how, 1);
            }
            judge(how, second, ask(&*self.one, &second.0).await);
        }
        self.proxy.heal();
        self.works_again().await;
    }

    /// A renewal that is to find nothing: an operator ends the holder between the two requests.
    async fn prepare(&self, second: &Asked) {
        if let Asked::Renew(held) = second {
            let evict = OperatorAction::Evict(Eviction::Now);
            let order = OperatorCommand::new(held.resource.clone(), evict, "test", "misdelivery");
            let answer = self.direct.order(&order).await.expect("the direct handle answers");
            assert_eq!(answer, CommandOutcome::Done, "the holder was there");
        }
    }

    /// Both handles answer rightly again.
    async fn works_again(&self) {
        for backend in [&self.one, &self.other] {
            let mut failures = 0;
            let claim = claim(&fresh("after"), "after");
            loop {
                match backend.acquire(&claim).await {
                    Ok(Verdict::Granted(_)) => break,
                    Ok(verdict) => panic!("a free resource is granted, not {verdict:?}"),
                    Err(error) if failures == FAILURES_MAX => panic!("it does not work again: {error:?}"),
                    Err(_) => failures += 1,
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let released = backend.release(&ReleaseRequest::new(claim.reference())).await;
            assert_eq!(released.expect("release answers"), Released::Now);
        }
    }

    /// A resource that this label holds, by the direct handle.
    async fn held(&self, label: &str) -> (Claim, FencingToken) {
        let claim = claim(&fresh(label), label);
        match self.direct.acquire(&claim).await {
            Ok(Verdict::Granted(grant)) => (claim, grant.token),
            verdict => panic!("a free resource is granted, not {verdict:?}"),
        }
    }

    /// A resource that this label holds, by the handle that will be asked: a backend may know what it holds.
    async fn held_by_one(&self, label: &str) -> (Claim, FencingToken) {
        self.works_again().await;
        let claim = claim(&fresh(label), label);
        match self.one.acquire(&claim).await {
            Ok(Verdict::Granted(grant)) => (claim, grant.token),
            verdict => panic!("a free resource is granted, not {verdict:?}"),
        }
    }
}

async fn acquires(world: &World) -> Pair {
    let (held, _) = world.held("holder").await;
    let (free, blocked) = (claim(&fresh("free"), "ours"), claim(&held.resource, "ours"));
    Pair {
        first: (Asked::Acquire(Box::new(free)), Expected::Granted),
        second: (Asked::Acquire(Box::new(blocked)), Expected::Blocked),
    }
}

async fn renewals(world: &World, how: Misdelivery) -> Pair {
    let (ours, token) = world.held_by_one("ours").await;
    let held = |claim: &Claim| Asked::Renew(RenewRequest::new(claim.reference(), TTL));
    // One after the other, the same lease is renewed twice, and ended in between. At once, one of two was never there.
    let ended = if how == Misdelivery::Swap { claim(&fresh("never"), "never") } else { ours.clone() };
    Pair { first: (held(&ours), Expected::Kept(token)), second: (held(&ended), Expected::Gone) }
}

async fn releases(world: &World, round: u32) -> Pair {
    let (ours, _) = world.held_by_one("ours").await;
    let never = claim(&fresh("never"), "never");
    let release = |claim: &Claim| Asked::Release(ReleaseRequest::new(claim.reference()));
    let ours = (release(&ours), Expected::Released(Released::Now));
    let never = (release(&never), Expected::Released(Released::AlreadyGone));
    if round.is_multiple_of(2) {
        Pair { first: ours, second: never }
    } else {
        Pair { first: never, second: ours }
    }
}

async fn orders(world: &World) -> Pair {
    let (held, token) = world.held("holder").await;
    let (others, _) = world.held("another").await;
    let earlier = FencingToken::new(token.get() - 1).expect("tokens of a clock or a log are not 1 here");
    let ask = OperatorAction::Ask { within: TTL };
    let order = |claim: &Claim, token| {
        Asked::Order(
            OperatorCommand::new(claim.resource.clone(), ask, "test", "misdelivery").for_token(token),
        )
    };
    Pair {
        first: (order(&held, token), Expected::Ordered(true)),
        second: (order(&others, earlier), Expected::Ordered(false)),
    }
}

async fn looks(world: &World) -> Pair {
    let (ann, _) = world.held("ann").await;
    let (bob, _) = world.held("bob").await;
    let look = |claim: Claim, name: &str| (Asked::Look(claim.resource), Expected::HeldBy(name.to_owned()));
    Pair { first: look(ann, "ann"), second: look(bob, "bob") }
}

fn fresh(label: &str) -> Resource {
    let id = OwnerToken::fresh(&System::current()).reveal();
    Resource::new("misdelivery", &format!("{label}-{id}")).expect("the name follows the grammar")
}

fn claim(resource: &Resource, label: &str) -> Claim {
    let (owner, holder) = (OwnerToken::fresh(&System::current()), Arc::new(Holder::new("host", 1, label)));
    Claim::new(resource.clone(), owner, Share::WHOLE, TTL, holder)
}

async fn ask(backend: &dyn Backend, asked: &Asked) -> Result<Expected> {
    let answer = async {
        Ok(match asked {
            Asked::Acquire(claim) => match backend.acquire(claim).await? {
                Verdict::Granted(_) => Expected::Granted,
                Verdict::Blocked(_) => Expected::Blocked,
                verdict => other(&verdict),
            },
            Asked::Renew(held) => match backend.renew(std::slice::from_ref(held)).await.remove(0)? {
                Renewal::Renewed(kept) => Expected::Kept(kept.token),
                Renewal::Gone { .. } => Expected::Gone,
                renewal => other(&renewal),
            },
            Asked::Release(request) => Expected::Released(backend.release(request).await?),
            Asked::Order(order) => Expected::Ordered(backend.order(order).await? == CommandOutcome::Done),
            Asked::Look(resource) => {
                let snapshots = backend.inspect(&Query::One(resource.clone())).await?.into_snapshots();
                match snapshots.as_slice() {
                    [snapshot] if snapshot.resource == *resource && snapshot.holders.len() == 1 => {
                        Expected::HeldBy(snapshot.holders[0].holder.label.clone())
                    }
                    snapshots => other(&snapshots),
                }
            }
        })
    };
    tokio::time::timeout(ANSWER_WITHIN, answer).await.unwrap_or_else(|_| panic!("{asked:?}: no answer"))
}

fn other(answer: &dyn fmt::Debug) -> Expected {
    Expected::Other(format!("{answer:?}"))
}

/// The right answer, or an error that does not say that nothing happened.
fn judge(how: Misdelivery, (asked, expected): &(Asked, Expected), answer: Result<Expected, Error>) {
    match answer {
        Ok(answer) => {
            assert_eq!(answer, *expected, "{how:?}: {asked:?} believed an answer that is not its own");
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{how:?}: {asked:?}: {error:?}");
            let looks = matches!(asked, Asked::Look(_));
            assert!(looks || error.effect() == Effect::Unknown, "{how:?}: {asked:?}: {error:?}");
        }
    }
}
