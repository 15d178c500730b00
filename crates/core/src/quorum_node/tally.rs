//! How a client counts votes and renewals. Pure: the client asks again after each reply.
//!
//! `decide` looks at the votes in this order:
//!
//! 1. A tombstone on any node: `Cancelled`.
//! 2. A majority accepted the same number for us: `Granted`.
//! 3. A majority of locks is ours, with different numbers: `Claim` the greatest number on all of them.
//! 4. A majority is still possible: `Wait`.
//! 5. Nodes refused the ttl (`TooLong`), the proposal (`Propose` another), did not answer (`Unreachable`) or have no vote
//!    (`Stopped`).
//! 6. The votes are split between attempts: the one with most votes keeps them, the others give theirs back. ADR 0017.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use super::{AttemptId, NodeRenewal, NodeView, Vote, VoteOutcome};
use crate::{
    clock::WallTime,
    token::FencingToken,
    verdict::{ForeignLock, GoneReason, HeldBy},
};

/// The smallest majority of this many nodes.
pub fn majority(size: usize) -> usize {
    size / 2 + 1
}

/// The reply of one node to a vote request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAnswer {
    /// It has not replied yet.
    Pending,
    /// Its vote.
    Vote(Vote),
    /// The request failed, or took too long.
    Silent,
}

/// What the client does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Wait for more replies.
    Wait,
    /// A majority has accepted the same number for this owner.
    Granted {
        /// The number.
        token: FencingToken,
        /// How long a majority of the locks lasts, at least.
        remaining: Duration,
    },
    /// This owner has a majority of the locks, with different numbers: claim the greatest number on all of them.
    Claim {
        /// The greatest number.
        number: FencingToken,
    },
    /// For too many nodes the proposal is too far from their clocks: propose the median of the clocks.
    Propose {
        /// The median of the clocks.
        clock: WallTime,
    },
    /// No attempt has a majority, and this one has the most votes: keep them, and ask the other nodes again.
    Contested,
    /// Another owner, or a lock of another program, has a majority, or more votes than this one.
    Blocked {
        /// The other holder, if a node named it.
        by: Option<Box<HeldBy>>,
        /// The lock of another program, if that is in the way.
        foreign: Option<Box<ForeignLock>>,
    },
    /// The claim was cancelled: its owner has a tombstone.
    Cancelled,
    /// The ttl is longer than the gate.
    TooLong {
        /// The longest ttl that is allowed.
        gate: Duration,
    },
    /// So many nodes have no vote that the others are not a majority.
    Stopped {
        /// How many nodes have no vote.
        abstain: usize,
    },
    /// So many nodes did not reply that the others are not a majority.
    Unreachable {
        /// How many nodes did not reply.
        silent: usize,
    },
}

/// Decides after some replies to a vote request. `answers` has one entry for each node; `ours` is the attempt that asks.
pub fn decide(answers: &[NodeAnswer], ours: AttemptId) -> Decision {
    let needed = majority(answers.len());
    let count = VoteCount::of(answers);
    if count.cancelled {
        return Decision::Cancelled;
    }
    if let Some((token, remaining)) = agreed(&count.yours, needed) {
        return Decision::Granted { token, remaining };
    }
    let (yours, pending) = (count.yours.len(), count.pending);
    if yours >= needed {
        let number = count.yours.iter().map(|(number, _)| *number).max();
        return number.map_or(Decision::Wait, |number| Decision::Claim { number });
    }
    if yours + pending >= needed {
        return Decision::Wait;
    }
    if let Some(gate) = count.gate {
        return Decision::TooLong { gate };
    }
    if yours + count.far + pending >= needed && count.far > 0 {
        return match median(&count.clocks, needed) {
            Some(clock) => Decision::Propose { clock },
            None => Decision::Wait,
        };
    }
    if count.silent > answers.len() - needed {
        return Decision::Unreachable { silent: count.silent };
    }
    if count.abstain > answers.len() - needed {
        return Decision::Stopped { abstain: count.abstain };
    }
    count.resolve_split(ours, needed)
}

