//! What one node answers, as a pure state machine.
//!
//! This is the specification of a [node](super::QuorumNode). A node in memory is this behind a mutex; the Lua scripts
//! of a Redis node repeat it, and one test compares the two. It takes `now`, the node's own calendar clock, and never
//! reads one: a node's clock may jump, and then what it judges by that clock jumps with it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    AttemptId, BirthMark, Health, NodeEntry, NodePage, NodeRenewal, NodeView, RETENTION, SKEW_MAX,
    UndoRequest, Vote, VoteOutcome, VoteRequest, VoterStatus,
};
use crate::{
    claim::{Holder, RenewRequest},
    clock::WallTime,
    resource::Resource,
    token::{FencingToken, OwnerToken},
    verdict::{GoneReason, HeldBy},
};

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeModel {
    run: String,
    started: WallTime,
    durable: bool,
    mark: Option<BirthMark>,
    locks: BTreeMap<Resource, Lock>,
    registers: BTreeMap<Resource, Register>,
    graves: BTreeMap<(Resource, OwnerToken, Option<AttemptId>), WallTime>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lock {
    owner: OwnerToken,
    attempt: AttemptId,
    number: FencingToken,
    since: WallTime,
    ends: WallTime,
    holder: Arc<Holder>,
    note: Option<Arc<[u8]>>,
}

/// The last number that a node accepted, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Register {
    last: FencingToken,
    owner: Option<OwnerToken>,
    ends: WallTime,
}

impl NodeModel {
    /// A server that just started, with nothing on its disk.
    pub fn new(run: impl Into<String>, now: WallTime, durable: bool) -> NodeModel {
        NodeModel {
            run: run.into(),
            started: now,
            durable,
            mark: None,
            locks: BTreeMap::new(),
            registers: BTreeMap::new(),
            graves: BTreeMap::new(),
        }
    }

    /// The server starts again, with what it had.
    pub fn restart(&mut self, run: impl Into<String>, now: WallTime) {
        (self.run, self.started) = (run.into(), now);
    }

    /// All that was stored is gone, the mark included.
    pub fn forget(&mut self) {
        self.mark = None;
        self.locks.clear();
        self.registers.clear();
        self.graves.clear();
    }

    /// What is stored about resources is gone, and the mark is not: a log that was cut short.
    pub fn forget_all_but_the_mark(&mut self) {
        let mark = self.mark.take();
        self.forget();
        self.mark = mark;
    }

    /// How many locks, registers and tombstones are stored: for tests that look for what was left behind.
    pub fn stored(&mut self, now: WallTime) -> (usize, usize, usize) {
        self.settle(now);
        (self.locks.len(), self.registers.len(), self.graves.len())
    }

    fn settle(&mut self, now: WallTime) {
        self.locks.retain(|_, lock| lock.ends > now);
        self.registers.retain(|_, register| register.ends > now);
        self.graves.retain(|_, ends| *ends > now);
    }

    /// The verb `health`.
    pub fn health(&self, now: WallTime) -> Health {
        Health {
            run: self.run.clone(),
            now,
            uptime: since(self.started, now),
            durable: self.durable,
            mark: self.mark.clone(),
        }
    }

    /// The verb `mark`.
    pub fn mark(&mut self, expected: Option<&BirthMark>, new: &BirthMark) -> Option<BirthMark> {
        if self.mark.as_ref() == expected {
            self.mark = Some(new.clone());
        }
        self.mark.clone()
    }

    /// Why it does not look at this ballot, if it does not.
    fn refuses(&self, ballot: &VoteRequest) -> Option<VoteOutcome> {
        let buried = self.is_buried(ballot).then_some(VoteOutcome::Cancelled);
        let valid = |mark: &&BirthMark| mark.standing == VoterStatus::Voting && mark.run == self.run;
        match self.mark.as_ref().filter(valid) {
            None => Some(VoteOutcome::NoVote),
            Some(mark) if ballot.ttl > mark.gate => Some(VoteOutcome::TooLong { gate: mark.gate }),
            Some(_) => buried,
        }
    }

    fn is_buried(&self, ballot: &VoteRequest) -> bool {
        let grave = |attempt| (ballot.resource.clone(), ballot.owner, attempt);
        self.graves.contains_key(&grave(None)) || self.graves.contains_key(&grave(Some(ballot.attempt)))
    }

