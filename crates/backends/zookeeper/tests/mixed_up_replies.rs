//! A proxy delivers the reply to another session. Its xid is right, because every session counts its requests
//! from one.
//!
//! For each verb: another client gets replies that mean success. Each of them is delivered instead of each
//! reply of ours in turn, in a situation in which our request must not succeed (ADR 0033).
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU32, Ordering},
};

use common::{
    claim, eventually,
    frame_proxy::{FrameFault, FrameProxy},
    granted, in_time, open, url_through,
};
use leasehold::{
    Backend, BackendExt as _, Claim, CommandOutcome, Effect, ErrorKind, Eviction, Holder, OperatorAction,
    OperatorCommand, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Share, Verdict,
};
use leasehold_testkit::servers::ZooKeeperServer;
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::Client;

static SERVER: LazyLock<ZooKeeperServer> = LazyLock::new(ZooKeeperServer::start);

/// More replies than any verb gets.
const REPLIES_MAX: u32 = 40;

fn fresh_resource(name: &str) -> Resource {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("mixed/{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed)).parse().expect("a valid name")
}

/// A client behind a proxy.
struct ProxiedClient {
    proxy: FrameProxy,
    backend: ZooKeeper,
}

impl ProxiedClient {
    async fn new() -> ProxiedClient {
        let proxy = FrameProxy::start(SERVER.port()).await;
        let backend = open(&url_through(proxy.port())).await;
        ProxiedClient { proxy, backend }
    }
}

/// Runs the verb on another client, where it succeeds, and on ours, where it must not succeed and one reply
/// is replaced by one of the other client's. `prepare` is told whether the verb is to succeed; `judge` checks
/// the result of our client.
async fn mix_up_replies<T>(
    (name, share): (&str, Share),
    prepare: impl AsyncFn(&ZooKeeper, &Claim, bool),
    verb: impl AsyncFn(&ZooKeeper, &Claim) -> T,
    judge: impl Fn(T, &str),
) {
    let (ours, other) = (ProxiedClient::new().await, ProxiedClient::new().await);
    let new = |side: &str| {
        let mut claim = claim(&fresh_resource(&format!("{name}-{side}")));
        claim.share = share;
        claim.holder = Arc::new(Holder::new("host", 1, claim.resource.key()));
        claim
    };
    let mut mixed_up = 0;
    for number in 1..=REPLIES_MAX {
        for from in 0.. {
            let (theirs, mine) = (new("other"), new("ours"));
            in_time(name, prepare(&other.backend, &theirs, true)).await;
            other.proxy.record();
            in_time(name, verb(&other.backend, &theirs)).await;
            let replies = other.proxy.recorded();
            let Some(reply) = replies.get(from) else { break };
            in_time(name, prepare(&ours.backend, &mine, false)).await;
            ours.proxy.replace(reply.clone(), number);
            let result = in_time(name, verb(&ours.backend, &mine)).await;
            if !ours.proxy.replaced() {
                assert!(mixed_up > 0, "{name}: the verb gets replies");
                return;
            }
            mixed_up += 1;
            judge(result, &format!("{name}, reply {from} instead of reply {number}"));
        }
    }
    panic!("{name}: too many replies");
}

async fn raw() -> Client {
    Client::connect(&format!("127.0.0.1:{}", SERVER.port())).await.expect("the server answers")
}

/// Deletes the contenders of a claim's resource without any client knowing.
async fn delete_contenders(claim: &Claim) {
    let (raw, folder) = (raw().await, format!("/leasehold/v1/locks/{}", claim.resource.key()));
    for name in raw.list_children(&folder).await.expect("the folder exists") {
        raw.delete(&format!("{folder}/{name}"), None).await.expect("the node exists");
    }
}

#[tokio::test]
async fn a_reply_to_another_client_grants_nothing() {
    for kind in [("acquire", Share::WHOLE), ("permits", Share::new(2, 5).expect("a valid share"))] {
        let rivals = open(&SERVER.url()).await;
        mix_up_replies(
            kind,
            async |_, claim, is_free| {
                // A rival has used the resource before, so that its folder exists.
                let mut rival = common::claim(&claim.resource);
                let all = claim.share.capacity();
                rival.share = Share::new(all, all).expect("a valid share");
                granted(&rivals, &rival).await;
                if is_free {
                    common::release(&rivals, &rival).await;
                }
            },
            async |backend, claim| backend.acquire_one(&claim.clone().queued()).await,
            |result, what| {
                assert!(!matches!(result, Ok(Verdict::Granted(_))), "{what}: {result:?}");
            },
        )
        .await;
    }
}

#[tokio::test]
async fn a_reply_to_another_client_renews_nothing() {
    mix_up_replies(
        ("renew", Share::WHOLE),
        async |backend, claim, is_there| {
            granted(backend, claim).await;
            if !is_there {
                delete_contenders(claim).await;
            }
        },
        async |backend, claim| {
            backend.renew(&[RenewRequest::new(claim.reference(), claim.ttl)]).await.remove(0)
        },
        |result, what| match result {
            Err(error) => {
                assert_eq!(
                    (error.kind(), error.effect()),
                    (ErrorKind::Unavailable, Effect::Unknown),
                    "{what}"
                );
            }
            result => assert!(matches!(result, Ok(Renewal::Gone { .. })), "{what}: {result:?}"),
        },
    )
    .await;
}

#[tokio::test]
async fn a_reply_to_another_client_releases_and_evicts_nothing() {
    mix_up_replies(
        ("release", Share::WHOLE),
        async |backend, claim, is_there| {
            granted(backend, claim).await;
            if !is_there {
                delete_contenders(claim).await;
            }
        },
        async |backend, claim| backend.release_one(&ReleaseRequest::new(claim.reference())).await,
        |result, what| match result {
            Err(error) => assert_eq!(error.effect(), Effect::Unknown, "{what}"),
            result => assert!(matches!(result, Ok(Released::AlreadyGone)), "{what}: {result:?}"),
        },
    )
    .await;
    mix_up_replies(
        ("evict", Share::WHOLE),
        async |backend, claim, is_there| {
            if is_there {
                granted(backend, claim).await;
            }
        },
        async |backend, claim| {
            let command = OperatorCommand::new(
                claim.resource.clone(),
                OperatorAction::Evict(Eviction::Now),
                "ops",
                "test",
            );
            backend.order(&command).await
        },
        |result, what| assert!(!matches!(result, Ok(CommandOutcome::Done)), "{what}: {result:?}"),
    )
    .await;
}

#[tokio::test]
async fn a_reply_to_another_client_shows_no_foreign_holder() {
    let holders = open(&SERVER.url()).await;
    mix_up_replies(
        ("look", Share::WHOLE),
        async |_, claim, _| {
            granted(&holders, claim).await;
        },
        async |backend, claim| {
            let page = backend.inspect(&Query::One(claim.resource.clone())).await;
            (claim.resource.clone(), page.map(|page| page.into_snapshots().remove(0)))
        },
        |(resource, snapshot), what| {
            if let Ok(snapshot) = snapshot {
                let labels: Vec<_> = snapshot.holders.iter().map(|by| by.holder.label.as_str()).collect();
                assert_eq!((&snapshot.resource, labels), (&resource, vec![resource.key()]), "{what}");
            }
        },
    )
    .await;
}

/// No request waits for the second copy, so the driver drops the connection. Requests under way then have an
/// unknown effect.
#[tokio::test]
async fn a_reply_that_comes_twice_costs_the_connection_and_nothing_else() {
    let ours = ProxiedClient::new().await;
    let mine = claim(&fresh_resource("twice"));
    let grant = granted(&ours.backend, &mine).await;
    let held = [RenewRequest::new(mine.reference(), mine.ttl)];
    for _ in 0..3 {
        ours.proxy.inject(FrameFault::RepeatReply, 1);
        eventually("the renewal", || async {
            match ours.backend.renew(&held).await.remove(0) {
                Ok(Renewal::Renewed(renewed)) => {
                    assert_eq!(renewed.token, grant.token);
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
        assert!(ours.proxy.happened());
    }
    let request = ReleaseRequest::new(mine.reference()).with_tombstone(mine.ttl);
    eventually("the release", || async { ours.backend.release_one(&request).await.is_ok() }).await;
    granted(&open(&SERVER.url()).await, &claim(&mine.resource)).await;
}