#[derive(Default)]
struct VoteCount<'a> {
    yours: Vec<(FencingToken, Duration)>,
    rivals: BTreeMap<AttemptId, Vec<&'a HeldBy>>,
    foreign: Vec<&'a ForeignLock>,
    clocks: Vec<WallTime>,
    gate: Option<Duration>,
    cancelled: bool,
    far: usize,
    free: usize,
    abstain: usize,
    silent: usize,
    pending: usize,
}

impl<'a> VoteCount<'a> {
    fn of(answers: &'a [NodeAnswer]) -> VoteCount<'a> {
        let mut count = VoteCount::default();
        for answer in answers {
            match answer {
                NodeAnswer::Pending => count.pending += 1,
                NodeAnswer::Silent => count.silent += 1,
                NodeAnswer::Vote(vote) => count.add(vote),
            }
        }
        count
    }

    fn add(&mut self, vote: &'a Vote) {
        self.clocks.push(vote.now);
        match &vote.choice {
            VoteOutcome::Yours { number, remaining } => self.yours.push((*number, *remaining)),
            VoteOutcome::Held { by, attempt } => self.rivals.entry(*attempt).or_default().push(by),
            VoteOutcome::Foreign(lock) => self.foreign.push(lock),
            VoteOutcome::Free => self.free += 1,
            VoteOutcome::Cancelled => self.cancelled = true,
            VoteOutcome::Far => self.far += 1,
            VoteOutcome::TooLong { gate } => {
                self.gate = Some(self.gate.map_or(*gate, |known| known.max(*gate)));
            }
            VoteOutcome::NoVote => self.abstain += 1,
        }
    }

    /// Step 6: the votes are split. The attempt with the most votes keeps them, and the older one if two have as many; all
    /// others give theirs back. All clients follow the same rule, so one of them wins soon.
    fn resolve_split(self, ours: AttemptId, needed: usize) -> Decision {
        let unseen = self.silent + self.pending + self.abstain;
        let foreign = group_foreign(self.foreign.iter().copied()).into_iter().next();
        let leader = self.rivals.into_iter().max_by_key(|(id, votes)| (votes.len(), Reverse(*id)));
        let (votes, id, blocked) = match (leader, foreign) {
            // A lock of another program never gives way, so it comes before an attempt with as many nodes.
            (Some((id, votes)), _) if votes.len() > self.foreign.len() => {
                let by = merge_views(&votes, needed).map(Box::new);
                (votes.len(), id, Decision::Blocked { by, foreign: None })
            }
            (_, Some(all)) => {
                let foreign = Some(Box::new(merge_foreign(&all, needed)));
                (self.foreign.len(), AttemptId(0), Decision::Blocked { by: None, foreign })
            }
            // There is no other attempt. Some of our own locks have expired since we began to ask.
            _ if self.yours.is_empty() => return Decision::Blocked { by: None, foreign: None },
            _ => return Decision::Contested,
        };
        let ahead = (self.yours.len(), Reverse(ours)) > (votes, Reverse(id));
        if ahead && votes + unseen < needed { Decision::Contested } else { blocked }
    }
}

/// The number that a majority accepted, and how long a majority of these locks lasts.
fn agreed(yours: &[(FencingToken, Duration)], needed: usize) -> Option<(FencingToken, Duration)> {
    let mut by_number: BTreeMap<FencingToken, Vec<Duration>> = BTreeMap::new();
    yours.iter().for_each(|(number, remaining)| by_number.entry(*number).or_default().push(*remaining));
    let (number, remaining) = by_number.into_iter().find(|(_, all)| all.len() >= needed)?;
    Some((number, nth_longest(remaining, needed)))
}

/// How long at least `needed` of these durations last.
fn nth_longest(mut all: Vec<Duration>, needed: usize) -> Duration {
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.get(needed - 1).copied().unwrap_or_default()
}

/// The median of the clocks of at least a majority, so that a minority of wrong clocks cannot move it far.
fn median(clocks: &[WallTime], needed: usize) -> Option<WallTime> {
    let mut sorted = clocks.to_vec();
    sorted.sort_unstable();
    (sorted.len() >= needed).then(|| sorted[sorted.len() / 2])
}

/// The result of renewing one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalDecision {
    /// A majority renewed it.
    Renewed {
        /// The token of the grant.
        token: FencingToken,
        /// How long a majority of the locks lasts, at least.
        remaining: Duration,
    },
    /// No majority has it any more.
    Gone {
        /// The reason.
        why: GoneReason,
    },
    /// The ttl is longer than the gate.
    TooLong {
        /// The longest ttl that is allowed.
        gate: Duration,
    },
    /// Too few nodes replied to decide.
    Unreachable,
}

