//! Nodes of a quorum behind proxies that give replies to the wrong request: such a reply counts as silence of that node.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;

use std::{fmt::Debug, sync::Arc, time::Duration};

use common::{LONG, claim, eventually, granted, in_time, owner};
use leasehold::{
    Backend, ClaimRef, Clock as _, Effect, ErrorKind, Holder, RenewRequest, Resource, Result, System,
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

fn fresh(kind: &str) -> Resource {
    Resource::new(kind, &owner().reveal()).unwrap()
}

fn ballot(resource: &Resource) -> VoteRequest {
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

fn held(ballot: &VoteRequest) -> [RenewRequest; 1] {
    let claim = ClaimRef { resource: ballot.resource.clone(), owner: ballot.owner };
    [RenewRequest::new(claim, LONG)]
}

fn undo(ballot: &VoteRequest) -> UndoRequest {
    UndoRequest { resource: ballot.resource.clone(), owner: ballot.owner, attempt: None, tombstone: None }
}

fn key(ballot: &VoteRequest) -> String {
    format!("lock:v1:{{{}}}:owner", ballot.resource.key())
}

/// The right answer, or none that says anything of what became of the request.
fn judge<T: Debug>(what: &str, answer: Result<T>, right: impl FnOnce(&T) -> bool) {
    match answer {
        Ok(answer) => assert!(right(&answer), "{what}: {answer:?} is not its own answer"),
        Err(error) => {
            let said = (error.kind(), error.effect());
            assert_eq!(said, (ErrorKind::Unavailable, Effect::Unknown), "{what}: {error:?}");
        }
    }
}

/// One node, and two clients of it behind one proxy.
struct Scene {
    server: RedisServer,
    proxy: Proxy,
    direct: RedisNode,
    one: RedisNode,
    other: RedisNode,
}

impl Scene {
    async fn open() -> Scene {
        let server = RedisNodes::long_lived(1, GATE).servers.remove(0);
        let proxy = Proxy::start(server.port(), 7).await;
        let node = |port| {
            let url = format!("redis://127.0.0.1:{port}/?timeout=500ms");
            RedisNode::new(Config::parse(&url).unwrap(), Arc::new(System::current()))
        };
        let (direct, one, other) = (node(server.port()), node(proxy.port()), node(proxy.port()));
        Scene { server, proxy, direct, one, other }
    }

    /// Both clients are connected, and the scripts are known.
    async fn works(&self) {
        for node in [&self.one, &self.other] {
            let ballot = ballot(&fresh("warm"));
            eventually("it works", || async {
                let vote = node.vote(&ballot).await;
                let renewed = node.renew(&held(&ballot)).await.remove(0);
                let seen = node.look(&ballot.resource).await;
                vote.is_ok() && renewed.is_ok() && seen.is_ok() && node.undo(&undo(&ballot)).await.is_ok()
            })
            .await;
        }
    }

    /// Two requests; the second one may get the reply to the first.
    async fn one_after_the_other<A, B>(
        &self,
        how: Misdelivery,
        first: impl Future<Output = A>,
        second: impl Future<Output = B>,
    ) -> (A, B) {
        self.works().await;
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

    /// Someone else has the lock of a new resource.
    async fn taken(&self) -> VoteRequest {
        let theirs = ballot(&fresh("taken"));
        assert!(matches!(self.direct.vote(&theirs).await.unwrap().choice, VoteOutcome::Yours { .. }));
        VoteRequest { owner: owner(), ..theirs }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_believes_no_answer_that_belongs_to_another_request() {
    let scene = Scene::open().await;
    let node = &scene.one;
    for how in [Misdelivery::Repeat, Misdelivery::Stale].repeat(3) {
        let before = scene.proxy.misdelivered();
        let (free, taken) = (ballot(&fresh("free")), scene.taken().await);
        let (first, second) = scene.one_after_the_other(how, node.vote(&free), node.vote(&taken)).await;
        judge("vote", first, |vote| matches!(vote.choice, VoteOutcome::Yours { .. }));
        judge("vote", second, |vote| matches!(vote.choice, VoteOutcome::Held { .. }));

        let ours = ballot(&fresh("ours"));
        scene.direct.vote(&ours).await.unwrap();
        let lost = async {
            scene.server.command(&["DEL", &key(&ours)]);
            node.renew(&held(&ours)).await.remove(0)
        };
        let kept = held(&ours);
        let (first, second) = scene.one_after_the_other(how, node.renew(&kept), lost).await;
        judge("renew", first.into_iter().next().unwrap(), |it| matches!(it, NodeRenewal::Renewed { .. }));
        judge("renew", second, |renewal| matches!(renewal, NodeRenewal::Gone { .. }));

        scene.direct.vote(&ours).await.unwrap();
        let (there, nothing) = (undo(&ours), undo(&taken));
        let (first, second) = scene.one_after_the_other(how, node.undo(&there), node.undo(&nothing)).await;
        judge("undo", first, |was_there| *was_there);
        judge("undo", second, |was_there| !*was_there);

        let (empty, full) = (fresh("empty"), &taken.resource);
        let (first, second) = scene.one_after_the_other(how, node.look(&empty), node.look(full)).await;
        judge("look", first, |view| view.held.is_none());
        judge("look", second, |view| view.held.is_some());
        assert!(scene.proxy.misdelivered() > before, "{how:?}: every reply was delivered rightly");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_of_a_node_do_not_believe_each_others_answers() {
    let scene = Scene::open().await;
    for _ in 0..5 {
        scene.works().await;
        let (free, taken) = (ballot(&fresh("free")), scene.taken().await);
        scene.proxy.misdeliver(Misdelivery::Swap, 1);
        let votes = async { tokio::join!(scene.one.vote(&free), scene.other.vote(&taken)) };
        let (first, second) = in_time("both", votes).await;
        judge("vote", first, |vote| matches!(vote.choice, VoteOutcome::Yours { .. }));
        judge("vote", second, |vote| matches!(vote.choice, VoteOutcome::Held { .. }));
        scene.proxy.heal();
    }
    assert!(scene.proxy.misdelivered() > 0, "every reply was delivered rightly");
}

/// Every node gives the answer to an earlier vote, which was a yes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_majority_of_old_answers_is_a_grant() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let mut proxies = Vec::new();
    for server in &nodes.servers {
        proxies.push(Proxy::start(server.port(), 7).await);
    }
    let direct = leasehold::open(&nodes.url()).await.unwrap();
    let ours = leasehold::open(&RedisNodes::url_of(proxies.iter().map(Proxy::port))).await.unwrap();
    let taken = claim(&fresh("taken"), LONG);
    granted(&*direct, &taken).await;
    for _ in 0..3 {
        eventually("it works", || works(&*ours)).await;
        // The last answer of each node is a yes.
        granted(&*ours, &claim(&fresh("free"), LONG)).await;
        proxies.iter().for_each(|proxy| proxy.misdeliver(Misdelivery::Stale, 1));
        let verdict = in_time("an answer", ours.acquire(&claim(&taken.resource, LONG))).await;
        assert!(!matches!(verdict, Ok(Verdict::Granted(_))), "two hold it: {verdict:?}");
        proxies.iter().for_each(Proxy::heal);
    }
    let misdelivered: u64 = proxies.iter().map(Proxy::misdelivered).sum();
    assert!(misdelivered > 0, "every reply was delivered rightly");
}

async fn works(backend: &dyn Backend) -> bool {
    matches!(backend.acquire(&claim(&fresh("warm"), LONG)).await, Ok(Verdict::Granted(_)))
}
