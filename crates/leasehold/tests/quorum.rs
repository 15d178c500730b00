//! A quorum of nodes in memory, with faults, on manual time.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may spawn, and may panic")]
#![allow(clippy::needless_pass_by_value, reason = "the reply of a call is passed on as it is")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{millis, seconds};
use leasehold::{
    Backend, BackendExt as _, Claim, ClaimRef, Client, Clock as _, Effect, ErrorKind, FencingToken, Grant,
    Holder, MemoryNode, OwnerToken, Query, Quorum, QuorumNode, ReleaseRequest, Released, RenewRequest,
    Renewal, Resource, Share, Verdict, testing::ManualTime,
};

const GATE: Duration = seconds(60);
const TTL: Duration = seconds(30);

struct NodeSet {
    time: ManualTime,
    nodes: Vec<Arc<MemoryNode>>,
}

impl NodeSet {
    /// Nodes that keep nothing on disk and have been up for longer than the gate.
    async fn of(size: usize) -> NodeSet {
        let time = ManualTime::new();
        let node = |number| Arc::new(MemoryNode::new(&format!("n{number}"), Arc::new(time.clone())));
        let nodes = (1..=size).map(node).collect();
        time.advance(GATE).await;
        NodeSet { time, nodes }
    }

    async fn open(&self) -> Quorum {
        let nodes = self.nodes.iter().map(|node| Arc::clone(node) as Arc<dyn QuorumNode>).collect();
        Quorum::connect(nodes, GATE, Arc::new(self.time.clone())).await.expect("the nodes are there")
    }

    async fn client(&self) -> Client {
        Client::builder(Arc::new(self.open().await)).environment(Arc::new(self.time.clone())).build()
    }

    /// Runs a future while the time advances.
    async fn while_time_passes<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        for _ in 0..10_000 {
            tokio::select! { biased;
                output = &mut future => return output,
                () = self.time.advance(millis(5)) => {}
            }
        }
        panic!("the future is not done after 50 s");
    }

    /// The number of locks on each node.
    fn locks_left(&self) -> Vec<usize> {
        self.nodes.iter().map(|node| node.stored().0).collect()
    }
}

fn report() -> Resource {
    "report/42".parse().expect("a name")
}

fn owner(number: u8) -> OwnerToken {
    OwnerToken::from_bytes([number; 16])
}

fn claim(number: u8) -> Claim {
    Claim::new(
        report(),
        owner(number),
        Share::WHOLE,
        TTL,
        Arc::new(Holder::new("host", u32::from(number), "")),
    )
}

fn granted(verdict: leasehold::Result<Verdict>) -> Grant {
    if let Ok(Verdict::Granted(grant)) = verdict {
        grant
    } else {
        panic!("expected a grant, not {verdict:?}")
    }
}

fn is_blocked(verdict: &leasehold::Result<Verdict>) -> bool {
    matches!(verdict, Ok(Verdict::Blocked(_)))
}

async fn release(quorum: &Quorum, number: u8) -> Released {
    quorum.release_one(&ReleaseRequest::new(claim(number).reference())).await.expect("a majority answers")
}

async fn renewed(quorum: &Quorum, number: u8) -> leasehold::Result<Renewal> {
    quorum
        .renew(&[RenewRequest::new(ClaimRef { resource: report(), owner: owner(number) }, TTL)])
        .await
        .remove(0)
}

#[tokio::test]
async fn with_two_of_five_nodes_down_it_works_and_with_three_down_it_does_not() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    set.nodes[..2].iter().for_each(|node| node.stop());
    let first = granted(quorum.acquire_one(&claim(1)).await);
    assert!(is_blocked(&quorum.acquire_one(&claim(2)).await));
    assert!(
        matches!(renewed(&quorum, 1).await, Ok(Renewal::Renewed(renewed)) if renewed.token == first.token)
    );
    set.nodes[2].stop();
    let verdict = quorum.acquire_one(&claim(2)).await;
    assert!(!matches!(verdict, Ok(Verdict::Granted(_))), "{verdict:?}");
    let error = renewed(&quorum, 1).await.expect_err("there is no majority");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    set.time.advance(TTL + seconds(1)).await;
    let error = set.while_time_passes(quorum.acquire_one(&claim(2))).await.expect_err("there is no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("n3"), "{error}");
    assert_eq!(set.locks_left()[3..], [0, 0]);
}