/// Decides after some replies to a renewal. In `answers`, `None` is a node that has not replied yet, and `Some(None)` one that
/// failed. Returns `None` while more replies could change the result. `known` is the token that this client remembers.
pub fn decide_renewal(
    answers: &[Option<Option<NodeRenewal>>],
    known: Option<FencingToken>,
) -> Option<RenewalDecision> {
    let needed = majority(answers.len());
    let (mut kept, mut gone, mut why) = (Vec::new(), 0, GoneReason::NotThere);
    let pending = answers.iter().filter(|answer| answer.is_none()).count();
    for answer in answers.iter().copied().flatten().flatten() {
        match answer {
            NodeRenewal::Renewed { number, remaining } => kept.push((number, remaining)),
            NodeRenewal::Gone { why: GoneReason::NotThere } => gone += 1,
            NodeRenewal::Gone { why: other } => (gone, why) = (gone + 1, other),
            NodeRenewal::TooLong { gate } => return Some(RenewalDecision::TooLong { gate }),
        }
    }
    if kept.len() >= needed {
        let remaining = nth_longest(kept.iter().map(|(_, remaining)| *remaining).collect(), needed);
        let token = token(kept.iter().map(|(number, _)| *number), known, needed);
        return token.map(|token| RenewalDecision::Renewed { token, remaining });
    }
    if gone > answers.len() - needed {
        return Some(RenewalDecision::Gone { why });
    }
    (pending == 0).then_some(RenewalDecision::Unreachable)
}

/// The token of a grant, chosen from the numbers that the nodes report:
///
/// 1. The number that a majority reports.
/// 2. Otherwise the token that this client remembers, if a node reports it.
/// 3. Otherwise the number that most nodes report; among equals, the lowest.
///
/// A majority has accepted the token. But a node that missed it may report another number, lower or higher, and too few
/// other nodes may reply to outvote it. The client that was granted the lease remembers the token, and corrects such nodes
/// with each renewal. Any other client has to guess.
fn token(
    numbers: impl Iterator<Item = FencingToken>,
    known: Option<FencingToken>,
    needed: usize,
) -> Option<FencingToken> {
    let mut counts: BTreeMap<FencingToken, usize> = BTreeMap::new();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    let known = known.filter(|known| counts.contains_key(known));
    let (most, count) = counts.into_iter().max_by_key(|(number, count)| (*count, Reverse(*number)))?;
    Some(if count < needed { known.unwrap_or(most) } else { most })
}

/// Whether a released owner held the lease: on a majority, counting the nodes that did not reply as yes.
/// `None` is a node that did not reply.
pub fn was_there(answers: &[Option<bool>]) -> bool {
    let there = answers.iter().filter(|answer| **answer == Some(true)).count();
    let unknown = answers.iter().filter(|answer| answer.is_none()).count();
    there > 0 && there + unknown >= majority(answers.len())
}

/// The holder that a majority of the nodes reports, and the greatest number that any node accepted. `None` is a node that
/// did not reply.
pub fn majority_view(views: &[Option<NodeView>]) -> (Option<HeldBy>, Option<FencingToken>) {
    let needed = majority(views.len());
    let seen = || views.iter().flatten();
    let last = seen().filter_map(|view| view.last).max();
    let mut by_attempt: BTreeMap<AttemptId, Vec<&HeldBy>> = BTreeMap::new();
    seen().filter_map(|view| view.held.as_ref()).for_each(|(by, attempt)| {
        by_attempt.entry(*attempt).or_default().push(by);
    });
    let holder = by_attempt.into_values().find(|all| all.len() >= needed);
    (holder.and_then(|all| merge_views(&all, needed)), last)
}

