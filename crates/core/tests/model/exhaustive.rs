//! Every short sequence of verbs, not just likely ones.

use std::time::Duration;

use leasehold_core::{
    Eviction, Handover, OperatorAction, OperatorCommand, ReleaseRequest, RenewRequest, Share, Verdict,
};

use crate::both::{Both, claim, owner, reference, resource};

#[derive(Clone, Copy, Debug)]
enum Move {
    Acquire(u8),
    Queue(u8),
    Succeed { successor: u8, from: u8, tombstone: bool },
    Renew(u8),
    Leave(u8),
    Cancel(u8),
    Close(u8),
    Order(OperatorAction),
    Pass(u64),
}

const OWNERS: u8 = 3;
/// Two moments long, so that one may pass before it ends.
const TTL: Duration = Duration::from_secs(2);

impl Move {
    /// The owners it names, in order.
    fn owners(self) -> [Option<u8>; 2] {
        match self {
            Move::Succeed { successor, from, .. } => [Some(from), Some(successor)],
            Move::Order(_) | Move::Pass(_) => [None, None],
            Move::Acquire(owner)
            | Move::Queue(owner)
            | Move::Renew(owner)
            | Move::Leave(owner)
            | Move::Cancel(owner)
            | Move::Close(owner) => [Some(owner), None],
        }
    }

    fn play(self, both: &mut Both, share: Share) {
        match self {
            Move::Acquire(owner) => drop(both.acquire(&claim(owner, share, TTL))),
            Move::Queue(owner) => drop(both.acquire(&claim(owner, share, TTL).queued())),
            Move::Succeed { successor, from, tombstone } => {
                let mut from = Handover::from(owner(from));
                from.tombstone = tombstone.then_some(TTL);
                both.acquire(&claim(successor, share, TTL).queued().taking_over(from));
            }
            Move::Renew(owner) => drop(both.renew(&RenewRequest::new(reference(owner), TTL))),
            Move::Leave(owner) => drop(both.release(&ReleaseRequest::new(reference(owner)))),
            Move::Cancel(owner) => {
                both.release(&ReleaseRequest::new(reference(owner)).with_tombstone(TTL));
            }
            Move::Close(owner) => drop(both.release(&ReleaseRequest::new(reference(owner)).keeping(TTL))),
            Move::Order(command) => {
                both.order(&OperatorCommand::new(resource(), command, "someone", "somehow"));
            }
            Move::Pass(seconds) => both.pass(Duration::from_secs(seconds)),
        }
    }
}

/// Plays every sequence of up to `depth` moves, and counts them. Owners are alike: a new one is always the next.
fn explore(both: &Both, moves: &[Move], share: Share, depth: usize, known: u8) -> u64 {
    if depth == 0 {
        return 1;
    }
    let mut count = 0;
    for step in moves {
        let newcomer = |known: u8, owner: Option<u8>| match owner {
            Some(owner) if owner > known => None,
            Some(owner) if owner == known => Some(known + 1),
            _ => Some(known),
        };
        let [first, second] = step.owners();
        let Some(known) = newcomer(known, first).and_then(|known| newcomer(known, second)) else { continue };
        let mut next = both.clone();
        step.play(&mut next, share);
        count += explore(&next, moves, share, depth - 1, known);
    }
    count
}

fn each(make: impl Fn(u8) -> Move) -> Vec<Move> {
    (0..OWNERS).map(make).collect()
}

#[test]
fn every_short_story_of_a_mutex() {
    let moves = [each(Move::Acquire), each(Move::Queue), each(Move::Leave), vec![Move::Pass(1)]].concat();
    let count = explore(&Both::new(), &moves, Share::WHOLE, 6, 0);
    assert!(count > 100_000, "{count} stories");
}

#[test]
fn every_short_sequence_with_handovers_tombstones_and_commands() {
    let mut moves = [each(Move::Queue), each(Move::Renew), each(Move::Leave), each(Move::Cancel)].concat();
    moves.extend(each(Move::Close));
    for (successor, from) in [(1, 0), (0, 1), (2, 0), (2, 1)] {
        moves.extend([true, false].map(|tombstone| Move::Succeed { successor, from, tombstone }));
    }
    moves.extend([OperatorAction::Pause { lasting: TTL }, OperatorAction::Resume].map(Move::Order));
    moves.extend([Eviction::AtExpiry, Eviction::Now].map(|how| Move::Order(OperatorAction::Evict(how))));
    moves.extend([Move::Pass(1), Move::Pass(2)]);
    for share in [Share::WHOLE, Share::READ, Share::WRITE] {
        let count = explore(&Both::new(), &moves, share, 4, 0);
        assert!(count > 50_000, "{count} stories");
    }
}

#[test]
fn every_short_story_of_permits() {
    let moves =
        [each(Move::Acquire), each(Move::Queue), each(Move::Leave), each(Move::Renew), vec![Move::Pass(1)]];
    let moves = moves.concat();
    for (weight, capacity) in [(1, 2), (2, 3)] {
        let count = explore(&Both::new(), &moves, Share::new(weight, capacity).unwrap(), 5, 0);
        assert!(count > 50_000, "{count} stories");
    }
}

/// The first of the queue is granted first, in every interleaving of two owners that wait and one that leaves.
#[test]
fn in_every_interleaving_the_first_of_the_queue_is_granted_first() {
    let moves = [Move::Queue(1), Move::Queue(2), Move::Leave(0), Move::Acquire(2)];
    let mut stack = vec![(Both::new(), Vec::<Move>::new())];
    stack[0].0.acquire(&claim(0, Share::WHOLE, Duration::from_secs(60)));
    while let Some((both, story)) = stack.pop() {
        if story.len() == 6 {
            continue;
        }
        for step in moves {
            let mut next = both.clone();
            let line_before = next.look().queue;
            let before = next.look().holder_count;
            step.play(&mut next, Share::WHOLE);
            let granted = next.look().holder_count > before;
            let first = line_before.first().map(|place| place.holder.pid);
            if let (true, Some(first)) = (granted, first) {
                let by = next.look().holders[0].holder.pid;
                assert_eq!(by, first, "{story:?} then {step:?}");
            }
            let mut story = story.clone();
            story.push(step);
            stack.push((next, story));
        }
    }
    let mut both = Both::new();
    assert!(matches!(both.acquire(&claim(0, Share::WHOLE, TTL)), Verdict::Granted(_)));
}
