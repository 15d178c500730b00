//! Who believes to hold what, judged in true time.
//!
//! A belief is a view that is asked at this very instant. A node that does not run does not believe: it does nothing
//! until it runs again, and then it asks first.

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

/// Says whether whoever holds this would go on now.
pub(crate) type Vouches = Box<dyn Fn() -> bool + Send>;

struct Belief {
    node: NodeId,
    resource: Resource,
    owner: Option<OwnerToken>,
    weight: u64,
    name: String,
    vouches: Vouches,
    /// Whatever the renewals say, it is over then.
    not_past: Option<Timestamp>,
    over_since: Option<Time>,
}

/// What a node may believe of one grant, from the answers that reached it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voucher {
    /// Until when nobody else can be granted, by its own clock and less the margin.
    deadline: Timestamp,
    /// The shortest and the longest ttl that it was renewed for.
    ttl: (Duration, Duration),
    /// It was told that it holds nothing any more.
    pub(crate) gone: bool,
    /// When the request that was granted left.
    pub(crate) granted_sent: Time,
    /// How often its node had been disturbed by then.
    pub(crate) granted_disturbances: u32,
    /// How often its node had been disturbed when the request left that the deadline counts from.
    pub(crate) disturbances: u32,
    /// When the last yes arrived.
    pub(crate) heard: Time,
    /// It arrived too late to be used, and no renewal has been sent since.
    late: bool,
}

/// What a node's clocks said as a request left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    local: Timestamp,
    at: Time,
    disturbances: u32,
}

impl Voucher {
    /// By when it has to stop at the latest: a sixth of its ttl before the deadline.
    pub(crate) fn stop(&self) -> Timestamp {
        self.deadline.before(self.ttl.0 / 6)
    }

    /// Before this there is no reason to stop.
    pub(crate) fn not_before(&self) -> Timestamp {
        self.deadline.before(self.ttl.1 / 6 + self.ttl.1 / 100)
    }
}

#[derive(Default)]
struct Books {
    beliefs: BTreeMap<u64, Belief>,
    vouchers: BTreeMap<(NodeId, OwnerToken), Voucher>,
    /// Claims whose last request had no answer, and when that was clear to their node.
    unanswered: BTreeMap<(NodeId, OwnerToken), Sent>,
    /// Resources that have to stay closed until then.
    closed: BTreeMap<Resource, Time>,
    next: u64,
}

/// All beliefs.
pub(crate) struct Ledger {
    world: Arc<World>,
    books: Mutex<Books>,
}

/// A belief to be entered.
pub(crate) struct Entry {
    pub(crate) node: NodeId,
    pub(crate) resource: Resource,
    pub(crate) owner: Option<OwnerToken>,
    pub(crate) weight: u32,
    pub(crate) name: String,
    pub(crate) not_past: Option<Timestamp>,
    pub(crate) vouches: Vouches,
}

impl Ledger {
    pub(crate) fn new(world: &Arc<World>) -> Arc<Ledger> {
        Arc::new(Ledger { world: Arc::clone(world), books: Mutex::default() })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a belief; it is struck out when the page is dropped.
    pub(crate) fn enter(self: &Arc<Ledger>, entry: Entry) -> BeliefPage {
        let Entry { node, resource, owner, weight, name, not_past, vouches } = entry;
        let weight = u64::from(weight);
        let belief = Belief { node, resource, owner, weight, name, vouches, not_past, over_since: None };
        let mut books = self.books();
        books.next += 1;
        let id = books.next;
        books.beliefs.insert(id, belief);
        BeliefPage { ledger: Arc::clone(self), id }
    }

    /// How much of the resource is believed to be held at this instant, and by whom.
    pub(crate) fn believed(&self, resource: &Resource) -> (u64, Vec<String>) {
        let mut books = self.books();
        let Books { beliefs, vouchers, .. } = &mut *books;
        let (mut weight, mut names) = (0, Vec::new());
        for belief in beliefs.values_mut().filter(|belief| belief.resource == *resource) {
            if self.judge(belief, vouchers) == Some(true) {
                weight += belief.weight;
                names.push(belief.name.clone());
            }
        }
        (weight, names)
    }

    /// Asks one belief. None if its node does not run.
    fn judge(&self, belief: &mut Belief, vouchers: &BTreeMap<(NodeId, OwnerToken), Voucher>) -> Option<bool> {
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
            self.world.fail("latch", format!("{name} was over at {since:?} and vouches for its lease again"));
        }
        let voucher = belief.owner.and_then(|owner| vouchers.get(&(belief.node, owner)));
        match voucher {
            Some(Voucher { gone: true, .. }) => {
                self.world.fail("told", format!("{name} was told that its lease is gone, and goes on"));
            }
            Some(voucher) if local >= voucher.stop() => {
                let late = voucher.stop().until(local);
                let message = format!("{name} vouches for its lease {late:?} after it had to stop");
                self.world.fail("loss in time", message);
            }
            _ => {}
        }
        if belief.not_past.is_some_and(|limit| local >= limit) {
            self.world.fail("limit", format!("{name} holds longer than its max_hold"));
        }
        Some(true)
    }

