//! Nodes of a quorum behind proxies that deliver replies to the wrong request: such a reply counts as no
//! reply. ADR 0033.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;

use std::{fmt::Debug, sync::Arc, time::Duration};

use common::{LONG, claim, eventually, granted, in_time, owner};
use leasehold::{
    Backend, BackendExt as _, ClaimRef, Clock as _, Effect, ErrorKind, Holder, RenewRequest, Resource,
    Result, System,
};
use leasehold_core::{
    FencingToken, QuorumNode as _, Verdict,
    quorum_node::{AttemptId, NodeRenewal, UndoRequest, VoteOutcome, VoteRequest},
};
use leasehold_redis::{Config, RedisNode};
use leasehold_testkit::{
    proxy::{Misdelivery, Proxy},
    servers::{RedisNodes, RedisServer},
};

const GATE: Duration = Duration::from_secs(600);

fn new_resource(kind: &str) -> Resource {
    Resource::new(kind, &owner().reveal()).unwrap()
}

fn vote_request(resource: &Resource) -> VoteRequest {
    VoteRequest {
        resource: resource.clone(),
        owner: owner(),
        attempt: AttemptId(1),
        ttl: LONG,
        proposal: FencingToken::new(System::current().wall().as_micros()).unwrap(),
        holder: Arc::new(Holder::new("host", 1, "test")),
        note: None,
    }
}

fn renew_request(vote_request: &VoteRequest) -> [RenewRequest; 1] {
    let claim = ClaimRef { resource: vote_request.resource.clone(), owner: vote_request.owner };
    [RenewRequest::new(claim, LONG)]
}

fn undo(vote_request: &VoteRequest) -> UndoRequest {
    UndoRequest {
        resource: vote_request.resource.clone(),
        owner: vote_request.owner,
        attempt: None,
        tombstone: None,
    }
}

fn key(vote_request: &VoteRequest) -> String {
    format!("lock:v1:{{{}}}:owner", vote_request.resource.key())
}

/// Checks that the reply is the right one, or an error with an unknown effect.
fn check_reply<T: Debug>(what: &str, answer: Result<T>, right: impl FnOnce(&T) -> bool) {
    match answer {
        Ok(answer) => assert!(right(&answer), "{what}: {answer:?} is the reply to another request"),
        Err(error) => {
            let said = (error.kind(), error.effect());
            assert_eq!(said, (ErrorKind::Unavailable, Effect::Unknown), "{what}: {error:?}");
        }
    }
}

/// One node, a direct client, and two clients behind one proxy.
struct NodeBehindProxy {
    server: RedisServer,
    proxy: Proxy,
    direct: RedisNode,
    one: RedisNode,
    other: RedisNode,
}

impl NodeBehindProxy {
    async fn open() -> NodeBehindProxy {
        let server = RedisNodes::long_lived(1, GATE).servers.remove(0);
        let proxy = Proxy::start(server.port(), 7).await;
        let node = |port| {
            let url = format!("redis://127.0.0.1:{port}/?timeout=500ms");
            RedisNode::new(Config::parse(&url).unwrap(), Arc::new(System::current()))
        };
        let (direct, one, other) = (node(server.port()), node(proxy.port()), node(proxy.port()));
        NodeBehindProxy { server, proxy, direct, one, other }
    }

    /// Waits until both clients are connected and the server knows the scripts.
    async fn warm_up(&self) {
        for node in [&self.one, &self.other] {
            let vote_request = vote_request(&new_resource("warm"));
            eventually("it works", || async {
                let vote = node.vote(&vote_request).await;
                let renewed = node.renew(&renew_request(&vote_request)).await.remove(0);
                let seen = node.look(&vote_request.resource).await;
                vote.is_ok()
                    && renewed.is_ok()
                    && seen.is_ok()
                    && node.undo(&undo(&vote_request)).await.is_ok()
            })
            .await;
        }
    }

    /// Sends two requests. The second one may get the reply to the first.
    async fn send_in_turn<A, B>(
        &self,
        how: Misdelivery,
        first: impl Future<Output = A>,
        second: impl Future<Output = B>,
    ) -> (A, B) {
        self.warm_up().await;
        if how == Misdelivery::Repeat {
            self.proxy.misdeliver(how, 1);
        }
        let first = in_time("the first", first).await;
        if how == Misdelivery::Stale {
            self.proxy.misdeliver(how, 1);
        }
        let second = in_time("the second", second).await;
        self.proxy.heal();
        (first, second)
    }