#[tokio::test]
async fn a_failed_attempt_leaves_nothing_behind() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    set.nodes[..3].iter().for_each(|node| node.stop());
    let error = quorum.acquire_one(&claim(1)).await.expect_err("there is no majority");
    assert_eq!(
        (error.kind(), error.effect()),
        (ErrorKind::Unavailable, Effect::None),
        "every vote is known, and undone"
    );
    assert_eq!(set.locks_left(), [0; 5]);
}

#[tokio::test]
async fn a_vote_that_is_executed_late_is_undone() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    set.nodes[..3].iter().for_each(|node| node.freeze());
    let error = set.while_time_passes(quorum.acquire_one(&claim(1))).await.expect_err("there is no majority");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    set.nodes[..3].iter().for_each(|node| node.thaw());
    set.time.advance(seconds(4)).await;
    assert_eq!(set.locks_left(), [0; 5], "the votes that the frozen nodes gave late are undone");
    granted(set.while_time_passes(quorum.acquire_one(&claim(2))).await);
}

#[tokio::test]
async fn a_slow_node_costs_nothing_once_a_majority_has_answered() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    set.nodes[..2].iter().for_each(|node| node.slow_down(seconds(1)));
    granted(quorum.acquire_one(&claim(1)).await); // granted although no time passes
    assert_eq!(release(&quorum, 1).await, Released::Now);
    set.time.advance(seconds(5)).await;
    assert_eq!(set.locks_left(), [0; 5], "the slow nodes have released, too");
}

#[tokio::test]
async fn a_grant_takes_one_round_trip_and_lasts_for_the_rest_of_its_ttl_less_the_drift() {
    let set = NodeSet::of(5).await;
    let client = set.client().await;
    let trip = seconds(1);
    set.nodes.iter().for_each(|node| node.slow_down(trip));
    let before = set.time.now();
    let lease =
        set.while_time_passes(client.lease("report", "42").ttl(TTL).acquire()).await.expect("it is free");
    let took = before.until(set.time.now());
    assert!(took >= trip && took < trip + millis(50), "one round trip: {took:?}");
    let good_for = TTL - trip - (TTL / 100 + millis(2));
    assert!(lease.remaining() <= good_for, "{:?} of {good_for:?}", lease.remaining());
    assert!(lease.remaining() > good_for - millis(50), "{:?} of {good_for:?}", lease.remaining());
}

#[tokio::test]
async fn a_node_has_a_tenth_of_the_ttl_to_answer() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    set.nodes[..3].iter().for_each(|node| node.slow_down(TTL / 10 + seconds(1)));
    let before = set.time.now();
    let error =
        set.while_time_passes(quorum.acquire_one(&claim(1))).await.expect_err("three of five are too slow");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let took = before.until(set.time.now());
    assert!(took >= TTL / 10 && took < TTL / 10 + millis(200), "{took:?}");
    set.time.advance(seconds(10)).await;
    assert_eq!(set.locks_left(), [0; 5], "the late votes were undone");
}

/// Two nodes receive a release late, and a third freezes right after it. The two are asked again while the third does not
/// answer.
#[tokio::test]
async fn a_node_that_freezes_right_after_a_release_does_not_delay_the_next_grant() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    granted(quorum.acquire_one(&claim(1)).await);
    set.time.advance(millis(10)).await;
    set.nodes[3..].iter().for_each(|node| node.slow_down(millis(300)));
    assert_eq!(release(&quorum, 1).await, Released::Now);
    set.nodes[3..].iter().for_each(|node| node.slow_down(Duration::ZERO));
    set.nodes[2].freeze();
    let before = set.time.now();
    granted(set.while_time_passes(quorum.acquire_one(&claim(2))).await);
    let took = before.until(set.time.now());
    assert!(took < TTL / 30, "much less than a tenth of the ttl, which a node may take: {took:?}");
}

#[tokio::test]
async fn four_nodes_survive_the_loss_of_one_and_not_of_two() {
    let set = NodeSet::of(4).await;
    let quorum = set.open().await;
    set.nodes[0].stop();
    let first = granted(quorum.acquire_one(&claim(1)).await);
    assert!(
        matches!(renewed(&quorum, 1).await, Ok(Renewal::Renewed(renewed)) if renewed.token == first.token)
    );
    release(&quorum, 1).await;
    set.nodes[1].stop();
    let error =
        set.while_time_passes(quorum.acquire_one(&claim(2))).await.expect_err("two of four are no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(set.locks_left()[2..], [0, 0]);
}

/// The classic double grant: one of the three nodes that gave their vote restarts empty and votes for the next claim.
#[tokio::test]
async fn a_node_that_restarts_empty_does_not_grant_again() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    set.nodes[3..].iter().for_each(|node| node.stop());
    granted(quorum.acquire_one(&claim(1)).await);
    set.nodes[3..].iter().for_each(|node| node.reach());
    set.nodes[0].restart();
    let other = set.open().await;
    // Two nodes have the lock, three are free. Without the gate, the three would be a majority.
    let verdict = set.while_time_passes(other.acquire_one(&claim(2))).await;
    assert!(is_blocked(&verdict), "{verdict:?}");
    set.time.advance(TTL + seconds(1)).await;
    granted(set.while_time_passes(other.acquire_one(&claim(2))).await);
}

