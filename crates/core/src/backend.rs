//! The trait that every backend implements, and its contract.

use std::{borrow::Cow, fmt, future::Future, slice, time::Duration};

use crate::{
    claim::{Claim, ClaimRef, Cursor, OperatorCommand, Query, ReleaseRequest, RenewRequest},
    error::{Effect, Error, ErrorKind, Result},
    resource::Resource,
    verdict::{CommandOutcome, Page, Released, Renewal, Verdict},
};

/// A store that keeps leases.
///
/// Few verbs, no default methods. A lock, a semaphore and an election are the same verbs with other data (ADR 0002). The
/// engine in the crate `leasehold` is the only caller. One suite (`leasehold-testkit`) tests every line of this contract
/// on every backend, and compares it with the [model](crate::Model).
///
/// # The contract
///
/// - **B1 Atomic.** Each verb happens in one step or not at all. (On ZooKeeper no observer sees a grant that was
///   not given, and leftovers end with the session.)
/// - **B2 Idempotent on the owner token.** Asking again returns the same grant, with what *remains* of it;
///   releasing twice says [`AlreadyGone`](Released::AlreadyGone).
/// - **B3 Waiting is a hint.** `acquire` never waits. `wait` returns at once if it cannot prove that nothing
///   happened since the cursor, and always by `at_most`. A place in the queue expires unless it is renewed, and
///   a waiter that does not answer is passed over ([`queue`](crate::queue)).
/// - **B4 Times travel as durations.** Only the backend's clock decides what has expired. Every grant and renewal says
///   how much time was left when it was executed.
/// - **B5 Tokens grow.** Tokens of exclusive grants strictly grow per resource: across release, expiry, restart
///   and an empty queue. [`BackendInfo::tokens_break_when`] states what can break this.
/// - **B6 One capacity.** The first claim fixes the capacity for as long as the resource is in use.
/// - **B7 Effects are named.** Every error says its effect: `None` or `Unknown`. Dropping a verb's future has the
///   effect `Unknown`, nothing worse.
/// - **B8 Tombstones.** After a release with a `tombstone`, a delayed request of that owner is refused with
///   `Cancelled` and grants nothing. It still releases the claim that it was to take over from.
/// - **B9 Bounded.** Queue, note, page and batch have [stated limits](Limits); every verb but `inspect` and `order`
///   is O(log n) or better. (On ZooKeeper listing is O(n).)
/// - **B10 No revival.** `renew` never revives what has expired, and never shortens.
///
/// Which claim is granted when is decided by [the admission rule](crate::admission). Handover, pause, eviction and
/// resizing are spelled out, step by step, in [`model`](crate::model).
#[async_trait::async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The name of the backend, what it guarantees, what it can do, and its limits.
    fn info(&self) -> &BackendInfo;

    /// What fails together with this resource: a node, a shard, a slot. The engine batches renewals by it.
    fn failure_domain(&self, resource: &Resource) -> FailureDomain;

    /// Asks for grants. Never waits. A claim may take a place in the queue, or renew it.
    ///
    /// One result for each claim, in order. At most [`Limits::gather`] claims, all of one failure domain. Sending them
    /// together is only a way to travel: each claim is one step of its own (B1), with its own result and effect, and other
    /// requests may be executed in between. Claims on the same resource are executed in their order.
    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>>;

    /// Renews leases and places in the queue. One result for each request, in order. At most [`Limits::batch`] requests,
    /// all of one failure domain.
    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>>;

    /// Ends claims: releases the lease, or leaves the queue. One result for each request, in order, as with
    /// [`acquire`](Backend::acquire).
    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>>;

    /// Returns when the claim should ask again: it can be granted, or it has lost its place in the queue. For a claim
    /// without a place: when anything has changed since the cursor. In any case after `at_most`.
    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()>;

    /// Reads the state of resources, the audit trail, or how the servers of the store are. Changes nothing.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// Carries out an operator's command, and writes it to the audit trail in the same step.
    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome>;
}

// The trait must stay dyn-compatible: the backend is chosen by URL, at run time.
const _: fn(&dyn Backend) = |_| {};

/// Verbs for a single claim, on every [`Backend`].
pub trait BackendExt: Backend {
    /// Asks for one grant: [`acquire`](Backend::acquire) of one claim.
    ///
    /// # Errors
    /// As the verb, or `Unavailable` with the effect `Unknown` if the backend breaks the contract and gives no result.
    fn acquire_one(&self, claim: &Claim) -> impl Future<Output = Result<Verdict>> + Send {
        async move { only(self.acquire(slice::from_ref(claim)).await) }
    }

    /// Ends one claim: [`release`](Backend::release) of one request.
    ///
    /// # Errors
    /// As the verb, or `Unavailable` with the effect `Unknown` if the backend breaks the contract and gives no result.
    fn release_one(&self, request: &ReleaseRequest) -> impl Future<Output = Result<Released>> + Send {
        async move { only(self.release(slice::from_ref(request)).await) }
    }
}

