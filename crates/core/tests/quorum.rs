//! The rule of one node, and what makes a node vote again: with numbers, not with servers.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    FencingToken, GoneReason, Holder, OwnerToken, RenewRequest, Resource, WallTime,
    claim::ClaimRef,
    quorum_node::{
        AttemptId, BirthMark, NodeRenewal, RETENTION, SKEW_MAX, UndoRequest, VoteOutcome, VoteRequest,
        VoterStatus, founding,
        membership::{self, MembershipStep},
        node_model::NodeModel,
    },
};

const START: u64 = 1_800_000_000_000_000;
const GATE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> WallTime {
    WallTime::from_micros(START + seconds * 1_000_000)
}

fn report() -> Resource {
    "report/42".parse().expect("a name")
}

fn owner(number: u8) -> OwnerToken {
    OwnerToken::from_bytes([number; 16])
}

fn ballot(who: u8, proposal: u64) -> VoteRequest {
    VoteRequest {
        resource: report(),
        owner: owner(who),
        attempt: AttemptId(u64::from(who)),
        ttl: TTL,
        proposal: FencingToken::new(proposal).expect("a number"),
        holder: Arc::new(Holder::new("host", u32::from(who), "")),
        note: None,
    }
}

fn undo(who: u8) -> UndoRequest {
    UndoRequest { resource: report(), owner: owner(who), attempt: None, tombstone: None }
}

fn held(who: u8, ttl: Duration) -> RenewRequest {
    RenewRequest::new(ClaimRef { resource: report(), owner: owner(who) }, ttl)
}

/// Nodes that have been up for an hour and vote.
fn set(size: usize) -> Vec<NodeModel> {
    let mut nodes: Vec<NodeModel> =
        (0..size).map(|number| NodeModel::new(format!("run-{number}"), at(0), false)).collect();
    tend(&mut nodes, at(3600), GATE);
    nodes
}

/// Does what the plan says until there is nothing left to do; says how it is then.
fn tend(
    nodes: &mut [NodeModel],
    now: WallTime,
    gate: impl Into<Option<Duration>>,
) -> membership::MembershipPlan {
    tend_those(nodes, now, gate, &[])
}

fn tend_those(
    nodes: &mut [NodeModel],
    now: WallTime,
    gate: impl Into<Option<Duration>>,
    down: &[usize],
) -> membership::MembershipPlan {
    let gate = gate.into();
    for _ in 0..10 {
        let healths: Vec<_> =
            (0..nodes.len()).map(|it| (!down.contains(&it)).then(|| nodes[it].health(now))).collect();
        let plan = membership::plan(&healths, gate).expect("they are a set");
        if plan.steps.is_empty() {
            return plan;
        }
        for step in plan.steps {
            match step {
                MembershipStep::Mark { node, expected, new } => {
                    drop(nodes[node].mark(expected.as_ref(), &new));
                }
                MembershipStep::Recover { node, from, expected, new } => {
                    let known: Vec<_> = from.iter().flat_map(|it| nodes[*it].walk(now, "").entries).collect();
                    for entry in known {
                        entry.last.iter().for_each(|last| nodes[node].raise(now, &entry.resource, *last));
                    }
                    nodes[node].mark(Some(&expected), &new);
                }
            }
        }
    }
    panic!("the plan does not end");
}

fn number(choice: &VoteOutcome) -> u64 {
    if let VoteOutcome::Yours { number, .. } = choice {
        number.get()
    } else {
        panic!("a yes was due, not {choice:?}")
    }
}

