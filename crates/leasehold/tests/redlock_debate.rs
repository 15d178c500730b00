//! The scenarios of the debate about Redlock, on five nodes in memory. `docs/guarantees.md` explains them and links here.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::sync::Arc;

use common::{millis, seconds};
use leasehold::{
    Backend, Client, Environment, FencingToken, LeaseRequest, MemoryNode, Quorum, testing::ManualTime,
};

/// Five durable nodes, and the clock of all clients and of the nodes whose clock is not set.
struct FiveNodes {
    time: ManualTime,
    nodes: Vec<Arc<MemoryNode>>,
}

impl FiveNodes {
    fn new() -> FiveNodes {
        let time = ManualTime::new();
        let environment: Arc<dyn Environment> = Arc::new(time.clone());
        let node =
            |number| Arc::new(MemoryNode::durable(&format!("node-{number}"), Arc::clone(&environment)));
        FiveNodes { nodes: (1..=5).map(node).collect(), time }
    }

    async fn client(&self) -> Client {
        let environment: Arc<dyn Environment> = Arc::new(self.time.clone());
        let nodes = self.nodes.iter().map(|node| Arc::clone(node) as _).collect();
        let quorum =
            Quorum::connect(nodes, Quorum::GATE, Arc::clone(&environment)).await.expect("all nodes answer");
        let quorum: Arc<dyn Backend> = Arc::new(quorum);
        Client::builder(quorum).environment(environment).build()
    }
}

/// A request with a ttl of ten seconds, as in the debate.
fn lease(client: &Client) -> LeaseRequest {
    client.lease("report", "42").ttl(seconds(10))
}

/// The place of the effect. It refuses a token below the highest that it has seen.
#[derive(Default)]
struct FencedStorage {
    highest: Option<FencingToken>,
    accepted: Vec<&'static str>,
}

impl FencedStorage {
    fn write(&mut self, token: FencingToken, what: &'static str) -> bool {
        let fresh = self.highest.is_none_or(|highest| token >= highest);
        if fresh {
            self.highest = Some(token);
            self.accepted.push(what);
        }
        fresh
    }
}

#[tokio::test]
async fn a_clock_that_jumps_by_eleven_seconds_lets_nobody_in_beside_a_holder_of_all_five_nodes() {
    let five = FiveNodes::new();
    let (a, b) = (five.client().await, five.client().await);
    let held = lease(&a).acquire().await.unwrap();
    // The votes after the majority arrive in the background.
    five.time.advance(millis(10)).await;
    for node in &five.nodes[..2] {
        node.set_clock_ahead(11);
        assert!(lease(&b).try_acquire().await.unwrap().is_none(), "two of five are no majority");
        held.check().unwrap();
    }
    five.time.advance(seconds(60)).await;
    held.check().expect("renewals go on");
    assert!(lease(&b).try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_clock_that_jumps_by_eleven_seconds_beside_a_bare_majority_lets_two_in_and_the_fence_tells_them_apart()
 {
    let five = FiveNodes::new();
    let (a, b) = (five.client().await, five.client().await);
    let [_, _, third, fourth, fifth] = &five.nodes[..] else { unreachable!("there are five") };
    fourth.stop();
    fifth.stop();
    let first = lease(&a).acquire().await.unwrap();
    fourth.restart();
    fifth.restart();
    drop(five.client().await); // connecting updates the membership of nodes that are back

    third.set_clock_ahead(11);
    let second = lease(&b).acquire().await.unwrap();

    // This is the limit that Kleppmann described: one clock jumps, and two clients believe that they hold the lease.
    first.check().expect("it has not learned of the second grant");
    second.check().expect("it has a majority");
    // And this is what he found missing in Redlock: a token that grows, whatever the clocks do.
    assert!(second.token() > first.token());
    let mut storage = FencedStorage::default();
    assert!(storage.write(second.token(), "the second"));
    assert!(!storage.write(first.token(), "the first"), "the late writer is refused");
    assert_eq!(storage.accepted, ["the second"]);

    // The next renewal finds no majority, so the first lease is lost.
    five.time.advance(seconds(4)).await;
    assert!(first.check().is_err());
    second.check().unwrap();
}

#[tokio::test]
async fn a_holder_that_pauses_fifteen_seconds_on_a_ttl_of_ten_is_told_at_its_first_look() {
    let five = FiveNodes::new();
    let (a, b) = (five.client().await, five.client().await);
    let first = lease(&a).acquire().await.unwrap();
    first.check().expect("it checks, and is paused right after");
    let mut storage = FencedStorage::default();

    five.time.jump(seconds(15)); // the clocks move on; no timer and no task of the first client has run
    let second = lease(&b).acquire().await.unwrap();
    assert!(storage.write(second.token(), "the second"));

    assert!(first.check().is_err(), "the check reports the loss although no task has run");
    // A holder that does not check again writes all the same, as on any backend. Only the fence refuses it.
    assert!(!storage.write(first.token(), "the first"));
    assert_eq!(storage.accepted, ["the second"]);
    five.time.advance(seconds(1)).await;
    assert!(first.check().is_err(), "a renewal does not revive it");
    second.check().unwrap();
}

#[tokio::test]
async fn a_pause_between_the_request_and_its_answer_is_no_grant() {
    let five = FiveNodes::new();
    let (a, b) = (five.client().await, five.client().await);
    five.nodes.iter().for_each(|node| node.slow_down(millis(100)));
    let asking = tokio::spawn(lease(&a).try_acquire());
    five.time.advance(millis(60)).await; // all five nodes have executed it; their replies are on the way
    five.nodes.iter().for_each(|node| node.slow_down(millis(0)));
    five.time.jump(seconds(15)); // the client is paused; the replies wait in its buffers
    let second = lease(&b).try_acquire().await.unwrap().expect("the locks of the first attempt have expired");
    five.time.advance(seconds(1)).await;
    let granted = matches!(asking.await.unwrap(), Ok(Some(_)));
    assert!(!granted, "a grant that is older than its ttl is not used");
    second.check().unwrap();
}
