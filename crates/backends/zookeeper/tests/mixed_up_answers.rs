//! A proxy that delivers another session's answer. The number of the request fits, because every session counts from one.
//!
//! For each verb: another client has an answer that says yes, and it is delivered instead of each answer of ours in turn,
//! while the truth is no.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU32, Ordering},
};

use common::{
    claim, eventually,
    frames::{Fault, Frames},
    granted, in_time, open, through,
};
use leasehold::{
    Backend, Claim, CommandOutcome, Effect, ErrorKind, Eviction, Holder, OperatorAction, OperatorCommand,
    Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Share, Verdict,
};
use leasehold_testkit::servers::ZooKeeperServer;
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::Client;

static SERVER: LazyLock<ZooKeeperServer> = LazyLock::new(ZooKeeperServer::start);

/// More answers than any verb gets.
const ANSWERS_MAX: u32 = 40;

fn fresh(name: &str) -> Resource {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("mixed/{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed)).parse().expect("a name")
}

/// A client behind a proxy.
struct Side {
    frames: Frames,
    backend: ZooKeeper,
}

impl Side {
    async fn new() -> Side {
        let frames = Frames::start(SERVER.port()).await;
        let backend = open(&through(frames.port())).await;
        Side { frames, backend }
    }
}

/// Plays the verb on another client, where the answer is yes, and on ours, where it is no and one of the replies is one of
/// the other client's. `judge` looks at the answer that ours got.
async fn mix_up<T>(
    (name, share): (&str, Share),
    prepare: impl AsyncFn(&ZooKeeper, &Claim, bool),
    verb: impl AsyncFn(&ZooKeeper, &Claim) -> T,
    judge: impl Fn(T, &str),
) {
    let (ours, other) = (Side::new().await, Side::new().await);
    let new = |side: &str| {
        let mut claim = claim(&fresh(&format!("{name}-{side}")));
        claim.share = share;
        claim.holder = Arc::new(Holder::new("host", 1, claim.resource.key()));
        claim
    };
    let mut mixed_up = 0;
    for number in 1..=ANSWERS_MAX {
        for from in 0.. {
            let (theirs, mine) = (new("other"), new("ours"));
            in_time(name, prepare(&other.backend, &theirs, true)).await;
            other.frames.record();
            in_time(name, verb(&other.backend, &theirs)).await;
            let replies = other.frames.recorded();
            let Some(reply) = replies.get(from) else { break };
            in_time(name, prepare(&ours.backend, &mine, false)).await;
            ours.frames.replace(reply.clone(), number);
            let answer = in_time(name, verb(&ours.backend, &mine)).await;
            if !ours.frames.replaced() {
                assert!(mixed_up > 0, "{name}: the verb has answers");
                return;
            }
            mixed_up += 1;
            judge(answer, &format!("{name}, answer {from} instead of {number}"));
        }
    }
    panic!("{name}: too many answers");
}

async fn raw() -> Client {
    Client::connect(&format!("127.0.0.1:{}", SERVER.port())).await.expect("the server is there")
}

/// Deletes the contender of a claim behind everybody's back.
async fn delete(claim: &Claim) {
    let (raw, folder) = (raw().await, format!("/leasehold/v1/locks/{}", claim.resource.key()));
    for name in raw.list_children(&folder).await.expect("the folder is there") {
        raw.delete(&format!("{folder}/{name}"), None).await.expect("the node is there");
    }
}

#[tokio::test]
async fn nobody_is_granted_by_another_clients_answer() {
    for kind in [("acquire", Share::WHOLE), ("permits", Share::new(2, 5).expect("a share"))] {
        let rivals = open(&SERVER.url()).await;
        mix_up(
            kind,
            async |_, claim, is_free| {
                // Another one was there before, so that the folder is there.
                let mut rival = common::claim(&claim.resource);
                let all = claim.share.capacity();
                rival.share = Share::new(all, all).expect("all of it");
                granted(&rivals, &rival).await;
                if is_free {
                    common::release(&rivals, &rival).await;
                }
            },
            async |backend, claim| backend.acquire(&claim.clone().queued()).await,
            |answer, what| {
                assert!(!matches!(answer, Ok(Verdict::Granted(_))), "{what}: {answer:?}");
            },
        )
        .await;
    }
}

#[tokio::test]
async fn nothing_is_renewed_by_another_clients_answer() {
    mix_up(
        ("renew", Share::WHOLE),
        async |backend, claim, is_there| {
            granted(backend, claim).await;
            if !is_there {
                delete(claim).await;
            }
        },
        async |backend, claim| {
            backend.renew(&[RenewRequest::new(claim.reference(), claim.ttl)]).await.remove(0)
        },
        |answer, what| match answer {
            Err(error) => {
                assert_eq!(
                    (error.kind(), error.effect()),
                    (ErrorKind::Unavailable, Effect::Unknown),
                    "{what}"
                );
            }
            answer => assert!(matches!(answer, Ok(Renewal::Gone { .. })), "{what}: {answer:?}"),
        },
    )
    .await;
}

#[tokio::test]
async fn nothing_is_released_or_evicted_by_another_clients_answer() {
    mix_up(
        ("release", Share::WHOLE),
        async |backend, claim, is_there| {
            granted(backend, claim).await;
            if !is_there {
                delete(claim).await;
            }
        },
        async |backend, claim| backend.release(&ReleaseRequest::new(claim.reference())).await,
        |answer, what| match answer {
            Err(error) => assert_eq!(error.effect(), Effect::Unknown, "{what}"),
            answer => assert!(matches!(answer, Ok(Released::AlreadyGone)), "{what}: {answer:?}"),
        },
    )
    .await;
    mix_up(
        ("evict", Share::WHOLE),
        async |backend, claim, is_there| {
            if is_there {
                granted(backend, claim).await;
            }
        },
        async |backend, claim| {
            let order = OperatorCommand::new(
                claim.resource.clone(),
                OperatorAction::Evict(Eviction::Now),
                "ops",
                "test",
            );
            backend.order(&order).await
        },
        |answer, what| assert!(!matches!(answer, Ok(CommandOutcome::Done)), "{what}: {answer:?}"),
    )
    .await;
}

#[tokio::test]
async fn nobody_is_shown_by_another_clients_answer() {
    let holders = open(&SERVER.url()).await;
    mix_up(
        ("look", Share::WHOLE),
        async |_, claim, _| {
            granted(&holders, claim).await;
        },
        async |backend, claim| {
            let page = backend.inspect(&Query::One(claim.resource.clone())).await;
            (claim.resource.clone(), page.map(|page| page.into_snapshots().remove(0)))
        },
        |(resource, seen), what| {
            if let Ok(seen) = seen {
                let labels: Vec<_> = seen.holders.iter().map(|by| by.holder.label.as_str()).collect();
                assert_eq!((&seen.resource, labels), (&resource, vec![resource.key()]), "{what}");
            }
        },
    )
    .await;
}

/// The second one answers no request, so the driver drops the connection: what is under way then has an unknown effect.
#[tokio::test]
async fn an_answer_that_comes_twice_costs_the_connection_and_nothing_else() {
    let ours = Side::new().await;
    let mine = claim(&fresh("twice"));
    let grant = granted(&ours.backend, &mine).await;
    let held = [RenewRequest::new(mine.reference(), mine.ttl)];
    for _ in 0..3 {
        ours.frames.set(Fault::RepeatReply, 1);
        eventually("the renewal", || async {
            match ours.backend.renew(&held).await.remove(0) {
                Ok(Renewal::Renewed(kept)) => {
                    assert_eq!(kept.token, grant.token);
                    true
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
                    false
                }
            }
        })
        .await;
        assert!(ours.frames.happened());
    }
    let request = ReleaseRequest::new(mine.reference()).with_tombstone(mine.ttl);
    eventually("the release", || async { ours.backend.release(&request).await.is_ok() }).await;
    granted(&open(&SERVER.url()).await, &claim(&mine.resource)).await;
}