#[test]
fn a_number_is_above_every_other_owners_and_at_least_ones_own() {
    let mut node = set(3).remove(0);
    let now = at(3600);
    let proposal = now.as_micros();
    assert_eq!(number(&node.vote(now, &ballot(1, proposal)).choice), proposal);
    assert_eq!(
        number(&node.vote(now, &ballot(1, proposal + 5)).choice),
        proposal,
        "the same grant, asked for again"
    );
    assert_eq!(number(&node.claim(now, &ballot(1, proposal + 5)).choice), proposal + 5);
    assert_eq!(number(&node.claim(now, &ballot(1, proposal + 3)).choice), proposal + 5, "it never goes back");
    assert!(matches!(
        node.vote(now, &ballot(2, proposal)).choice,
        VoteOutcome::Held { attempt: AttemptId(1), .. }
    ));
    assert!(matches!(node.claim(now, &ballot(2, proposal)).choice, VoteOutcome::Held { .. }));
    assert!(node.undo(now, &undo(1)));
    assert!(
        matches!(node.claim(now, &ballot(2, proposal)).choice, VoteOutcome::Free),
        "a claim takes no lock"
    );
    assert_eq!(number(&node.vote(now, &ballot(2, proposal)).choice), proposal + 6);
    assert!(node.undo(now, &undo(2)));
    assert_eq!(
        number(&node.vote(now, &ballot(2, proposal)).choice),
        proposal + 7,
        "a new grant of the same owner"
    );
}

#[test]
fn a_proposal_far_from_the_clock_is_refused_unless_the_register_is_there() {
    let mut node = set(3).remove(0);
    let (now, far) = (at(3600), SKEW_MAX.as_micros() as u64 + 1);
    let clock = now.as_micros();
    for proposal in [clock + far, clock - far, 1] {
        assert_eq!(node.vote(now, &ballot(1, proposal)).choice, VoteOutcome::Far);
    }
    assert_eq!(node.stored(now), (0, 0, 0), "a refusal takes nothing");
    assert_eq!(number(&node.vote(now, &ballot(1, clock + far - 1)).choice), clock + far - 1);
    assert_eq!(number(&node.claim(now, &ballot(1, clock + far)).choice), clock + far);
}

#[test]
fn a_register_ends_only_when_the_clock_is_past_it() {
    let mut node = set(3).remove(0);
    let now = at(3600);
    let ahead = now.as_micros() + SKEW_MAX.as_micros() as u64;
    node.vote(now, &ballot(1, ahead));
    let ends = WallTime::from_micros(ahead).after(RETENTION);
    assert_eq!(node.stored(WallTime::from_micros(ends.as_micros() - 1)).1, 1);
    assert_eq!(node.stored(ends).1, 0);
    // From then on everything near the clock is above it.
    let lowest = ends.as_micros() - SKEW_MAX.as_micros() as u64;
    assert!(number(&node.vote(ends, &ballot(2, lowest)).choice) > ahead);
}

#[test]
fn a_late_request_of_an_attempt_that_was_undone_comes_to_nothing_and_a_new_attempt_does_not() {
    let mut node = set(3).remove(0);
    let (now, proposal) = (at(3600), at(3600).as_micros());
    let mut late = undo(1);
    (late.attempt, late.tombstone) = (Some(AttemptId(1)), Some(TTL));
    assert!(!node.undo(now, &late));
    assert_eq!(node.vote(now, &ballot(1, proposal)).choice, VoteOutcome::Cancelled);
    let again = VoteRequest { attempt: AttemptId(77), ..ballot(1, proposal) };
    number(&node.vote(now, &again).choice);
    assert!(!node.undo(now, &late), "the lock is of another attempt");
    assert_eq!(node.stored(at(3600 + 31)), (0, 1, 0), "all but the register ends");
}

/// Found by the simulator: the second attempt was granted, the first one's request came late, and its farewell took the
/// lock away from under the grant.
#[test]
fn an_earlier_attempt_that_is_executed_late_does_not_take_the_lock_along_when_it_is_undone() {
    let mut node = set(3).remove(0);
    let attempt = |number| VoteRequest { attempt: AttemptId(number), ..ballot(1, at(3600).as_micros()) };
    let now = at(3600);
    assert!(matches!(node.vote(now, &attempt(2)).choice, VoteOutcome::Yours { .. }));
    for late in [NodeModel::vote, NodeModel::claim, NodeModel::join] {
        assert!(matches!(late(&mut node, now, &attempt(1)).choice, VoteOutcome::Yours { .. }));
        assert!(!node.undo(now, &UndoRequest { attempt: Some(AttemptId(1)), ..undo(1) }));
        assert!(node.look(now, &report()).held.is_some());
    }
    assert!(node.undo(now, &UndoRequest { attempt: Some(AttemptId(2)), ..undo(1) }));
}

