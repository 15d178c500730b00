//! A node of the quorum: core's own rule, and what this check needs to hold many of them in memory.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, LazyLock},
    time::Duration,
};

use leasehold_core::{
    FencingToken, OwnerToken, Resource, WallTime,
    claim::{ClaimRef, Holder, RenewRequest},
    quorum_node::{
        AttemptId, BirthMark, Health, NodeRenewal, UndoRequest, Vote, VoteOutcome, VoteRequest, VoterStatus,
        node_model::NodeModel,
    },
};

use crate::setup::{CLAIMS_MAX, GATE, TTL};

static RESOURCE: LazyLock<Resource> =
    LazyLock::new(|| Resource::new("report", "42").expect("follows the grammar"));
static HOLDER: LazyLock<Arc<Holder>> = LazyLock::new(|| Arc::new(Holder::new("host", 1, "")));

/// A tick is a second.
pub(crate) fn ticks(count: u8) -> Duration {
    Duration::from_secs(u64::from(count))
}

fn time(now: u8) -> WallTime {
    WallTime::default().after(ticks(now))
}

fn owner(claim: usize) -> OwnerToken {
    let mut bytes = [0; 16];
    bytes[0] = u8::try_from(claim).expect("few claims") + 1;
    OwnerToken::from_bytes(bytes)
}

pub(crate) fn attempt(claim: usize) -> AttemptId {
    AttemptId(claim as u64)
}

pub(crate) fn token(number: u8) -> FencingToken {
    FencingToken::new(u64::from(number)).expect("small, and not zero")
}

pub(crate) fn small(token: FencingToken) -> u8 {
    u8::try_from(token.get()).expect("tokens begin at one, and few are given")
}

pub(crate) fn whole_ticks(duration: Duration) -> u8 {
    u8::try_from(duration.as_secs()).expect("few ticks")
}

/// A node. Cheap to clone, and to compare by its hash: most steps change one node of several.
#[derive(Clone, Debug)]
pub(crate) struct CheckedNode(Arc<Hashed>);

#[derive(Debug)]
struct Hashed {
    model: NodeModel,
    hash: u64,
}

impl PartialEq for CheckedNode {
    fn eq(&self, other: &CheckedNode) -> bool {
        self.0.hash == other.0.hash
    }
}
impl Eq for CheckedNode {}
impl Hash for CheckedNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}
impl PartialOrd for CheckedNode {
    fn partial_cmp(&self, other: &CheckedNode) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for CheckedNode {
    fn cmp(&self, other: &CheckedNode) -> std::cmp::Ordering {
        self.0.hash.cmp(&other.0.hash)
    }
}

/// What a node answered, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Heard {
    #[default]
    Nothing,
    Yours {
        number: u8,
        remaining: u8,
    },
    Held {
        by: u8,
    },
    No,
}

impl Heard {
    fn of(vote: &Vote) -> Heard {
        match &vote.choice {
            VoteOutcome::Yours { number, remaining } => {
                Heard::Yours { number: small(*number), remaining: whole_ticks(*remaining) }
            }
            VoteOutcome::Held { attempt, .. } => {
                Heard::Held { by: u8::try_from(attempt.0).expect("few claims") }
            }
            _ => Heard::No,
        }
    }
}

impl CheckedNode {
    /// A node of a set that was founded: it votes.
    pub(crate) fn new(size: usize) -> CheckedNode {
        let mut node = CheckedNode::hashed(NodeModel::new("0", time(0), false));
        node.mark_as_voting(0, size);
        node
    }

    /// Gives the node a birth mark that is valid for its present run, without quarantine.
    pub(crate) fn mark_as_voting(&mut self, now: u8, size: usize) {
        let health = self.health(now);
        let mark = BirthMark {
            set: "set".to_owned(),
            size,
            gate: ticks(GATE),
            run: health.run,
            durable: false,
            standing: VoterStatus::Voting,
        };
        self.mark(health.mark.as_ref(), &mark);
    }