impl<B: Backend + ?Sized> BackendExt for B {}

/// Carries out one request after the other: the way of a backend that gains nothing from carrying out many at once.
pub async fn one_by_one<'a, Q, T, F>(requests: &'a [Q], carry_out: impl Fn(&'a Q) -> F) -> Vec<T>
where
    F: Future<Output = T>,
{
    let mut results = Vec::with_capacity(requests.len());
    for request in requests {
        results.push(carry_out(request).await);
    }
    results
}

/// The result of a call with one request.
fn only<T>(mut results: Vec<Result<T>>) -> Result<T> {
    match results.pop() {
        Some(result) if results.is_empty() => result,
        _ => Err(Error::new(ErrorKind::Unavailable, "the backend did not give one result for one request")
            .with_effect(Effect::Unknown)),
    }
}

/// Leases of one failure domain become unreachable together: those on one server, shard or slot. The engine renews each
/// domain on its own, so that a dead one delays no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FailureDomain(pub u32);

/// What a backend is and promises.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendInfo {
    /// A short name: `sqlite`, `redis`.
    pub name: &'static str,
    /// How far its exclusion can be trusted.
    pub guarantee: Guarantee,
    /// Why it is at that level, in one sentence.
    pub because: Cow<'static, str>,
    /// What can make a token smaller than an earlier one, in one sentence.
    pub tokens_break_when: Cow<'static, str>,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its bounds.
    pub limits: Limits,
}

impl BackendInfo {
    /// Everything that the model can do, at this level.
    pub fn new(name: &'static str, guarantee: Guarantee) -> BackendInfo {
        BackendInfo {
            name,
            guarantee,
            because: Cow::Borrowed(""),
            tokens_break_when: Cow::Borrowed("nothing known"),
            capabilities: Capabilities::default(),
            limits: Limits::default(),
        }
    }
}

/// How far a backend's exclusion can be trusted, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Guarantee {
    /// One copy, or copies that may forget what was acknowledged: a failover can grant twice.
    BestEffort,
    /// A majority of independent nodes, trusting their clocks.
    Quorum,
    /// A transaction log on one durable node, or synchronous replicas.
    Database,
    /// A consensus protocol.
    Consensus,
}

impl Guarantee {
    /// A stable name, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Guarantee::BestEffort => "best-effort",
            Guarantee::Quorum => "quorum",
            Guarantee::Database => "database",
            Guarantee::Consensus => "consensus",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a backend can do. The suite chooses its tests by this; the engine refuses what is false, with a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Blocked claims can queue, and are granted in the order of the queue.
    pub queue: bool,
    /// Shares other than 1 of 1.
    pub shares: bool,
    /// A claim may take over from a holder while others are queued. (From a queued claim, or from a holder while nobody is
    /// queued: always.)
    pub handover: bool,
    /// A released resource can stay closed for a while (`keep_for`).
    pub keep_for: bool,
    /// Every claim has a ttl of its own. If false, a session keeps all claims of a client alive, so the engine releases a
    /// lost lease at its deadline.
    pub own_ttl: bool,
    /// Operators' commands, with their audit trail.
    pub orders: bool,
    /// The store itself grants to the head of the queue: a waiter may hold the resource before it asks again.
    pub self_granting: bool,
    /// Silent waiters are passed over, and keep their place: see [`queue`](crate::queue). If this and `removes_silent` are
    /// false, a dead waiter blocks the queue until its place expires.
    pub passes_over: bool,
    /// Silent waiters are removed from the queue by claims that [wait](Backend::wait) behind them. One that lives after all
    /// asks again, and stands at the end of the queue.
    pub removes_silent: bool,
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            queue: true,
            shares: true,
            handover: true,
            keep_for: true,
            own_ttl: true,
            orders: true,
            self_granting: false,
            passes_over: true,
            removes_silent: false,
        }
    }
}

/// A backend's bounds (B9). Beyond them it answers `Limit`, without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Claims in one queue.
    pub queue: u32,
    /// Bytes in a note.
    pub note: usize,
    /// Renewals in one call.
    pub batch: usize,
    /// Claims in one `acquire`, and requests in one `release`. With 1 the engine sends each of them alone.
    pub gather: usize,
    /// How many calls of `acquire`, and of `release`, may be under way in one failure domain before the engine gathers what
    /// comes next into one call.
    pub calls_in_flight: usize,
    /// Entries in one page.
    pub page: u32,
    /// The longest ttl. A claim for longer is made for this long, and renewed accordingly.
    pub ttl: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            queue: 1_000_000,
            note: 4096,
            batch: 1000,
            gather: 1,
            calls_in_flight: 1,
            page: 1000,
            ttl: Duration::from_secs(24 * 3600),
        }
    }
}