#[test]
fn renewing_goes_on_never_shortens_and_never_revives() {
    let mut node = set(3).remove(0);
    let now = at(3600);
    node.vote(now, &ballot(1, now.as_micros()));
    let short = node.renew(now, &held(1, Duration::from_secs(1)));
    assert!(matches!(short, NodeRenewal::Renewed { remaining, .. } if remaining == TTL));
    assert_eq!(node.renew(now, &held(1, GATE + TTL)), NodeRenewal::TooLong { gate: GATE });
    assert_eq!(node.renew(now, &held(2, TTL)), NodeRenewal::Gone { why: GoneReason::NotThere });
    assert_eq!(node.renew(at(3631), &held(1, TTL)), NodeRenewal::Gone { why: GoneReason::NotThere });
}

#[test]
fn a_first_use_needs_every_node_and_waits_out_the_gate() {
    let mut nodes: Vec<NodeModel> =
        (0..3).map(|it| NodeModel::new(format!("run-{it}"), at(0), false)).collect();
    let plan = tend_those(&mut nodes, at(3600), GATE, &[2]);
    assert!(plan.stopped.is_some_and(|why| why.contains("first use")), "one is missing");
    let plan = tend(&mut nodes, at(10), GATE);
    assert!(plan.voting.is_empty() && plan.again_in == Some(GATE - Duration::from_secs(10)), "{plan:?}");
    assert!(plan.stopped.is_some_and(|why| why.contains("gate")));
    let ballot = ballot(1, at(10).as_micros());
    assert_eq!(nodes[0].vote(at(10), &ballot).choice, VoteOutcome::NoVote);
    assert_eq!(tend_those(&mut nodes, at(61), GATE, &[]).voting, [0, 1, 2]);
    // From now on a minority may be missing, and another gate changes nothing.
    let plan = tend_those(&mut nodes, at(62), GATE * 9, &[2]);
    assert_eq!((plan.voting, plan.gate, plan.stopped), (vec![0, 1], GATE, None));
}

#[test]
fn a_first_use_that_was_interrupted_goes_on_and_the_named_gate_counts() {
    let mut nodes: Vec<NodeModel> =
        (0..3).map(|it| NodeModel::new(format!("run-{it}"), at(0), true)).collect();
    let healths: Vec<_> = nodes.iter().map(|node| Some(node.health(at(1)))).collect();
    let first = membership::plan(&healths, Some(GATE)).unwrap();
    let MembershipStep::Mark { node: 0, expected: None, new } = &first.steps[0] else {
        panic!("{:?}", first.steps)
    };
    nodes[0].mark(None, new);
    let plan = tend(&mut nodes, at(2), GATE * 2);
    assert_eq!((plan.voting.len(), plan.gate), (3, GATE * 2), "what syncs every write does not wait");
}

#[test]
fn a_gate_that_is_named_later_counts_as_long_as_no_node_votes() {
    let mut nodes = fresh(3);
    assert_eq!(tend(&mut nodes, at(1), None).gate, membership::GATE);
    assert_eq!(tend(&mut nodes, at(2), GATE).gate, GATE, "it was not named before");
    let plan = tend(&mut nodes, at(3), None);
    assert_eq!((plan.gate, plan.voting.len()), (GATE, 0), "a client that names none keeps it");
    assert_eq!(tend(&mut nodes, at(61), None).voting.len(), 3);
    assert_eq!(tend(&mut nodes, at(62), GATE / 2).gate, GATE, "the nodes vote, so it is settled");
}

/// Servers that have just started.
fn fresh(size: usize) -> Vec<NodeModel> {
    (0..size).map(|number| NodeModel::new(format!("run-{number}"), at(0), false)).collect()
}

