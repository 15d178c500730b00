//! The scripts of a Redis node do the same as the model in core: random verbs on both.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{sync::Arc, time::Duration};

use common::owner;
use leasehold::{
    ClaimRef, Clock as _, Environment, Holder, MemoryNode, OwnerToken, QuorumNode, RenewRequest, Resource,
    System,
};
use leasehold_core::{
    FencingToken,
    quorum_node::{
        AttemptId, BirthMark, NodeRenewal, UndoRequest, Vote, VoteOutcome, VoteRequest, VoterStatus,
    },
};
use leasehold_redis::Nodes;
use leasehold_testkit::servers::RedisNodes;

const GATE: Duration = Duration::from_secs(600);

struct Pair {
    redis: Arc<dyn QuorumNode>,
    memory: MemoryNode,
    random: u64,
}

impl Pair {
    /// A Redis node and a memory node that both have a vote.
    async fn new(nodes: &RedisNodes) -> Pair {
        let environment: Arc<dyn Environment> = Arc::new(System::current());
        let redis = Nodes::parse(&nodes.url()).expect("the URL is valid").open(&environment).remove(0);
        let memory = MemoryNode::new("memory", environment);
        let run = memory.health().await.expect("it answers").run;
        let (set, standing) = ("00".to_owned(), VoterStatus::Voting);
        let mark = BirthMark { set, size: 3, gate: GATE, run, durable: false, standing };
        memory.mark(None, &mark).await.expect("it answers");
        Pair { redis, memory, random: 0x5eed }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }
}

/// The part of a vote that does not depend on the time.
fn without_time(vote: &Vote) -> (String, Option<FencingToken>) {
    match &vote.choice {
        VoteOutcome::Yours { number, .. } => ("yours".to_owned(), Some(*number)),
        VoteOutcome::Held { by, attempt } => {
            (format!("held by {} {attempt:?} {:?}", by.holder, by.note), Some(by.token))
        }
        other => (format!("{other:?}"), None),
    }
}

#[tokio::test]
async fn the_scripts_and_the_model_agree() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let mut pair = Pair::new(&nodes).await;
    let owners: Vec<OwnerToken> = (0..3).map(|_| owner()).collect();
    let resources: Vec<Resource> =
        ["report/1", "report/2"].map(|name| name.parse().expect("a valid name")).into();
    let start = System::current().wall().as_micros();
    // Few offsets from the start, near and far, so that the same proposals come again.
    let offsets: [i64; 8] = [0, 1, 7, 1_000_000, 500_000_000, -500_000_000, 4_000_000_000, -4_000_000_000];
    let mut seen = std::collections::BTreeSet::new();
    for step in 0..3000 {
        let (owner_token, resource) =
            (owners[pair.draw(3) as usize], resources[pair.draw(2) as usize].clone());
        let attempt = AttemptId(pair.draw(3));
        let proposal = start.saturating_add_signed(offsets[pair.draw(8) as usize]);
        let note = (pair.draw(4) == 0).then(|| Arc::from([0u8, b'|', b'n', 255]));
        let ttl = Duration::from_secs([60, 300, 1000][pair.draw(3) as usize]);
        let vote_request = VoteRequest {
            resource: resource.clone(),
            owner: owner_token,
            attempt,
            ttl,
            proposal: FencingToken::new(proposal).expect("a number"),
            holder: Arc::new(Holder::new("hôst", 7, "a|b\nc")),
            note: note.clone(),
        };
        let (redis, memory) = (Arc::clone(&pair.redis), &pair.memory);
        let verb = pair.random >> 40 & 7;
        let (theirs, ours) = match verb {
            0..=2 => (
                without_time(&redis.vote(&vote_request).await.expect("votes")),
                without_time(&memory.vote(&vote_request).await.expect("votes")),
            ),
            3 => (
                without_time(&redis.claim(&vote_request).await.expect("claims")),
                without_time(&memory.claim(&vote_request).await.expect("claims")),
            ),
            4 => (
                without_time(&redis.join(&vote_request).await.expect("joins")),
                without_time(&memory.join(&vote_request).await.expect("joins")),
            ),
            5 | 6 => {
                let attempt = (verb == 5).then_some(attempt);
                let tombstone =
                    (proposal.is_multiple_of(3) && step % 7 == 0).then_some(Duration::from_millis(1));
                let undo = UndoRequest { resource, owner: owner_token, attempt, tombstone };
                let undone = |was: bool| (format!("undone {was}"), None);
                let both = (
                    undone(redis.undo(&undo).await.expect("undoes")),
                    undone(memory.undo(&undo).await.expect("undoes")),
                );
                if tombstone.is_some() {
                    tokio::time::sleep(Duration::from_millis(3)).await; // the tombstone expires on both
                }
                both
            }
            _ => {
                let mut held = RenewRequest::new(ClaimRef { resource, owner: owner_token }, ttl);
                held.note = note;
                let outcome = |answer: leasehold::Result<NodeRenewal>| match answer.expect("renews") {
                    NodeRenewal::Renewed { number, .. } => ("kept".to_owned(), Some(number)),
                    other => (format!("{other:?}"), None),
                };
                let batch = [held];
                (outcome(redis.renew(&batch).await.remove(0)), outcome(memory.renew(&batch).await.remove(0)))
            }
        };
        assert_eq!(theirs, ours, "step {step}, verb {verb}: {vote_request:?}");
        seen.insert(theirs.0.split(' ').next().unwrap_or_default().to_owned());
        for resource in &resources {
            let (theirs, ours) = (pair.redis.look(resource).await, pair.memory.look(resource).await);
            let (theirs, ours) = (theirs.expect("looks"), ours.expect("looks"));
            assert_eq!(theirs.last, ours.last, "step {step}, verb {verb}: {vote_request:?}");
            let without_time = |view: leasehold_core::quorum_node::NodeView| {
                view.held.map(|(by, it)| (by.token, by.note, by.holder, it))
            };
            assert_eq!(without_time(theirs), without_time(ours), "step {step}, verb {verb}");
        }
    }
    for word in ["yours", "held", "Free", "Far", "TooLong", "undone", "kept", "Gone"] {
        assert!(seen.contains(word), "the test never saw {word}: {seen:?}");
    }
}

