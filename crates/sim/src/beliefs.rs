//! Checks what holders believe: which leases each host takes for valid, in true time.
//!
//! A belief is a view of a lease, asked at this very instant. A node that does not run has no beliefs: it does nothing until
//! it runs again, and then it asks first.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold::{OwnerToken, Resource, Timestamp};

use crate::{
    clock::Time,
    world::{Health, NodeId, World},
};

/// Asks whether the holder would continue its work now.
pub(crate) type Vouches = Box<dyn Fn() -> bool + Send>;

struct Belief {
    node: NodeId,
    resource: Resource,
    owner: Option<OwnerToken>,
    weight: u64,
    name: String,
    vouches: Vouches,
    /// When it must have ended, whatever the renewals say.
    not_past: Option<Timestamp>,
    over_since: Option<Time>,
}

/// How long a node may take one grant for valid, from the replies that reached it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedValidity {
    /// The time until which no other claim can be granted, by its own clock, less the margin.
    deadline: Timestamp,
    /// The shortest and the longest ttl that it was renewed for.
    ttl: (Duration, Duration),
    /// A reply said that it does not hold the lease any more.
    pub(crate) gone: bool,
    /// When the request that was granted was sent.
    pub(crate) granted_sent: Time,
    /// How many disturbances its node had had by then.
    pub(crate) granted_disturbances: u32,
    /// How many disturbances its node had had when the request was sent that the deadline counts from.
    pub(crate) disturbances: u32,
    /// When the last positive reply arrived.
    pub(crate) heard: Time,
    /// The grant arrived too late to be used, and no renewal has been sent since.
    late: bool,
}

/// What the clocks of a node showed when a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    local: Timestamp,
    at: Time,
    disturbances: u32,
}

impl ExpectedValidity {
    /// When it must have stopped: a sixth of its ttl before the deadline.
    pub(crate) fn stop(&self) -> Timestamp {
        self.deadline.before(self.ttl.0 / 6)
    }

    /// Before this time there is no reason to stop.
    pub(crate) fn not_before(&self) -> Timestamp {
        self.deadline.before(self.ttl.1 / 6 + self.ttl.1 / 100)
    }
}

#[derive(Default)]
struct BeliefState {
    beliefs: BTreeMap<u64, Belief>,
    validities: BTreeMap<(NodeId, OwnerToken), ExpectedValidity>,
    /// Claims whose last request had no reply, and when their node noticed that.
    unanswered: BTreeMap<(NodeId, OwnerToken), Sent>,
    /// How often each claim has asked.
    asked: BTreeMap<(NodeId, OwnerToken), u32>,
    /// Resources that must stay closed, and until when.
    closed: BTreeMap<Resource, Time>,
    next: u64,
}

/// All beliefs of all nodes.
pub(crate) struct BeliefChecker {
    world: Arc<World>,
    state: Mutex<BeliefState>,
}

/// A belief to register.
pub(crate) struct NewBelief {
    pub(crate) node: NodeId,
    pub(crate) resource: Resource,
    pub(crate) owner: Option<OwnerToken>,
    pub(crate) weight: u32,
    pub(crate) name: String,
    pub(crate) not_past: Option<Timestamp>,
    pub(crate) vouches: Vouches,
}