    /// The verb `vote`.
    pub fn vote(&mut self, now: WallTime, ballot: &VoteRequest) -> Vote {
        self.settle(now);
        let choice = self.refuses(ballot).unwrap_or_else(|| self.choose(now, ballot));
        Vote { now, choice }
    }

    fn choose(&mut self, now: WallTime, ballot: &VoteRequest) -> VoteOutcome {
        if let Some(lock) = self.locks.get_mut(&ballot.resource) {
            if lock.owner != ballot.owner {
                return lock.held(now);
            }
            // The same claim asks again: the same grant, with what remains of it. It counts for the newest attempt: an
            // earlier one that is executed late must not take it along when it is undone.
            lock.attempt = lock.attempt.max(ballot.attempt);
            return lock.yours(now);
        }
        if self.is_far(now, ballot) {
            return VoteOutcome::Far;
        }
        let Some(number) = self.above_last(ballot) else { return VoteOutcome::Far };
        self.accept(now, ballot, number);
        self.lock(now, ballot, number)
    }

    fn lock(&mut self, now: WallTime, ballot: &VoteRequest, number: FencingToken) -> VoteOutcome {
        let lock = Lock {
            owner: ballot.owner,
            attempt: ballot.attempt,
            number,
            since: now,
            ends: now.after(ballot.ttl),
            holder: Arc::clone(&ballot.holder),
            note: ballot.note.clone(),
        };
        let answer = lock.yours(now);
        self.locks.insert(ballot.resource.clone(), lock);
        answer
    }

    /// The verb `join`. The majority that gave the grant has accepted its number; this node need not.
    pub fn join(&mut self, now: WallTime, ballot: &VoteRequest) -> Vote {
        self.settle(now);
        let choice = self.refuses(ballot).unwrap_or_else(|| match self.locks.get_mut(&ballot.resource) {
            None => self.lock(now, ballot, ballot.proposal),
            Some(lock) if lock.owner != ballot.owner => lock.held(now),
            Some(lock) => {
                (lock.number, lock.attempt) = (ballot.proposal, lock.attempt.max(ballot.attempt));
                lock.yours(now)
            }
        });
        Vote { now, choice }
    }

    /// The verb `claim`: the lock is there already, and so is a lower number.
    pub fn claim(&mut self, now: WallTime, ballot: &VoteRequest) -> Vote {
        self.settle(now);
        let choice = self.refuses(ballot).unwrap_or_else(|| self.raise_number(now, ballot));
        Vote { now, choice }
    }

    fn raise_number(&mut self, now: WallTime, ballot: &VoteRequest) -> VoteOutcome {
        match self.locks.get(&ballot.resource) {
            None => return VoteOutcome::Free,
            Some(lock) if lock.owner != ballot.owner => return lock.held(now),
            Some(_) if self.is_far(now, ballot) => return VoteOutcome::Far,
            Some(_) => {}
        }
        let owner = self.registers.get(&ballot.resource).map(|register| register.owner);
        let ours = owner == Some(Some(ballot.owner));
        let number = if ours { self.at_least_last(ballot) } else { self.above_last(ballot) };
        let Some(number) = number else { return VoteOutcome::Far };
        self.accept(now, ballot, number);
        let lock = self.locks.get_mut(&ballot.resource).expect("it was just seen");
        (lock.number, lock.attempt) = (number, lock.attempt.max(ballot.attempt));
        lock.yours(now)
    }

    fn last(&self, ballot: &VoteRequest) -> u64 {
        self.registers.get(&ballot.resource).map_or(0, |register| register.last.get())
    }

    /// Above every number that was accepted here: none, if they have run out.
    fn above_last(&self, ballot: &VoteRequest) -> Option<FencingToken> {
        FencingToken::new(ballot.proposal.get().max(self.last(ballot) + 1)).ok()
    }

    fn at_least_last(&self, ballot: &VoteRequest) -> Option<FencingToken> {
        FencingToken::new(ballot.proposal.get().max(self.last(ballot))).ok()
    }

    /// Further from the clock than clocks can be apart, unless the register is there already.
    fn is_far(&self, now: WallTime, ballot: &VoteRequest) -> bool {
        let (proposal, skew) = (ballot.proposal.get(), micros(SKEW_MAX));
        let last = self.last(ballot);
        proposal.abs_diff(now.as_micros()) > skew && (last == 0 || proposal > last + skew)
    }