    /// A vote for a new resource whose lock another owner has.
    async fn taken(&self) -> VoteRequest {
        let theirs = vote_request(&new_resource("taken"));
        assert!(matches!(self.direct.vote(&theirs).await.unwrap().choice, VoteOutcome::Yours { .. }));
        VoteRequest { owner: owner(), ..theirs }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_rejects_replies_that_belong_to_another_request() {
    let setup = NodeBehindProxy::open().await;
    let node = &setup.one;
    for how in [Misdelivery::Repeat, Misdelivery::Stale].repeat(3) {
        let before = setup.proxy.misdelivered();
        let (free, taken) = (vote_request(&new_resource("free")), setup.taken().await);
        let (first, second) = setup.send_in_turn(how, node.vote(&free), node.vote(&taken)).await;
        check_reply("vote", first, |vote| matches!(vote.choice, VoteOutcome::Yours { .. }));
        check_reply("vote", second, |vote| matches!(vote.choice, VoteOutcome::Held { .. }));

        let ours = vote_request(&new_resource("ours"));
        setup.direct.vote(&ours).await.unwrap();
        let lost = async {
            setup.server.command(&["DEL", &key(&ours)]);
            node.renew(&renew_request(&ours)).await.remove(0)
        };
        let kept = renew_request(&ours);
        let (first, second) = setup.send_in_turn(how, node.renew(&kept), lost).await;
        check_reply("renew", first.into_iter().next().unwrap(), |it| {
            matches!(it, NodeRenewal::Renewed { .. })
        });
        check_reply("renew", second, |renewal| matches!(renewal, NodeRenewal::Gone { .. }));

        setup.direct.vote(&ours).await.unwrap();
        let (there, nothing) = (undo(&ours), undo(&taken));
        let (first, second) = setup.send_in_turn(how, node.undo(&there), node.undo(&nothing)).await;
        check_reply("undo", first, |was_there| *was_there);
        check_reply("undo", second, |was_there| !*was_there);

        let (empty, full) = (new_resource("empty"), &taken.resource);
        let (first, second) = setup.send_in_turn(how, node.look(&empty), node.look(full)).await;
        check_reply("look", first, |view| view.held.is_none());
        check_reply("look", second, |view| view.held.is_some());
        assert!(setup.proxy.misdelivered() > before, "{how:?}: no reply was misdelivered");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_of_a_node_reject_each_others_replies() {
    let setup = NodeBehindProxy::open().await;
    for _ in 0..5 {
        setup.warm_up().await;
        let (free, taken) = (vote_request(&new_resource("free")), setup.taken().await);
        setup.proxy.misdeliver(Misdelivery::Swap, 1);
        let votes = async { tokio::join!(setup.one.vote(&free), setup.other.vote(&taken)) };
        let (first, second) = in_time("both", votes).await;
        check_reply("vote", first, |vote| matches!(vote.choice, VoteOutcome::Yours { .. }));
        check_reply("vote", second, |vote| matches!(vote.choice, VoteOutcome::Held { .. }));
        setup.proxy.heal();
    }
    assert!(setup.proxy.misdelivered() > 0, "no reply was misdelivered");
}

/// Every node delivers the reply to an earlier vote, which was a yes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_of_old_replies_is_no_grant() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let mut proxies = Vec::new();
    for server in &nodes.servers {
        proxies.push(Proxy::start(server.port(), 7).await);
    }
    let direct = leasehold::open(&nodes.url()).await.unwrap();
    let ours = leasehold::open(&RedisNodes::url_of(proxies.iter().map(Proxy::port))).await.unwrap();
    let taken = claim(&new_resource("taken"), LONG);
    granted(&*direct, &taken).await;
    for _ in 0..3 {
        eventually("it works", || works(&*ours)).await;
        // Now the last reply of each node is a yes.
        granted(&*ours, &claim(&new_resource("free"), LONG)).await;
        proxies.iter().for_each(|proxy| proxy.misdeliver(Misdelivery::Stale, 1));
        let verdict = in_time("an answer", ours.acquire_one(&claim(&taken.resource, LONG))).await;
        assert!(!matches!(verdict, Ok(Verdict::Granted(_))), "two clients hold it: {verdict:?}");
        proxies.iter().for_each(Proxy::heal);
    }
    let misdelivered: u64 = proxies.iter().map(Proxy::misdelivered).sum();
    assert!(misdelivered > 0, "no reply was misdelivered");
}

async fn works(backend: &dyn Backend) -> bool {
    matches!(backend.acquire_one(&claim(&new_resource("warm"), LONG)).await, Ok(Verdict::Granted(_)))
}