#[tokio::test]
async fn a_node_that_forgot_votes_again_after_the_gate_and_knows_the_last_token() {
    let set = NodeSet::of(3).await;
    let quorum = set.open().await;
    let floor = FencingToken::new(granted(quorum.acquire_one(&claim(1)).await).token.get() + 300_000_000)
        .expect("a token");
    release(&quorum, 1).await;
    // Five minutes ahead of every clock, so only the registers know this token.
    let ahead = granted(quorum.acquire_one(&claim(2).above(floor)).await).token;
    release(&quorum, 2).await;
    set.nodes[0].restart();
    set.time.advance(seconds(1)).await;
    granted(set.while_time_passes(quorum.acquire_one(&claim(3))).await);
    release(&quorum, 3).await;
    set.time.advance(GATE + seconds(1)).await;
    set.nodes[1].stop();
    let after = granted(set.while_time_passes(quorum.acquire_one(&claim(4))).await);
    assert!(after.token > ahead, "{:?} follows {ahead:?}", after.token);
}

#[tokio::test]
async fn a_majority_that_forgot_stops_the_quorum_with_an_error_that_says_so() {
    let set = NodeSet::of(3).await;
    let quorum = set.open().await;
    set.nodes[..2].iter().for_each(|node| node.restart());
    assert!(quorum.acquire_one(&claim(1)).await.is_err());
    set.time.advance(seconds(1)).await;
    let error =
        set.while_time_passes(quorum.acquire_one(&claim(1))).await.expect_err("a majority has no vote");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("2 of 3 nodes may have forgotten"), "{error}");
}

#[tokio::test]
async fn a_lease_outlives_the_restart_of_every_node_one_after_the_other() {
    let set = NodeSet::of(3).await;
    let client = set.client().await;
    let lease = client.lease("report", "42").ttl(TTL).acquire().await.expect("it is free");
    for node in &set.nodes {
        node.restart();
        set.time.advance(GATE + TTL * 2).await;
        assert!(lease.check().is_ok(), "{} was restarted, the other two were there", node.name());
    }
    lease.release().await.expect("a majority answers");
}

#[tokio::test]
async fn nodes_with_different_numbers_are_asked_for_the_greatest() {
    let set = NodeSet::of(3).await;
    let quorum = set.open().await;
    // In each round another node is away, so their registers differ, and are ahead of the clocks.
    let mut last = granted(quorum.acquire_one(&claim(9)).await).token;
    release(&quorum, 9).await;
    for round in 0..9u8 {
        let away = &set.nodes[usize::from(round) % 3];
        away.stop();
        let floor = FencingToken::new(last.get() + 1_000_000).expect("a token");
        let claim = if round % 2 == 0 { claim(round).above(floor) } else { claim(round) };
        let token = granted(set.while_time_passes(quorum.acquire_one(&claim)).await).token;
        assert!(token > last, "{token:?} follows {last:?}");
        last = token;
        let again = granted(set.while_time_passes(quorum.acquire_one(&claim)).await).token;
        assert_eq!(again, token, "a repeated request returns the same grant");
        release(&quorum, round).await;
        // It has the same run id: it was only unreachable.
        away.reach();
        set.time.advance(seconds(3)).await;
    }
}

/// Claim 2 is granted by two nodes. The third node has its lock with a lower number, and has not received the token.
async fn grant_with_a_lagging_node(set: &NodeSet, quorum: &Quorum) -> FencingToken {
    let token = granted(quorum.acquire_one(&claim(1)).await).token;
    release(quorum, 1).await;
    let ahead = FencingToken::new(token.get() + 5_000_000).expect("a token");
    set.nodes[1].raise(&[(report(), ahead)]).await.expect("it answers");
    set.nodes[2].slow_down(seconds(1));
    let token = granted(quorum.acquire_one(&claim(2)).await).token;
    assert!(token > ahead, "claimed again with the greatest number");
    set.time.advance(millis(600)).await; // the third node has executed the vote; its reply is on the way
    set.nodes[2].slow_down(Duration::ZERO);
    set.nodes[2].stop();
    set.time.advance(seconds(2)).await;
    set.nodes[2].reach();
    let seen = set.nodes[2].look(&report()).await.expect("it answers").held.expect("it is held");
    assert!(seen.0.token < token, "it does not know the token of the grant");
    token
}