impl BeliefChecker {
    pub(crate) fn new(world: &Arc<World>) -> Arc<BeliefChecker> {
        Arc::new(BeliefChecker { world: Arc::clone(world), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, BeliefState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a belief until the handle is dropped.
    pub(crate) fn enter(self: &Arc<BeliefChecker>, entry: NewBelief) -> BeliefHandle {
        let NewBelief { node, resource, owner, weight, name, not_past, vouches } = entry;
        let weight = u64::from(weight);
        let belief = Belief { node, resource, owner, weight, name, vouches, not_past, over_since: None };
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.beliefs.insert(id, belief);
        BeliefHandle { beliefs: Arc::clone(self), id }
    }

    /// How much of the resource is believed to be held at this instant, and the names of these holders.
    pub(crate) fn believed(&self, resource: &Resource) -> (u64, Vec<String>) {
        let mut state = self.state();
        let BeliefState { beliefs, validities, .. } = &mut *state;
        let (mut weight, mut names) = (0, Vec::new());
        for belief in beliefs.values_mut().filter(|belief| belief.resource == *resource) {
            if self.judge(belief, validities) == Some(true) {
                weight += belief.weight;
                names.push(belief.name.clone());
            }
        }
        (weight, names)
    }

    /// Asks one belief. `None` if its node does not run.
    fn judge(
        &self,
        belief: &mut Belief,
        validities: &BTreeMap<(NodeId, OwnerToken), ExpectedValidity>,
    ) -> Option<bool> {
        if self.world.health(belief.node) != Health::Running {
            return None;
        }
        let vouched = (belief.vouches)();
        let (now, local) = self.world.clock(belief.node, |clock, now| (now, clock.boot(now)));
        if !vouched {
            belief.over_since.get_or_insert(now);
            return Some(false);
        }
        let name = &belief.name;
        if let Some(since) = belief.over_since {
            let since = Duration::from_nanos(since);
            self.world
                .fail("latch", format!("{name} was over at {since:?} and takes its lease for valid again"));
        }
        let validity = belief.owner.and_then(|owner| validities.get(&(belief.node, owner)));
        match validity {
            Some(ExpectedValidity { gone: true, .. }) => {
                self.world.fail("told", format!("{name} was told that its lease is gone, and goes on"));
            }
            Some(validity) if local >= validity.stop() => {
                let late = validity.stop().until(local);
                let message = format!("{name} takes its lease for valid {late:?} after it had to stop");
                self.world.fail("loss in time", message);
            }
            _ => {}
        }
        if belief.not_past.is_some_and(|limit| local >= limit) {
            self.world.fail("limit", format!("{name} holds longer than its max_hold"));
        }
        Some(true)
    }

    /// What the clocks of a node show when it sends a request.
    pub(crate) fn sending(&self, node: NodeId) -> Sent {
        let (at, local) = self.world.clock(node, |clock, now| (now, clock.boot(now)));
        Sent { local, at, disturbances: self.world.past(node).1 }
    }

    /// A positive reply reached this node, for a request that was sent at `sent`.
    pub(crate) fn vouch(
        &self,
        node: NodeId,
        owner: OwnerToken,
        sent: Sent,
        remaining: Duration,
        ttl: Duration,
    ) {
        let margin = ttl.max(remaining) / 100 + Duration::from_millis(2);
        let deadline = sent.local.after(remaining.saturating_sub(margin));
        let Sent { at, disturbances, .. } = sent;
        let mut state = self.state();
        let fresh = ExpectedValidity {
            deadline,
            ttl: (ttl, ttl),
            gone: false,
            granted_sent: at,
            granted_disturbances: disturbances,
            disturbances,
            heard: 0,
            late: false,
        };
        let validity = state.validities.entry((node, owner)).or_insert(fresh);
        validity.heard = self.world.now();
        if deadline > validity.deadline {
            (validity.deadline, validity.disturbances) = (deadline, disturbances);
        }
        validity.ttl = (validity.ttl.0.min(ttl), validity.ttl.1.max(ttl));
    }

    /// A request of a claim got an error, or no reply in time.
    pub(crate) fn unanswered(&self, node: NodeId, owner: OwnerToken, number: u32) {
        let now = self.sending(node);
        let mut state = self.state();
        // A call for several claims goes on while one of them has given it up and has asked again.
        if state.asked.get(&(node, owner)) == Some(&number) {
            state.unanswered.insert((node, owner), now);
        }
    }

    /// A claim asks, perhaps again. Its request before may have been granted, so it must not sleep so long that this grant
    /// expires unnoticed. Returns the number of the request.
    pub(crate) fn asks(&self, node: NodeId, owner: OwnerToken, ttl: Duration) -> u32 {
        let (number, before) = {
            let mut state = self.state();
            let number = state.asked.entry((node, owner)).or_default();
            *number += 1;
            (*number, state.unanswered.remove(&(node, owner)))
        };
        if let Some(before) = before {
            self.check_sleep(node, owner, ttl, before);
        }
        number
    }

    fn check_sleep(&self, node: NodeId, owner: OwnerToken, ttl: Duration, before: Sent) {
        let now = self.sending(node);
        let slept = before.local.until(now.local);
        let most = ttl / 6 + ttl / 100 + Duration::from_millis(2);
        let (resumed_at, disturbances) = self.world.past(node);
        let undisturbed = disturbances == before.disturbances && resumed_at < before.at;
        if slept > most && undisturbed {
            let message = format!("{owner:?} had no answer, and slept for {slept:?} of its ttl of {ttl:?}");
            self.world.fail("asleep beside a grant", message);
        }
    }

    /// A grant reached this node: remembers whether it came too late to be used.
    pub(crate) fn is_late(&self, node: NodeId, owner: OwnerToken) {
        let local = self.sending(node).local;
        if let Some(validity) = self.state().validities.get_mut(&(node, owner)) {
            validity.late = local >= validity.stop();
        }
    }

    /// A renewal is sent. A grant that came late must be renewed before it is released. Returns whether there was one.
    pub(crate) fn renews_late(&self, node: NodeId, owner: OwnerToken) -> bool {
        let mut state = self.state();
        state.validities.get_mut(&(node, owner)).is_some_and(|validity| std::mem::take(&mut validity.late))
    }

    /// A claim is released.
    pub(crate) fn gives_back(&self, node: NodeId, owner: OwnerToken) {
        if self.renews_late(node, owner) {
            let message = format!("{owner:?} was granted late, and is released without a renewal");
            self.world.fail("late grant", message);
        }
    }

    /// A reply said that the owner does not hold the lease.
    pub(crate) fn disown(&self, node: NodeId, owner: OwnerToken) {
        if let Some(validity) = self.state().validities.get_mut(&(node, owner)) {
            validity.gone = true;
        }
    }

    pub(crate) fn validity(&self, node: NodeId, owner: OwnerToken) -> Option<ExpectedValidity> {
        self.state().validities.get(&(node, owner)).copied()
    }

    /// Since when this owner knows that its lease has ended.
    pub(crate) fn over_since(&self, node: NodeId, owner: OwnerToken) -> Option<(Time, String)> {
        let state = self.state();
        let belief = state.beliefs.values().find(|b| b.node == node && b.owner == Some(owner))?;
        belief.over_since.map(|since| (since, belief.name.clone()))
    }

    /// The resource was released and must stay closed until then.
    pub(crate) fn close(&self, resource: &Resource, until: Time) {
        let mut state = self.state();
        let closed = state.closed.entry(resource.clone()).or_default();
        *closed = until.max(*closed);
    }

    /// An operator opened it.
    pub(crate) fn open(&self, resource: &Resource) {
        self.state().closed.remove(resource);
    }

    pub(crate) fn closed_until(&self, resource: &Resource) -> Option<Time> {
        self.state().closed.get(resource).copied()
    }
}

impl fmt::Debug for BeliefChecker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeliefChecker").finish_non_exhaustive()
    }
}

/// A registered belief. Dropping it removes the belief.
#[derive(Debug)]
pub(crate) struct BeliefHandle {
    beliefs: Arc<BeliefChecker>,
    id: u64,
}

impl BeliefHandle {
    /// Asks now. Called by the holder itself, so its node runs.
    pub(crate) fn holds(&self) -> bool {
        let mut state = self.beliefs.state();
        let BeliefState { beliefs, validities, .. } = &mut *state;
        let belief = beliefs.get_mut(&self.id).expect("registered until the handle is dropped");
        self.beliefs.judge(belief, validities) == Some(true)
    }
}

impl Drop for BeliefHandle {
    fn drop(&mut self) {
        let belief = self.beliefs.state().beliefs.remove(&self.id);
        drop(belief); // outside of the lock
    }
}