/// The locks of other programs that keep every claim from a majority, the one on most nodes first. The `form` says on how many
/// nodes each is. Empty if a majority of the nodes is left without them. `None` is a node that did not reply.
pub fn foreign_view(views: &[Option<NodeView>]) -> Vec<ForeignLock> {
    let needed = majority(views.len());
    let found = || views.iter().flatten().filter_map(|view| view.foreign.as_ref());
    if views.len() - found().count() >= needed {
        return Vec::new();
    }
    let with_count = |all: Vec<&ForeignLock>| {
        let mut lock = merge_foreign(&all, needed);
        lock.form = format!("{} on {} of {} nodes", lock.form, all.len(), views.len());
        lock
    };
    group_foreign(found()).into_iter().map(with_count).collect()
}

/// Locks of other programs with the same value, the one on most nodes first.
fn group_foreign<'a>(found: impl Iterator<Item = &'a ForeignLock>) -> Vec<Vec<&'a ForeignLock>> {
    let mut groups: Vec<Vec<&ForeignLock>> = Vec::new();
    for lock in found {
        match groups.iter_mut().find(|group| group[0].value_hash == lock.value_hash) {
            Some(group) => group.push(lock),
            None => groups.push(vec![lock]),
        }
    }
    groups.sort_by_key(|group| Reverse(group.len()));
    groups
}

/// Merges what several nodes report of one lock, which is not empty. It lasts for as long as `needed` of the nodes have it, or
/// all of them if there are fewer.
fn merge_foreign(all: &[&ForeignLock], needed: usize) -> ForeignLock {
    let lasting = |lock: &&ForeignLock| lock.remaining.unwrap_or(Duration::MAX);
    let remaining = nth_longest(all.iter().map(lasting).collect(), needed.min(all.len()));
    all[0].clone().expiring(Some(remaining).filter(|remaining| *remaining < Duration::MAX))
}