fn token_of(renewal: leasehold::Result<Renewal>) -> FencingToken {
    if let Ok(Renewal::Renewed(renewed)) = renewal {
        renewed.token
    } else {
        panic!("not renewed: {renewal:?}")
    }
}

#[tokio::test]
async fn a_renewal_returns_the_token_of_the_grant_even_if_a_lagging_node_has_another_number() {
    let set = NodeSet::of(3).await;
    let quorum = set.open().await;
    let token = grant_with_a_lagging_node(&set, &quorum).await;
    set.nodes[0].stop();
    assert_eq!(token_of(renewed(&quorum, 2).await), token);
    set.nodes[0].reach();
    assert_eq!(
        granted(quorum.acquire_one(&claim(2)).await).token,
        token,
        "a repeated request returns the same grant"
    );
}

#[tokio::test]
async fn a_renewal_returns_the_current_token_even_if_the_client_remembers_an_earlier_grant_of_the_owner() {
    let set = NodeSet::of(3).await;
    let (quorum, other) = (set.open().await, set.open().await);
    let first = granted(quorum.acquire_one(&claim(1)).await).token;
    set.time.advance(TTL + seconds(1)).await;
    let second = granted(other.acquire_one(&claim(1)).await).token;
    assert!(second > first);
    assert_eq!(token_of(renewed(&quorum, 1).await), second);
    set.time.advance(millis(1)).await;
    assert_eq!(token_of(renewed(&other, 1).await), second, "no node was given the old token");
}

#[tokio::test]
async fn a_lagging_node_gets_the_token_with_the_next_renewal() {
    let set = NodeSet::of(3).await;
    let (quorum, adopter) = (set.open().await, set.open().await);
    let token = grant_with_a_lagging_node(&set, &quorum).await;
    assert_eq!(token_of(renewed(&quorum, 2).await), token);
    set.time.advance(millis(1)).await; // for the background task
    set.nodes[0].stop();
    assert_eq!(
        token_of(renewed(&adopter, 2).await),
        token,
        "a client that does not know the token gets the right one"
    );
}

#[tokio::test]
async fn a_minority_of_wrong_clocks_changes_nothing() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    let first = granted(quorum.acquire_one(&claim(1)).await);
    set.nodes[0].set_clock_ahead(3600);
    set.nodes[1].set_clock_ahead(-3600);
    assert!(is_blocked(&quorum.acquire_one(&claim(2)).await), "one of five has lost the lock");
    assert!(matches!(renewed(&quorum, 1).await, Ok(Renewal::Renewed(_))));
    release(&quorum, 1).await;
    let second = granted(set.while_time_passes(quorum.acquire_one(&claim(2))).await);
    let apart = second.token.get() - first.token.get();
    assert!(
        second.token > first.token && apart < 600_000_000,
        "tokens follow the majority's clocks: {apart}"
    );
}

/// A documented limit: exclusion depends on the clocks of a majority. The tokens do not.
#[tokio::test]
async fn when_a_majority_of_clocks_jumps_two_claims_are_granted_and_the_tokens_still_grow() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    let first = granted(quorum.acquire_one(&claim(1)).await);
    set.nodes[..3].iter().for_each(|node| node.set_clock_ahead(31));
    let second = granted(set.while_time_passes(quorum.acquire_one(&claim(2))).await);
    assert!(second.token > first.token, "a fence refuses the first token from now on");
    assert!(
        matches!(renewed(&quorum, 1).await, Ok(Renewal::Gone { .. })),
        "the first claim learns that its lease is gone"
    );
}

