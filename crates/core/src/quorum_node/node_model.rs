//! One node of a quorum as a pure state machine.
//!
//! This is the specification of a [node](super::QuorumNode). The memory node is this state machine behind a mutex; the Lua
//! scripts of a Redis node do the same, and a test compares the two. It takes `now`, the wall clock of the node, as an
//! argument and never reads a clock. The clock of a node may jump; then its expiries jump with it.
//!
//! What `vote` does, in this order:
//!
//! 1. Remove what has expired.
//! 2. Refuse if the node has no valid birth mark (it may have lost data), if the ttl is too long, or if the owner or the
//!    attempt has a tombstone.
//! 3. If another owner has the lock, say so. If this owner has it, return the same number again.
//! 4. Refuse a proposal that is too far from the clock of this node.
//! 5. Accept the proposal, or the last accepted number plus one if that is greater. Write it to the register, and lock.

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
    locks: BTreeMap<Resource, NodeLock>,
    registers: BTreeMap<Resource, Register>,
    tombstones: BTreeMap<(Resource, OwnerToken, Option<AttemptId>), WallTime>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NodeLock {
    owner: OwnerToken,
    attempt: AttemptId,
    number: FencingToken,
    since: WallTime,
    ends: WallTime,
    holder: Arc<Holder>,
    ttl: Duration,
    note: Option<Arc<[u8]>>,
}

/// The last number that a node accepted for a resource, and the owner that it was accepted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Register {
    last: FencingToken,
    owner: Option<OwnerToken>,
    ends: WallTime,
}

impl NodeModel {
    /// A server that has just started, without data.
    pub fn new(run: impl Into<String>, now: WallTime, durable: bool) -> NodeModel {
        NodeModel {
            run: run.into(),
            started: now,
            durable,
            mark: None,
            locks: BTreeMap::new(),
            registers: BTreeMap::new(),
            tombstones: BTreeMap::new(),
        }
    }

    /// The server restarts and keeps its data.
    pub fn restart(&mut self, run: impl Into<String>, now: WallTime) {
        (self.run, self.started) = (run.into(), now);
    }

    /// The server loses all data, with the birth mark.
    pub fn forget(&mut self) {
        self.mark = None;
        self.locks.clear();
        self.registers.clear();
        self.tombstones.clear();
    }

    /// The server loses all data but the birth mark, as when the end of its log is lost.
    pub fn forget_all_but_the_mark(&mut self) {
        let mark = self.mark.take();
        self.forget();
        self.mark = mark;
    }

    /// The numbers of locks, registers and tombstones, for tests that look for leftovers.
    pub fn stored(&mut self, now: WallTime) -> (usize, usize, usize) {
        self.remove_expired(now);
        (self.locks.len(), self.registers.len(), self.tombstones.len())
    }