/// Does what the founding plan says, at most so many steps.
fn found(nodes: &mut [NodeModel], now: WallTime, most: usize) -> leasehold_core::Result<usize> {
    let mut done = 0;
    while done < most {
        let healths: Vec<_> = nodes.iter().map(|node| Some(node.health(now))).collect();
        let plan = founding::plan(&healths, None)?;
        let Some(step) = plan.steps.into_iter().next() else { break };
        let MembershipStep::Mark { node, expected, new } = step else { panic!("nothing to recover") };
        nodes[node].mark(expected.as_ref(), &new);
        done += 1;
    }
    Ok(done)
}

#[test]
fn founding_makes_new_servers_vote_at_once_wherever_it_was_interrupted() {
    for interrupted_after in 0..=6 {
        let mut nodes = fresh(3);
        found(&mut nodes, at(1), interrupted_after).unwrap();
        let votes = |node: &mut NodeModel| {
            node.vote(at(1), &ballot(1, at(1).as_micros())).choice != VoteOutcome::NoVote
        };
        let voting = nodes.clone().iter_mut().filter_map(|node| votes(node).then_some(())).count();
        assert_eq!(voting, interrupted_after.saturating_sub(3), "no node votes before all have a mark");
        found(&mut nodes, at(2), 99).unwrap();
        assert!(nodes.iter_mut().all(votes), "after {interrupted_after} steps");
        assert_eq!(tend(&mut nodes, at(3), None).gate, membership::GATE);
        assert_eq!(found(&mut nodes, at(4), 99).unwrap(), 0, "there is nothing left to do");
    }
}

#[test]
fn founding_lets_no_node_vote_that_lost_its_data_after_another_one_voted() {
    let losses: [fn(&mut NodeModel); 3] = [
        NodeModel::forget,
        |node| node.restart("again", at(2)),
        |node| {
            node.forget();
            node.restart("again", at(2));
        },
    ];
    for (number, lose) in losses.into_iter().enumerate() {
        let mut nodes = fresh(3);
        found(&mut nodes, at(1), 99).unwrap();
        lose(&mut nodes[0]);
        let why = found(&mut nodes, at(3), 99).unwrap_err().to_string();
        assert!(why.contains("node 1 may have forgotten"), "{number}: {why}");
        let plan = tend(&mut nodes, at(3), None);
        assert_eq!((plan.voting.len(), plan.stopped), (2, None), "{number}");
        let why = found(&mut nodes, at(4), 99).unwrap_err().to_string();
        assert!(why.contains("node 1 may have forgotten"), "quarantined, {number}: {why}");
        assert_eq!(tend(&mut nodes, at(2 + 599), None).voting.len(), 2, "{number}");
        assert_eq!(tend(&mut nodes, at(4 + 600), None).voting.len(), 3, "after the gate, {number}");
    }
}

#[test]
fn founding_needs_every_node() {
    let nodes = fresh(3);
    let mut healths: Vec<_> = nodes.iter().map(|node| Some(node.health(at(1)))).collect();
    healths[1] = None;
    let error = founding::plan(&healths, None).unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Unavailable);
    assert!(error.to_string().contains("1 do not answer"), "{error}");
}

#[test]
fn a_new_set_names_the_remedy_while_it_waits() {
    let why = tend(&mut fresh(3), at(1), None).stopped.expect("it waits");
    for remedy in ["leasehold redlock found", "uptime_gate", "appendfsync always"] {
        assert!(why.contains(remedy), "{remedy}: {why}");
    }
}

#[test]
fn a_node_that_forgot_waits_out_the_gate_then_reads_a_majority() {
    let mut nodes = set(5);
    let now = at(4000);
    let ahead = now.as_micros() + 9_000_000;
    for node in &mut nodes[..3] {
        node.vote(now, &ballot(1, ahead));
    }
    nodes[2].restart("run-2b", at(4001));
    nodes[2].forget();
    assert_eq!(tend(&mut nodes, at(4001), GATE).voting, [0, 1, 3, 4]);
    let next = ballot(2, at(4001).as_micros());
    assert_eq!(nodes[2].vote(at(4001), &next).choice, VoteOutcome::NoVote, "the classic double grant");
    assert_eq!(tend(&mut nodes, at(4060), GATE).voting.len(), 4);
    assert_eq!(tend(&mut nodes, at(4061), GATE).voting.len(), 5);
    assert!(number(&nodes[2].vote(at(4061), &next).choice) > ahead, "it was told what it had accepted");
}

