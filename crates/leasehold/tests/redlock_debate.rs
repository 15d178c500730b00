//! The scenarios of the debate about Redlock, played on five nodes in memory. `docs/guarantees.md` tells the story, and
//! links here for what leasehold makes of it.

mod common;

use std::sync::Arc;

use common::{millis, seconds};
use leasehold::{
    Backend, Client, Environment, FencingToken, LeaseRequest, MemoryNode, Quorum, testing::ManualTime,
};

/// Five servers that keep what they wrote, and a clock for everyone who does not have one of its own.
struct Scene {
    time: ManualTime,
    nodes: Vec<Arc<MemoryNode>>,
}

impl Scene {
    fn new() -> Scene {
        let time = ManualTime::new();
        let environment: Arc<dyn Environment> = Arc::new(time.clone());
        let node =
            |number| Arc::new(MemoryNode::durable(&format!("node-{number}"), Arc::clone(&environment)));
        Scene { nodes: (1..=5).map(node).collect(), time }
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

/// Ten seconds, as in the debate.
fn lease(client: &Client) -> LeaseRequest {
    client.lease("report", "42").ttl(seconds(10))
}

/// Where the effect happens: a token below the highest seen is refused.
#[derive(Default)]
struct Fenced {
    highest: Option<FencingToken>,
    accepted: Vec<&'static str>,
}

impl Fenced {
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
    let scene = Scene::new();
    let (a, b) = (scene.client().await, scene.client().await);
    let held = lease(&a).acquire().await.unwrap();
    // Votes that were not needed any more arrive beside the caller.
    scene.time.advance(millis(10)).await;
    for node in &scene.nodes[..2] {
        node.set_clock_ahead(11);
        assert!(lease(&b).try_acquire().await.unwrap().is_none(), "two of five are no majority");
        held.check().unwrap();
    }
    scene.time.advance(seconds(60)).await;
    held.check().expect("renewals go on");
    assert!(lease(&b).try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_clock_that_jumps_by_eleven_seconds_beside_a_bare_majority_lets_two_in_and_the_fence_tells_them_apart()
 {
    let scene = Scene::new();
    let (a, b) = (scene.client().await, scene.client().await);
    let [_, _, third, fourth, fifth] = &scene.nodes[..] else { unreachable!("there are five") };
    fourth.stop();
    fifth.stop();
    let first = lease(&a).acquire().await.unwrap();
    fourth.restart();
    fifth.restart();
    drop(scene.client().await); // whoever connects sees to nodes that are back

    third.set_clock_ahead(11);
    let second = lease(&b).acquire().await.unwrap();

    // This is the limit that Kleppmann pointed at: one clock, and both believe.
    first.check().expect("nobody has told it");
    second.check().expect("it has a majority");
    // And this is what he missed in Redlock: a token that grows, whatever the clocks do.
    assert!(second.token() > first.token());
    let mut storage = Fenced::default();
    assert!(storage.write(second.token(), "the second"));
    assert!(!storage.write(first.token(), "the first"), "the late writer is refused");
    assert_eq!(storage.accepted, ["the second"]);

    // The next renewal finds the majority gone, and the first one is told.
    scene.time.advance(seconds(4)).await;
    assert!(first.check().is_err());
    second.check().unwrap();
}

#[tokio::test]
async fn a_holder_that_pauses_fifteen_seconds_on_a_ttl_of_ten_is_told_at_its_first_look() {
    let scene = Scene::new();
    let (a, b) = (scene.client().await, scene.client().await);
    let first = lease(&a).acquire().await.unwrap();
    first.check().expect("it looks, and is stopped right after");
    let mut storage = Fenced::default();

    scene.time.jump(seconds(15)); // clocks go on; no timer and no task of its own has run
    let second = lease(&b).acquire().await.unwrap();
    assert!(storage.write(second.token(), "the second"));

    assert!(first.check().is_err(), "whoever looks is told, though no task has had its turn");
    // One that does not look again writes all the same, as on any backend. Only the fence holds.
    assert!(!storage.write(first.token(), "the first"));
    assert_eq!(storage.accepted, ["the second"]);
    scene.time.advance(seconds(1)).await;
    assert!(first.check().is_err(), "and a renewal does not revive it");
    second.check().unwrap();
}

#[tokio::test]
async fn a_pause_between_the_request_and_its_answer_is_no_grant() {
    let scene = Scene::new();
    let (a, b) = (scene.client().await, scene.client().await);
    scene.nodes.iter().for_each(|node| node.slow_down(millis(100)));
    let asking = tokio::spawn(lease(&a).try_acquire());
    scene.time.advance(millis(60)).await; // all five have executed it; their answers are on the way
    scene.nodes.iter().for_each(|node| node.slow_down(millis(0)));
    scene.time.jump(seconds(15)); // the client is stopped; the answers wait in its buffers
    let second = lease(&b).try_acquire().await.unwrap().expect("the first one's time is over");
    scene.time.advance(seconds(1)).await;
    let granted = matches!(asking.await.unwrap(), Ok(Some(_)));
    assert!(!granted, "a grant that is as old as its ttl is none");
    second.check().unwrap();
}