    /// What a node's clocks say as a request leaves.
    pub(crate) fn sending(&self, node: NodeId) -> Sent {
        let (at, local) = self.world.clock(node, |clock, now| (now, clock.boot(now)));
        Sent { local, at, disturbances: self.world.past(node).1 }
    }

    /// A yes reached this node: so much remained of this ttl when a request was executed that left then.
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
        let mut books = self.books();
        let fresh = Voucher {
            deadline,
            ttl: (ttl, ttl),
            gone: false,
            granted_sent: at,
            granted_disturbances: disturbances,
            disturbances,
            heard: 0,
            late: false,
        };
        let voucher = books.vouchers.entry((node, owner)).or_insert(fresh);
        voucher.heard = self.world.now();
        if deadline > voucher.deadline {
            (voucher.deadline, voucher.disturbances) = (deadline, disturbances);
        }
        voucher.ttl = (voucher.ttl.0.min(ttl), voucher.ttl.1.max(ttl));
    }

    /// A request of a claim got an error, or no answer in time.
    pub(crate) fn unanswered(&self, node: NodeId, owner: OwnerToken) {
        let now = self.sending(node);
        self.books().unanswered.insert((node, owner), now);
    }

    /// A claim asks, perhaps again. The request before may have brought a grant: a claim that goes on does not sleep so long
    /// that the grant runs out unheard of.
    pub(crate) fn asks(&self, node: NodeId, owner: OwnerToken, ttl: Duration) {
        let Some(before) = self.books().unanswered.remove(&(node, owner)) else { return };
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

    /// A yes to a claim reached this node: remembers whether it can still be used.
    pub(crate) fn is_late(&self, node: NodeId, owner: OwnerToken) {
        let local = self.sending(node).local;
        if let Some(voucher) = self.books().vouchers.get_mut(&(node, owner)) {
            voucher.late = local >= voucher.stop();
        }
    }

    /// A renewal leaves: a grant that came late is not given up without one. Whether there was such a grant.
    pub(crate) fn renews_late(&self, node: NodeId, owner: OwnerToken) -> bool {
        let mut books = self.books();
        books.vouchers.get_mut(&(node, owner)).is_some_and(|voucher| std::mem::take(&mut voucher.late))
    }

    /// A claim is given back.
    pub(crate) fn gives_back(&self, node: NodeId, owner: OwnerToken) {
        if self.renews_late(node, owner) {
            let message = format!("{owner:?} was granted late, and is given back without a renewal");
            self.world.fail("late grant", message);
        }
    }

    /// A no reached this node.
    pub(crate) fn disown(&self, node: NodeId, owner: OwnerToken) {
        if let Some(voucher) = self.books().vouchers.get_mut(&(node, owner)) {
            voucher.gone = true;
        }
    }

    pub(crate) fn voucher(&self, node: NodeId, owner: OwnerToken) -> Option<Voucher> {
        self.books().vouchers.get(&(node, owner)).copied()
    }

    /// Since when this owner knows that its lease is over.
    pub(crate) fn over_since(&self, node: NodeId, owner: OwnerToken) -> Option<(Time, String)> {
        let books = self.books();
        let belief = books.beliefs.values().find(|b| b.node == node && b.owner == Some(owner))?;
        belief.over_since.map(|since| (since, belief.name.clone()))
    }

    /// The resource was released and has to stay closed until then.
    pub(crate) fn close(&self, resource: &Resource, until: Time) {
        let mut books = self.books();
        let closed = books.closed.entry(resource.clone()).or_default();
        *closed = until.max(*closed);
    }

    /// An operator opened it.
    pub(crate) fn open(&self, resource: &Resource) {
        self.books().closed.remove(resource);
    }

    pub(crate) fn closed_until(&self, resource: &Resource) -> Option<Time> {
        self.books().closed.get(resource).copied()
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

/// One belief's page in the ledger.
#[derive(Debug)]
pub(crate) struct BeliefPage {
    ledger: Arc<Ledger>,
    id: u64,
}

impl BeliefPage {
    /// Asks now. Called by the holder itself, so its node runs.
    pub(crate) fn holds(&self) -> bool {
        let mut books = self.ledger.books();
        let Books { beliefs, vouchers, .. } = &mut *books;
        let belief = beliefs.get_mut(&self.id).expect("entered until the page is dropped");
        self.ledger.judge(belief, vouchers) == Some(true)
    }
}

impl Drop for BeliefPage {
    fn drop(&mut self) {
        let belief = self.ledger.books().beliefs.remove(&self.id);
        drop(belief); // outside of the lock
    }
}