/// Merges what several nodes report of one holder. A node that was unreachable at the grant may have joined later, and its
/// lock lasts longer. The holder lasts for as long as `needed` of the nodes have it, or all of them if there are fewer.
fn merge_views(seen: &[&HeldBy], needed: usize) -> Option<HeldBy> {
    let mut by = (*seen.first()?).clone();
    by.token = token(seen.iter().map(|by| by.token), None, needed).unwrap_or(by.token);
    by.remaining = nth_longest(seen.iter().map(|by| by.remaining).collect(), needed.min(seen.len()));
    by.held_for = seen.iter().map(|by| by.held_for).max().unwrap_or_default();
    Some(by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Holder;
    use std::sync::Arc;

    fn vote(choice: VoteOutcome) -> NodeAnswer {
        NodeAnswer::Vote(Vote { now: WallTime::from_micros(1_000), choice })
    }

    fn yours(number: u64) -> NodeAnswer {
        vote(VoteOutcome::Yours {
            number: FencingToken::new(number).unwrap(),
            remaining: Duration::from_secs(number),
        })
    }

    fn held(attempt: u64) -> NodeAnswer {
        let by = HeldBy::new(Arc::new(Holder::new("h", 1, "")), FencingToken::new(1).unwrap(), 1);
        vote(VoteOutcome::Held { by: Box::new(by), attempt: AttemptId(attempt) })
    }

    fn decided(answers: &[NodeAnswer]) -> Decision {
        decide(answers, AttemptId(5))
    }

    #[test]
    fn a_majority_with_one_number_is_a_grant_whatever_the_others_say() {
        use NodeAnswer::{Pending, Silent};
        for others in [[Pending, Pending], [Silent, held(1)], [yours(9), Pending]] {
            let answers = [vec![yours(7), yours(7), yours(7)], others.to_vec()].concat();
            let token = FencingToken::new(7).unwrap();
            assert_eq!(decided(&answers), Decision::Granted { token, remaining: Duration::from_secs(7) });
        }
    }

    #[test]
    fn different_numbers_are_claimed_again_with_the_greatest() {
        let answers = [yours(7), yours(9), yours(7), NodeAnswer::Pending, NodeAnswer::Pending];
        assert_eq!(decided(&answers), Decision::Claim { number: FencingToken::new(9).unwrap() });
    }

    #[test]
    fn in_a_split_vote_one_side_goes_on_and_the_others_yield() {
        let split = |mine: usize, rival: u64| {
            let theirs = 3 - mine;
            let answers = [vec![yours(7); mine], vec![held(rival); theirs]].concat();
            decided(&answers)
        };
        // Three nodes, one each: nobody has more, so the lower attempt goes on.
        let three = |rivals: [u64; 2]| decided(&[yours(7), held(rivals[0]), held(rivals[1])]);
        assert_eq!(three([8, 9]), Decision::Contested);
        assert!(matches!(three([8, 2]), Decision::Blocked { by: Some(_), .. }));
        assert!(matches!(split(1, 9), Decision::Blocked { by: Some(_), .. }), "the rival has a majority");
        // Two of five, two of a rival, one that does not answer: the rival may have that one.
        let answers = [yours(7), yours(7), held(9), held(9), NodeAnswer::Silent];
        assert!(matches!(decided(&answers), Decision::Blocked { .. }));
    }

    fn foreign(value: &[u8], seconds: Option<u64>) -> ForeignLock {
        let lock = ForeignLock::new("key", "hash", crate::ValueHash::of(value));
        lock.expiring(seconds.map(Duration::from_secs))
    }

    #[test]
    fn a_lock_of_another_program_blocks_when_no_majority_is_left() {
        let other = |seconds| vote(VoteOutcome::Foreign(Box::new(foreign(b"a", seconds))));
        let blocked_by = |answers: &[NodeAnswer]| match decided(answers) {
            Decision::Blocked { by: None, foreign: Some(lock) } => *lock,
            decision => panic!("{decision:?}"),
        };
        assert_eq!(
            blocked_by(&[other(None), other(Some(5)), yours(7)]).remaining,
            Some(Duration::from_secs(5))
        );
        assert_eq!(blocked_by(&[other(None), other(None), yours(7)]).remaining, None);
        assert_eq!(blocked_by(&[other(None), held(3), NodeAnswer::Silent]), foreign(b"a", None));
        assert!(matches!(decided(&[other(None), yours(7), yours(7)]), Decision::Granted { .. }));
    }

    #[test]
    fn locks_of_other_programs_are_shown_with_the_number_of_their_nodes() {
        let view =
            |foreign| Some(NodeView { now: WallTime::from_micros(1), held: None, foreign, last: None });
        let on = |values: &[Option<&str>]| {
            let lock = |value: &str| foreign(value.as_bytes(), None);
            let views: Vec<_> = values.iter().map(|value| view(value.map(lock))).collect();
            foreign_view(&views).into_iter().map(|lock| lock.form).collect::<Vec<_>>()
        };
        assert_eq!(on(&[Some("a"), Some("a"), None]), ["hash on 2 of 3 nodes"]);
        assert_eq!(on(&[Some("b"), Some("a"), Some("a")]), ["hash on 2 of 3 nodes", "hash on 1 of 3 nodes"]);
        assert!(on(&[Some("a"), None, None]).is_empty(), "a majority is left");
    }

    #[test]
    fn a_blocked_claim_is_told_how_long_a_majority_holds_and_not_what_one_node_reports() {
        let since = |held_for: u64, remaining: u64| {
            let mut answer = held(3);
            if let NodeAnswer::Vote(Vote { choice: VoteOutcome::Held { by, .. }, .. }) = &mut answer {
                by.held_for = Duration::from_secs(held_for);
                by.remaining = Duration::from_secs(remaining);
            }
            answer
        };
        // The first was away when the others granted it, and has it since the claim was repeated, with a longer ttl.
        let (late, other) = (since(1, 90), since(8, 2));
        let two_silent =
            [vec![NodeAnswer::Silent; 2], vec![late.clone(), other.clone(), other.clone()]].concat();
        let all_answer = [vec![late.clone()], vec![other.clone(); 4]].concat();
        for answers in [two_silent, all_answer, vec![late, other, NodeAnswer::Pending]] {
            let Decision::Blocked { by: Some(by), .. } = decided(&answers) else {
                panic!("{answers:?} is blocked")
            };
            assert_eq!((by.held_for, by.remaining), (Duration::from_secs(8), Duration::from_secs(2)));
        }
    }

    #[test]
    fn silence_and_amnesia_of_a_majority_are_told_apart() {
        use NodeAnswer::Silent;
        let no_vote = || vote(VoteOutcome::NoVote);
        let answers = [yours(7), yours(7), Silent, Silent, Silent];
        assert_eq!(decided(&answers), Decision::Unreachable { silent: 3 });
        let answers = [yours(7), yours(7), no_vote(), no_vote(), no_vote()];
        assert_eq!(decided(&answers), Decision::Stopped { abstain: 3 });
    }

    #[test]
    fn the_median_of_a_majority_is_proposed_once_it_is_known() {
        let far = |now| NodeAnswer::Vote(Vote { now: WallTime::from_micros(now), choice: VoteOutcome::Far });
        let answers = [far(10), NodeAnswer::Pending, far(30), NodeAnswer::Pending, far(9_999)];
        assert_eq!(decided(&answers), Decision::Propose { clock: WallTime::from_micros(30) });
        let answers = [far(10), NodeAnswer::Pending, far(30), NodeAnswer::Pending, NodeAnswer::Pending];
        assert_eq!(decided(&answers), Decision::Wait);
    }

    #[test]
    fn a_renewal_needs_a_majority_and_says_how_long_that_lasts() {
        let keeps = |seconds| {
            let number = FencingToken::new(3).unwrap();
            Some(Some(NodeRenewal::Renewed { number, remaining: Duration::from_secs(seconds) }))
        };
        let gone = Some(Some(NodeRenewal::Gone { why: GoneReason::NotThere }));
        let outcome = decide_renewal(&[keeps(9), keeps(5), keeps(7), gone, None], None);
        assert!(
            matches!(outcome, Some(RenewalDecision::Renewed { remaining, .. }) if remaining == Duration::from_secs(5))
        );
        assert_eq!(
            decide_renewal(&[gone, gone, gone, None, None], None),
            Some(RenewalDecision::Gone { why: GoneReason::NotThere })
        );
        assert_eq!(decide_renewal(&[keeps(1), gone, gone, None, None], None), None);
        assert_eq!(
            decide_renewal(&[keeps(1), gone, gone, Some(None), Some(None)], None),
            Some(RenewalDecision::Unreachable)
        );
    }

    #[test]
    fn the_token_is_what_a_majority_names_else_what_is_remembered_else_what_most_name() {
        let named = |numbers: &[u64], known: Option<u64>| {
            let number = |it: u64| FencingToken::new(it).unwrap();
            token(numbers.iter().map(|it| number(*it)), known.map(number), 3).unwrap().get()
        };
        assert_eq!(named(&[7, 7, 7], Some(5)), 7, "what is remembered is of an earlier grant");
        assert_eq!(named(&[5, 7, 7], Some(5)), 5, "two have not heard of it yet");
        assert_eq!(named(&[7, 7, 8], Some(5)), 7, "nobody has it any more");
        assert_eq!(named(&[5, 7, 7], None), 7);
        assert_eq!(named(&[5, 5, 7, 7], None), 5);
    }

    #[test]
    fn a_release_ended_a_holder_if_a_majority_may_have_had_it() {
        assert!(was_there(&[Some(true), Some(true), Some(true), Some(false), None]));
        assert!(was_there(&[Some(true), Some(true), None, Some(false), Some(false)]));
        assert!(!was_there(&[Some(true), Some(false), Some(false), Some(false), None]));
        assert!(!was_there(&[None, None, None, Some(false), Some(false)]));
    }
}