    fn accept(&mut self, now: WallTime, ballot: &VoteRequest, number: FencingToken) {
        let owner = Some(ballot.owner);
        let register = Register { last: number, owner, ends: register_ends(now, number) };
        self.registers.insert(ballot.resource.clone(), register);
    }

    /// The verb `undo`.
    pub fn undo(&mut self, now: WallTime, undo: &UndoRequest) -> bool {
        self.settle(now);
        if let Some(keep) = undo.tombstone {
            self.graves.insert((undo.resource.clone(), undo.owner, undo.attempt), now.after(keep));
        }
        let taken =
            |lock: &Lock| lock.owner == undo.owner && undo.attempt.is_none_or(|it| it == lock.attempt);
        let there = self.locks.get(&undo.resource).is_some_and(taken);
        if there {
            self.locks.remove(&undo.resource);
        }
        there
    }

    /// The verb `renew`, for one of the batch. Whether it may vote does not matter: the lock that is there is one that
    /// it will honour when it votes.
    pub fn renew(&mut self, now: WallTime, held: &RenewRequest) -> NodeRenewal {
        self.settle(now);
        let gate = self.mark.as_ref().map(|mark| mark.gate);
        let Some(lock) = self.locks.get_mut(&held.resource).filter(|lock| lock.owner == held.owner) else {
            let grave = (held.resource.clone(), held.owner, None);
            let why =
                if self.graves.contains_key(&grave) { GoneReason::Cancelled } else { GoneReason::NotThere };
            return NodeRenewal::Gone { why };
        };
        if let Some(gate) = gate.filter(|gate| held.ttl > *gate) {
            return NodeRenewal::TooLong { gate };
        }
        lock.ends = lock.ends.max(now.after(held.ttl));
        if let Some(note) = &held.note {
            lock.note = Some(Arc::clone(note));
        }
        NodeRenewal::Renewed { number: lock.number, remaining: since(now, lock.ends) }
    }

    /// The verb `look`.
    pub fn look(&self, now: WallTime, resource: &Resource) -> NodeView {
        let lock = self.locks.get(resource).filter(|lock| lock.ends > now);
        let register = self.registers.get(resource).filter(|register| register.ends > now);
        NodeView {
            now,
            held: lock.map(|lock| (lock.seen(now), lock.attempt)),
            last: register.map(|register| register.last),
        }
    }

    /// The verb `walk`, in one page.
    pub fn walk(&self, now: WallTime, prefix: &str) -> NodePage {
        let ours = |resource: &Resource| resource.key().starts_with(prefix);
        let locks = self.locks.iter().filter(|(resource, lock)| ours(resource) && lock.ends > now);
        let registers = self.registers.iter().filter(|(resource, it)| ours(resource) && it.ends > now);
        let held =
            locks.map(|(resource, _)| NodeEntry { resource: resource.clone(), held: true, last: None });
        let known = registers.map(|(resource, register)| NodeEntry {
            resource: resource.clone(),
            held: false,
            last: Some(register.last),
        });
        NodePage { entries: held.chain(known).collect(), next: None }
    }

    /// The verb `raise`, for one register.
    pub fn raise(&mut self, now: WallTime, resource: &Resource, number: FencingToken) {
        self.settle(now);
        if self.registers.get(resource).is_none_or(|register| register.last < number) {
            let register = Register { last: number, owner: None, ends: register_ends(now, number) };
            self.registers.insert(resource.clone(), register);
        }
    }
}

impl Lock {
    fn yours(&self, now: WallTime) -> VoteOutcome {
        VoteOutcome::Yours { number: self.number, remaining: since(now, self.ends) }
    }

    fn held(&self, now: WallTime) -> VoteOutcome {
        VoteOutcome::Held { by: Box::new(self.seen(now)), attempt: self.attempt }
    }

    fn seen(&self, now: WallTime) -> HeldBy {
        let mut by = HeldBy::new(Arc::clone(&self.holder), self.number, 1);
        by.held_for = since(self.since, now);
        by.remaining = since(now, self.ends);
        by.note.clone_from(&self.note);
        by
    }
}

/// When a register of this number ends: the [retention](RETENTION) after the clock has passed it.
fn register_ends(now: WallTime, number: FencingToken) -> WallTime {
    now.max(WallTime::from_micros(number.get())).after(RETENTION)
}

/// From one time to a later one; zero if it is not later.
pub(super) fn since(from: WallTime, to: WallTime) -> Duration {
    Duration::from_micros(to.as_micros().saturating_sub(from.as_micros()))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