    fn remove_expired(&mut self, now: WallTime) {
        self.locks.retain(|_, lock| lock.ends > now);
        self.registers.retain(|_, register| register.ends > now);
        self.tombstones.retain(|_, ends| *ends > now);
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

    /// Step 2 of `vote`: the reason to refuse this request, if there is one.
    fn refusal(&self, request: &VoteRequest) -> Option<VoteOutcome> {
        let cancelled = self.has_tombstone(request).then_some(VoteOutcome::Cancelled);
        let valid = |mark: &&BirthMark| mark.standing == VoterStatus::Voting && mark.run == self.run;
        match self.mark.as_ref().filter(valid) {
            None => Some(VoteOutcome::NoVote),
            Some(mark) if request.ttl > mark.gate => Some(VoteOutcome::TooLong { gate: mark.gate }),
            Some(_) => cancelled,
        }
    }

    fn has_tombstone(&self, request: &VoteRequest) -> bool {
        let tombstone = |attempt| (request.resource.clone(), request.owner, attempt);
        self.tombstones.contains_key(&tombstone(None))
            || self.tombstones.contains_key(&tombstone(Some(request.attempt)))
    }

    /// The verb `vote`.
    pub fn vote(&mut self, now: WallTime, request: &VoteRequest) -> Vote {
        self.remove_expired(now);
        let choice = self.refusal(request).unwrap_or_else(|| self.choose(now, request));
        Vote { now, choice }
    }

    fn choose(&mut self, now: WallTime, request: &VoteRequest) -> VoteOutcome {
        if let Some(lock) = self.locks.get_mut(&request.resource) {
            if lock.owner != request.owner {
                return lock.held(now);
            }
            // The same claim asks again: return the same grant. From now on it belongs to the newest attempt, so that undoing
            // an earlier, delayed attempt does not remove it. ADR 0017.
            lock.attempt = lock.attempt.max(request.attempt);
            return lock.yours(now);
        }
        if self.is_far(now, request) {
            return VoteOutcome::Far;
        }
        let Some(number) = self.above_last(request) else { return VoteOutcome::Far };
        self.accept(now, request, number);
        self.lock(now, request, number)
    }

    fn lock(&mut self, now: WallTime, request: &VoteRequest, number: FencingToken) -> VoteOutcome {
        let lock = NodeLock {
            owner: request.owner,
            attempt: request.attempt,
            number,
            since: now,
            ends: now.after(request.ttl),
            holder: Arc::clone(&request.holder),
            ttl: request.ttl,
            note: request.note.clone(),
        };
        let answer = lock.yours(now);
        self.locks.insert(request.resource.clone(), lock);
        answer
    }

    /// The verb `join`. A majority has accepted the number of this grant already, so this node does not write its register.
    pub fn join(&mut self, now: WallTime, request: &VoteRequest) -> Vote {
        self.remove_expired(now);
        let choice = self.refusal(request).unwrap_or_else(|| match self.locks.get_mut(&request.resource) {
            None => self.lock(now, request, request.proposal),
            Some(lock) if lock.owner != request.owner => lock.held(now),
            Some(lock) => {
                (lock.number, lock.attempt) = (request.proposal, lock.attempt.max(request.attempt));
                lock.yours(now)
            }
        });
        Vote { now, choice }
    }

    /// The verb `claim`: the owner has the lock here, with a lower number.
    pub fn claim(&mut self, now: WallTime, request: &VoteRequest) -> Vote {
        self.remove_expired(now);
        let choice = self.refusal(request).unwrap_or_else(|| self.raise_number(now, request));
        Vote { now, choice }
    }

    fn raise_number(&mut self, now: WallTime, request: &VoteRequest) -> VoteOutcome {
        match self.locks.get(&request.resource) {
            None => return VoteOutcome::Free,
            Some(lock) if lock.owner != request.owner => return lock.held(now),
            Some(_) if self.is_far(now, request) => return VoteOutcome::Far,
            Some(_) => {}
        }
        let owner = self.registers.get(&request.resource).map(|register| register.owner);
        let ours = owner == Some(Some(request.owner));
        let number = if ours { self.at_least_last(request) } else { self.above_last(request) };
        let Some(number) = number else { return VoteOutcome::Far };
        self.accept(now, request, number);
        let lock = self.locks.get_mut(&request.resource).expect("it was found above");
        (lock.number, lock.attempt) = (number, lock.attempt.max(request.attempt));
        lock.yours(now)
    }

    fn last(&self, request: &VoteRequest) -> u64 {
        self.registers.get(&request.resource).map_or(0, |register| register.last.get())
    }

    /// The lowest number that is at least the proposal and above every number accepted here. `None` if there is none below 2^53.
    fn above_last(&self, request: &VoteRequest) -> Option<FencingToken> {
        FencingToken::new(request.proposal.get().max(self.last(request) + 1)).ok()
    }

    fn at_least_last(&self, request: &VoteRequest) -> Option<FencingToken> {
        FencingToken::new(request.proposal.get().max(self.last(request))).ok()
    }

    /// Whether the proposal is further from this clock than two right clocks can be apart. A register that is ahead of the
    /// clock moves the limit: otherwise its resource could not be granted until the clock has caught up.
    fn is_far(&self, now: WallTime, request: &VoteRequest) -> bool {
        let (proposal, skew) = (request.proposal.get(), micros(SKEW_MAX));
        let last = self.last(request);
        proposal.abs_diff(now.as_micros()) > skew && (last == 0 || proposal > last + skew)
    }

    fn accept(&mut self, now: WallTime, request: &VoteRequest, number: FencingToken) {
        let owner = Some(request.owner);
        let register = Register { last: number, owner, ends: register_ends(now, number) };
        self.registers.insert(request.resource.clone(), register);
    }

    /// The verb `undo`.
    pub fn undo(&mut self, now: WallTime, undo: &UndoRequest) -> bool {
        self.remove_expired(now);
        if let Some(keep) = undo.tombstone {
            self.tombstones.insert((undo.resource.clone(), undo.owner, undo.attempt), now.after(keep));
        }
        let taken =
            |lock: &NodeLock| lock.owner == undo.owner && undo.attempt.is_none_or(|it| it == lock.attempt);
        let there = self.locks.get(&undo.resource).is_some_and(taken);
        if there {
            self.locks.remove(&undo.resource);
        }
        there
    }

    /// The verb `renew`, for one request of the batch. A node without a vote renews too: it respects this lock when it votes
    /// again.
    pub fn renew(&mut self, now: WallTime, held: &RenewRequest) -> NodeRenewal {
        self.remove_expired(now);
        let gate = self.mark.as_ref().map(|mark| mark.gate);
        let Some(lock) = self.locks.get_mut(&held.resource).filter(|lock| lock.owner == held.owner) else {
            let tombstone = (held.resource.clone(), held.owner, None);
            let why = if self.tombstones.contains_key(&tombstone) {
                GoneReason::Cancelled
            } else {
                GoneReason::NotThere
            };
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
            held: lock.map(|lock| (lock.view(now), lock.attempt)),
            foreign: None,
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
        self.remove_expired(now);
        if self.registers.get(resource).is_none_or(|register| register.last < number) {
            let register = Register { last: number, owner: None, ends: register_ends(now, number) };
            self.registers.insert(resource.clone(), register);
        }
    }
}

impl NodeLock {
    fn yours(&self, now: WallTime) -> VoteOutcome {
        VoteOutcome::Yours { number: self.number, remaining: since(now, self.ends) }
    }

    fn held(&self, now: WallTime) -> VoteOutcome {
        VoteOutcome::Held { by: Box::new(self.view(now)), attempt: self.attempt }
    }

    fn view(&self, now: WallTime) -> HeldBy {
        let mut by = HeldBy::new(Arc::clone(&self.holder), self.number, 1);
        by.held_for = since(self.since, now);
        by.remaining = since(now, self.ends);
        by.ttl = Some(self.ttl);
        by.note.clone_from(&self.note);
        by
    }
}

/// When a register of this number expires: the [retention](RETENTION) after the clock has passed the number.
fn register_ends(now: WallTime, number: FencingToken) -> WallTime {
    now.max(WallTime::from_micros(number.get())).after(RETENTION)
}

/// The time from `from` to `to`; zero if `to` is earlier.
pub(super) fn since(from: WallTime, to: WallTime) -> Duration {
    Duration::from_micros(to.as_micros().saturating_sub(from.as_micros()))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