    /// Makes the node accept its last number once more, for any owner: lowers its register by one if nobody has the lock.
    pub(crate) fn allow_last_number_again(&mut self, now: u8) {
        if self.is_held(now) {
            return;
        }
        let Some(last) = self.last(now) else { return };
        self.change(|model| {
            model.forget_all_but_the_mark();
            if let Ok(lower) = FencingToken::new(last.get() - 1) {
                model.raise(time(now), &RESOURCE, lower);
            }
        });
    }

    fn hashed(model: NodeModel) -> CheckedNode {
        let mut hasher = DefaultHasher::new();
        model.hash(&mut hasher);
        CheckedNode(Arc::new(Hashed { hash: hasher.finish(), model }))
    }

    fn change<T>(&mut self, change: impl FnOnce(&mut NodeModel) -> T) -> T {
        let mut model = self.0.model.clone();
        let output = change(&mut model);
        *self = CheckedNode::hashed(model);
        output
    }

    fn ballot(claim: usize, proposal: u8) -> VoteRequest {
        VoteRequest {
            resource: RESOURCE.clone(),
            owner: owner(claim),
            attempt: attempt(claim),
            ttl: ticks(TTL),
            proposal: token(proposal),
            holder: HOLDER.clone(),
            note: None,
        }
    }

    pub(crate) fn vote(&mut self, now: u8, claim: usize, proposal: u8) -> Heard {
        Heard::of(&self.change(|model| model.vote(time(now), &CheckedNode::ballot(claim, proposal))))
    }

    pub(crate) fn claim(&mut self, now: u8, claim: usize, number: u8) -> Heard {
        Heard::of(&self.change(|model| model.claim(time(now), &CheckedNode::ballot(claim, number))))
    }

    pub(crate) fn join(&mut self, now: u8, claim: usize, token: u8) {
        self.change(|model| model.join(time(now), &CheckedNode::ballot(claim, token)));
    }

    pub(crate) fn undo(&mut self, now: u8, claim: usize) {
        self.change(|model| model.undo(time(now), &CheckedNode::request(claim)));
    }

    fn request(claim: usize) -> UndoRequest {
        UndoRequest { resource: RESOURCE.clone(), owner: owner(claim), attempt: None, tombstone: None }
    }

    pub(crate) fn renew(&mut self, now: u8, claim: usize) -> Option<NodeRenewal> {
        let held =
            RenewRequest::new(ClaimRef { resource: RESOURCE.clone(), owner: owner(claim) }, ticks(TTL));
        Some(self.change(|model| model.renew(time(now), &held)))
    }

    pub(crate) fn is_held(&self, now: u8) -> bool {
        self.0.model.look(time(now), &RESOURCE).held.is_some()
    }

    /// Its clock jumped: the lock has expired, whichever claim had it.
    pub(crate) fn drop_lock(&mut self, now: u8) {
        self.change(|model| {
            for claim in 0..CLAIMS_MAX {
                model.undo(time(now), &CheckedNode::request(claim));
            }
        });
    }

    pub(crate) fn last(&self, now: u8) -> Option<FencingToken> {
        self.0.model.look(time(now), &RESOURCE).last
    }

    pub(crate) fn health(&self, now: u8) -> Health {
        self.0.model.health(time(now))
    }

    /// Loses what it had, with or without a restart, with or without its mark.
    pub(crate) fn lose(&mut self, now: u8, how: crate::setup::Loss) {
        use crate::setup::Loss;
        let run = self.health(now).run.parse::<u8>().expect("counted from zero") + 1;
        self.change(|model| {
            if how != Loss::Flush {
                model.restart(run.to_string(), time(now));
            }
            if how == Loss::RestartWithMark { model.forget_all_but_the_mark() } else { model.forget() }
        });
    }

    pub(crate) fn raise(&mut self, now: u8, floor: Option<FencingToken>) {
        if let Some(floor) = floor {
            self.change(|model| model.raise(time(now), &RESOURCE, floor));
        }
    }

    pub(crate) fn mark(&mut self, expected: Option<&BirthMark>, new: &BirthMark) {
        self.change(|model| model.mark(expected, new));
    }
}