#[test]
fn a_log_that_was_cut_short_is_noticed_by_the_run() {
    let mut nodes = set(3);
    nodes[0].restart("run-0b", at(4000));
    nodes[0].forget_all_but_the_mark();
    let plan = tend(&mut nodes, at(4010), GATE);
    assert_eq!((plan.voting.len(), plan.again_in), (2, Some(GATE - Duration::from_secs(10))));
}

#[test]
fn what_syncs_every_write_votes_again_at_once() {
    let mut nodes: Vec<NodeModel> =
        (0..3).map(|it| NodeModel::new(format!("run-{it}"), at(0), true)).collect();
    tend(&mut nodes, at(1), GATE);
    nodes[1].restart("run-1b", at(2));
    assert_eq!(tend(&mut nodes, at(2), GATE).voting.len(), 3);
    nodes[1].restart("run-1c", at(3));
    nodes[1].forget();
    assert_eq!(tend(&mut nodes, at(3), GATE).voting.len(), 2, "but not if it was emptied");
}

#[test]
fn a_majority_that_forgot_stops_everything() {
    let mut nodes = set(3);
    for (number, node) in nodes[..2].iter_mut().enumerate() {
        node.restart(format!("again-{number}"), at(4000));
        node.forget();
    }
    let why = tend(&mut nodes, at(4001), GATE).stopped.expect("it stops");
    assert!(why.contains("2 of 3") && why.contains("lock:v1:birth"), "{why}");
    assert!(tend(&mut nodes, at(9000), GATE).stopped.is_some(), "time does not heal it");
}

#[test]
fn what_is_no_set_is_refused() {
    let refusal = |healths: &[Option<_>]| membership::plan(healths, Some(GATE)).unwrap_err().to_string();
    let nodes = set(5);
    let healths: Vec<_> = nodes.iter().map(|node| Some(node.health(at(3600)))).collect();
    assert!(refusal(&healths[..2]).contains("at least 3"));
    assert!(refusal(&healths[..3]).contains("a set of 5"));
    let twice = [healths[0].clone(), healths[1].clone(), healths[0].clone(), None, None];
    assert!(refusal(&twice).contains("1 and 3 are the same server"));
    let mut other = NodeModel::new("stranger", at(0), true);
    let mark = BirthMark {
        set: "other".into(),
        size: 5,
        gate: GATE,
        run: "stranger".into(),
        durable: true,
        standing: VoterStatus::Voting,
    };
    other.mark(None, &mark);
    let mixed = [healths[0].clone(), Some(other.health(at(1))), None, None, None];
    assert!(refusal(&mixed).contains("different sets"));
}

#[test]
fn joining_a_grant_takes_the_lock_and_accepts_no_number() {
    let mut node = set(3).remove(0);
    let (now, token) = (at(3600), at(0).as_micros());
    // However old the token is: the lease may have been held for hours.
    assert_eq!(number(&node.join(now, &ballot(1, token)).choice), token);
    assert_eq!(node.stored(now), (1, 0, 0), "there is a lock and no register");
    assert!(matches!(node.join(now, &ballot(2, token)).choice, VoteOutcome::Held { .. }));
    assert!(node.undo(now, &undo(1)));
    let proposal = now.as_micros();
    assert_eq!(number(&node.vote(now, &ballot(2, proposal)).choice), proposal);
    assert_eq!(
        number(&node.join(now, &ballot(2, proposal - 9)).choice),
        proposal - 9,
        "the grant's token is named"
    );
    assert!(node.undo(now, &undo(2)));
    assert_eq!(number(&node.vote(now, &ballot(1, proposal)).choice), proposal + 1, "and the register stands");
}