/// Lets the server know the scripts. A call of an unknown script is repeated with its source, and then a later call may be
/// executed first.
async fn teach_scripts(pair: &Pair, proposal: u64) {
    let resource: Resource = "report/0".parse().expect("a valid name");
    let request = VoteRequest {
        resource: resource.clone(),
        owner: owner(),
        attempt: AttemptId(0),
        ttl: Duration::from_secs(60),
        proposal: FencingToken::new(proposal).expect("a number"),
        holder: Arc::new(Holder::new("host", 7, "test")),
        note: None,
    };
    pair.redis.vote(&request).await.expect("votes");
    let undo = UndoRequest { resource, owner: request.owner, attempt: None, tombstone: None };
    pair.redis.undo(&undo).await.expect("undoes");
}

/// Votes and undos that come at once go in one script. Each does what it would do alone, in the order of arrival.
#[tokio::test]
async fn votes_that_come_at_once_agree_with_the_model() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let mut pair = Pair::new(&nodes).await;
    let owners: Vec<OwnerToken> = (0..3).map(|_| owner()).collect();
    let resources: Vec<Resource> = ["report/1", "report/2", "report/3", "report/4"]
        .map(|name| name.parse().expect("a valid name"))
        .into();
    let holder = Arc::new(Holder::new("host", 7, "test"));
    let start = System::current().wall().as_micros();
    teach_scripts(&pair, start).await;
    for round in 0..100 {
        let group: Vec<VoteRequest> = (0..20)
            .map(|_| VoteRequest {
                resource: resources[pair.draw(4) as usize].clone(),
                owner: owners[pair.draw(3) as usize],
                attempt: AttemptId(pair.draw(3)),
                ttl: Duration::from_secs(60),
                proposal: FencingToken::new(start + pair.draw(1000)).expect("a number"),
                holder: Arc::clone(&holder),
                note: None,
            })
            .collect();
        // Tasks of this runtime begin in the order in which they are spawned, so the requests arrive in that order.
        let asked: Vec<_> = group
            .iter()
            .cloned()
            .map(|request| {
                let node = Arc::clone(&pair.redis);
                tokio::spawn(async move { node.vote(&request).await })
            })
            .collect();
        for (number, (request, vote)) in group.iter().zip(asked).enumerate() {
            let theirs = vote.await.expect("the task ends").expect("votes");
            let ours = pair.memory.vote(request).await.expect("votes");
            assert_eq!(
                without_time(&theirs),
                without_time(&ours),
                "round {round}, vote {number}: {request:?}"
            );
        }
        let undo = |request: &VoteRequest| UndoRequest {
            resource: request.resource.clone(),
            owner: request.owner,
            attempt: None,
            tombstone: None,
        };
        let undos: Vec<_> = group.iter().map(undo).collect();
        let asked: Vec<_> = undos
            .iter()
            .cloned()
            .map(|request| {
                let node = Arc::clone(&pair.redis);
                tokio::spawn(async move { node.undo(&request).await })
            })
            .collect();
        for (number, (request, undone)) in undos.iter().zip(asked).enumerate() {
            let theirs = undone.await.expect("the task ends").expect("undoes");
            assert_eq!(
                theirs,
                pair.memory.undo(request).await.expect("undoes"),
                "round {round}, undo {number}"
            );
        }
    }
    let scripts = nodes.servers[0].command(&["INFO", "commandstats"]);
    let calls = scripts.split("cmdstat_evalsha:calls=").nth(1).and_then(|rest| rest.split(',').next());
    let calls: u64 = calls.and_then(|calls| calls.parse().ok()).expect("scripts were called");
    assert!(calls < 100 * 40 / 2, "{calls} calls for {} requests: they travel together", 100 * 40);
}