/// A documented limit: a register ends two hours after its number, by the clock of the node.
#[tokio::test]
async fn a_clock_that_leaps_more_than_two_hours_and_is_set_back_can_make_a_token_go_back() {
    for (leap, steps_back) in [(3600, false), (3 * 3600, true)] {
        let set = NodeSet::of(3).await;
        let quorum = set.open().await;
        let first = granted(quorum.acquire_one(&claim(1)).await).token;
        release(&quorum, 1).await;
        set.nodes[2].stop();
        // Five minutes ahead of every clock, so only the registers of two nodes know this token.
        let floor = FencingToken::new(first.get() + 300_000_000).expect("a token");
        let ahead = granted(quorum.acquire_one(&claim(2).above(floor)).await).token;
        release(&quorum, 2).await;
        set.nodes[2].reach();
        set.nodes[0].stop();
        set.nodes[1].set_clock_ahead(leap);
        assert_eq!(set.nodes[1].stored().1, usize::from(!steps_back), "whether the register is there");
        set.nodes[1].set_clock_ahead(0);
        let next = granted(set.while_time_passes(quorum.acquire_one(&claim(3))).await).token;
        assert_eq!(next < ahead, steps_back, "after a leap of {leap} s: {next:?} after {ahead:?}");
    }
}

#[tokio::test]
async fn queues_and_shares_are_refused_with_the_reason() {
    let set = NodeSet::of(3).await;
    let client = set.client().await;
    let kind = |error: leasehold::Error| (error.kind(), error.effect(), error.to_string());
    let fair = kind(client.lease("a", "b").fair().acquire().await.expect_err("no queue"));
    let permits = kind(client.semaphore("a", "b", 3).permits(1).acquire().await.expect_err("no shares"));
    let read = kind(client.rwlock("a", "b").read().acquire().await.expect_err("no shares"));
    for (error, word) in [(fair, "queue"), (permits, "semaphores"), (read, "read-write")] {
        assert_eq!((error.0, error.1), (ErrorKind::Unsupported, Effect::None));
        assert!(error.2.contains(word), "{}", error.2);
    }
    let long = client.lease("a", "b").ttl(GATE * 2).acquire().await.expect_err("longer than the gate");
    assert_eq!((long.kind(), long.effect()), (ErrorKind::Limit, Effect::None));
    assert!(long.to_string().contains("gate"), "{long}");
}

#[tokio::test]
async fn a_client_that_releases_lets_other_clients_ask_before_its_own_waiters() {
    let set = NodeSet::of(3).await;
    let (busy, other) = (set.client().await, set.client().await);
    let lease = busy.lease("report", "42").acquire().await.expect("it is free");
    let waits = tokio::spawn({
        let request = busy.lease("report", "42").wait(seconds(10));
        async move { request.acquire().await }
    });
    set.time.advance(millis(1)).await;
    lease.release().await.expect("a majority answers");
    // Its own waiter is next but pauses first, so a client that asks meanwhile is granted.
    let theirs = other.lease("report", "42").try_acquire().await.expect("it answers").expect("it is free");
    theirs.release().await.expect("a majority answers");
    let ours = set.while_time_passes(waits).await.expect("no panic").expect("its turn comes");
    ours.release().await.expect("a majority answers");
}

#[tokio::test]
async fn sets_that_cannot_be_a_quorum_are_refused() {
    let set = NodeSet::of(3).await;
    let open = |nodes: Vec<Arc<MemoryNode>>| {
        let nodes = nodes.into_iter().map(|node| node as Arc<dyn QuorumNode>).collect();
        Quorum::connect(nodes, GATE, Arc::new(set.time.clone()))
    };
    let two = open(set.nodes[..2].to_vec()).await.expect_err("too few");
    let twice = open(vec![set.nodes[0].clone(), set.nodes[1].clone(), set.nodes[0].clone()]).await;
    let twice = twice.expect_err("one is there twice");
    assert_eq!((two.kind(), twice.kind()), (ErrorKind::Invalid, ErrorKind::Invalid));
    assert!(
        two.to_string().contains("at least 3") && twice.to_string().contains("same server"),
        "{two}; {twice}"
    );
}

#[tokio::test]
async fn inspect_shows_what_a_majority_has() {
    let set = NodeSet::of(5).await;
    let quorum = set.open().await;
    let grant = granted(quorum.acquire_one(&claim(1)).await);
    set.nodes[0].stop();
    set.nodes[1].forget();
    let seen =
        quorum.inspect(&Query::One(report())).await.expect("a majority answers").into_snapshots().remove(0);
    assert_eq!((seen.holder_count, seen.holders[0].token), (1, grant.token));
    set.nodes[2].forget();
    let seen =
        quorum.inspect(&Query::One(report())).await.expect("a majority answers").into_snapshots().remove(0);
    assert_eq!(seen.holder_count, 0, "two of five hold nothing");
}