/// A key of another type fails its own vote only.
#[tokio::test]
async fn a_vote_that_fails_does_not_harm_those_that_come_with_it() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let pair = Pair::new(&nodes).await;
    nodes.servers[0].command(&["RPUSH", "lock:v1:{report/3}:owner", "not a lock"]);
    let now = FencingToken::new(System::current().wall().as_micros()).expect("a number");
    let asked: Vec<_> = (0..8)
        .map(|number| {
            let request = VoteRequest {
                resource: format!("report/{number}").parse().expect("a valid name"),
                owner: owner(),
                attempt: AttemptId(1),
                ttl: Duration::from_secs(60),
                proposal: now,
                holder: Arc::new(Holder::new("host", 7, "test")),
                note: None,
            };
            let node = Arc::clone(&pair.redis);
            tokio::spawn(async move { node.vote(&request).await })
        })
        .collect();
    for (number, vote) in asked.into_iter().enumerate() {
        let vote = vote.await.expect("the task ends");
        if number == 3 {
            let vote = vote.expect("votes").choice;
            assert!(matches!(&vote, VoteOutcome::Foreign(lock) if lock.form == "list"), "{vote:?}");
        } else {
            assert!(matches!(vote.expect("votes").choice, VoteOutcome::Yours { .. }), "vote {number}");
        }
    }
    assert_eq!(nodes.servers[0].command(&["TYPE", "lock:v1:{report/3}:owner"]), "list", "it is left alone");
}

#[tokio::test]
async fn redis_and_the_model_respect_a_tombstone_and_a_missing_mark() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let pair = Pair::new(&nodes).await;
    let resource: Resource = "report/42".parse().expect("a valid name");
    let now = FencingToken::new(System::current().wall().as_micros()).expect("a number");
    let (owner_token, holder) = (owner(), Arc::new(Holder::new("h", 1, "")));
    let vote_request = VoteRequest {
        resource: resource.clone(),
        owner: owner_token,
        attempt: AttemptId(1),
        ttl: Duration::from_secs(60),
        proposal: now,
        holder,
        note: None,
    };
    let undo = UndoRequest {
        resource,
        owner: owner_token,
        attempt: Some(AttemptId(1)),
        tombstone: Some(Duration::from_secs(60)),
    };
    for node in [&*pair.redis, &pair.memory as &dyn QuorumNode] {
        assert!(!node.undo(&undo).await.expect("undoes"));
        assert_eq!(node.vote(&vote_request).await.expect("votes").choice, VoteOutcome::Cancelled);
        let again = VoteRequest { attempt: AttemptId(2), ..vote_request.clone() };
        assert!(matches!(node.vote(&again).await.expect("votes").choice, VoteOutcome::Yours { .. }));
        node.undo(&UndoRequest { attempt: None, ..undo.clone() }).await.expect("undoes");
        assert_eq!(node.vote(&again).await.expect("votes").choice, VoteOutcome::Cancelled);
    }
    pair.memory.forget();
    nodes.servers[0].command(&["FLUSHALL"]);
    for node in [&*pair.redis, &pair.memory as &dyn QuorumNode] {
        assert_eq!(node.vote(&vote_request).await.expect("votes").choice, VoteOutcome::NoVote);
    }
}
