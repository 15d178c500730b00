//! The steps of a random case, as plain data that proptest can shrink.

use std::{num::NonZeroU8, ops::Range};

use proptest::prelude::*;

/// A random case: what its resources are used as, and its steps.
#[derive(Clone, Debug)]
pub(super) struct RandomCase {
    pub(super) family: ShareFamily,
    pub(super) steps: Vec<CaseStep>,
}

/// What the resources of a case are used as.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShareFamily {
    Mutex,
    Semaphore,
    ReadWrite,
}

/// The number of an owner and the number of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClaimKey {
    pub(super) owner: u8,
    pub(super) resource: u8,
}

/// One step of a case. `second` selects the second handle.
#[derive(Clone, Debug)]
pub(super) enum CaseStep {
    /// The claims of one call. Where a backend takes one claim at a time, they are sent one after the other.
    Acquire(Vec<AcquireStep>),
    Renew {
        batch: Vec<RenewStep>,
        second: bool,
    },
    /// The releases of one call, likewise.
    Release {
        batch: Vec<ReleaseStep>,
        second: bool,
    },
    Order {
        resource: u8,
        target: OrderTarget,
        kind: OrderKind,
        second: bool,
    },
    Inspect {
        resource: u8,
    },
    List {
        limit: u8,
    },
    Audit {
        limit: u8,
    },
    Pass(TimeStep),
}

/// An acquire.
#[derive(Clone, Debug)]
pub(super) struct AcquireStep {
    pub(super) claim: ClaimKey,
    /// Selects the weight among those of the family.
    pub(super) weight: u8,
    /// Whether the claim uses another capacity than the family.
    pub(super) other_capacity: bool,
    pub(super) queue: bool,
    pub(super) ttl: TtlChoice,
    pub(super) place_ttl: TtlChoice,
    /// The owner of the predecessor, and the ttl of its tombstone.
    pub(super) takes_over_from: Option<(u8, Option<TtlChoice>)>,
    /// Whether the claim asks for a token above the newest.
    pub(super) floor: bool,
    pub(super) note: Option<u8>,
    /// The number of the client; 0 for none.
    pub(super) client: u8,
    pub(super) second: bool,
}

/// A release in a batch.
#[derive(Clone, Debug)]
pub(super) struct ReleaseStep {
    pub(super) claim: ClaimKey,
    pub(super) tombstone: Option<TtlChoice>,
    pub(super) keep_for: Option<TtlChoice>,
}

/// A renewal in a batch.
#[derive(Clone, Debug)]
pub(super) struct RenewStep {
    pub(super) claim: ClaimKey,
    pub(super) ttl: TtlChoice,
    pub(super) note: Option<u8>,
}

/// The grant that an order is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum OrderTarget {
    AnyHolder,
    LastGrantOf(u8),
}

/// The action of an order.
#[derive(Clone, Copy, Debug)]
pub(super) enum OrderKind {
    Ask,
    EvictAtExpiry,
    EvictNow,
    Pause(TtlChoice),
    Resume,
    Resize(NonZeroU8),
}

/// The length of a ttl. The duration depends on the backend under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TtlChoice {
    Zero,
    Short,
    Longer,
    Long,
}

/// How much time passes in a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeStep {
    /// One millisecond.
    Moment,
    HalfShort,
    /// Exactly until a short ttl ends.
    Short,
    Longer,
    Long,
    /// Until even tombstones have expired.
    Forever,
}

const OWNERS: u8 = 5;

pub(super) fn case(most: usize) -> impl Strategy<Value = RandomCase> {
    let family =
        prop_oneof![Just(ShareFamily::Mutex), Just(ShareFamily::Semaphore), Just(ShareFamily::ReadWrite)];
    (family, prop::collection::vec(step(), 1..=most)).prop_map(|(family, steps)| RandomCase { family, steps })
}

fn claim_key() -> impl Strategy<Value = ClaimKey> {
    let resource = prop_oneof![5 => Just(0u8), 1 => Just(1u8)];
    (0..OWNERS, resource).prop_map(|(owner, resource)| ClaimKey { owner, resource })
}

fn step() -> impl Strategy<Value = CaseStep> {
    let renew = (prop::collection::vec(renew_step(), 1..4), any::<bool>());
    let renew = renew.prop_map(|(batch, second)| CaseStep::Renew { batch, second });
    let resource = prop_oneof![5 => Just(0u8), 1 => Just(1u8)];
    let target =
        prop_oneof![2 => Just(OrderTarget::AnyHolder), 1 => (0..OWNERS).prop_map(OrderTarget::LastGrantOf)];
    let order = (resource, target, order_kind(), any::<bool>());
    let order =
        order.prop_map(|(resource, target, kind, second)| CaseStep::Order { resource, target, kind, second });
    prop_oneof![
        12 => acquire_step().prop_map(|step| CaseStep::Acquire(vec![step])),
        4 => prop::collection::vec(acquire_step(), 2..5).prop_map(CaseStep::Acquire),
        4 => renew,
        4 => release(1..2),
        2 => release(2..4),
        2 => order,
        1 => (0u8..2).prop_map(|resource| CaseStep::Inspect { resource }),
        1 => (0u8..3).prop_map(|limit| CaseStep::List { limit }),
        1 => (0u8..3).prop_map(|limit| CaseStep::Audit { limit }),
        4 => time_step().prop_map(CaseStep::Pass),
    ]
}

fn acquire_step() -> impl Strategy<Value = AcquireStep> {
    let given =
        prop_oneof![2 => Just(TtlChoice::Short), 1 => Just(TtlChoice::Longer), 4 => Just(TtlChoice::Long)];
    let place = prop_oneof![1 => Just(TtlChoice::Short), 3 => Just(TtlChoice::Long)];
    let tombstone = prop::option::of(prop_oneof![Just(TtlChoice::Short), Just(TtlChoice::Long)]);
    let takes_over_from = prop::option::weighted(0.3, (0..OWNERS, tombstone));
    let flags =
        (prop::bool::weighted(0.03), prop::bool::weighted(0.7), prop::bool::weighted(0.2), any::<bool>());
    let client = 0u8..3;
    let note = prop::option::weighted(0.2, any::<u8>());
    (claim_key(), 0u8..4, flags, given, place, takes_over_from, note, client).prop_map(
        |(
            claim,
            weight,
            (other_capacity, queue, floor, second),
            ttl,
            place_ttl,
            takes_over_from,
            note,
            client,
        )| AcquireStep {
            claim,
            weight,
            other_capacity,
            queue,
            ttl,
            place_ttl,
            takes_over_from,
            floor,
            note,
            client,
            second,
        },
    )
}

fn renew_step() -> impl Strategy<Value = RenewStep> {
    let given = prop_oneof![Just(TtlChoice::Short), Just(TtlChoice::Longer), Just(TtlChoice::Long)];
    (claim_key(), given, prop::option::weighted(0.2, any::<u8>())).prop_map(|(claim, ttl, note)| RenewStep {
        claim,
        ttl,
        note,
    })
}

fn release(count: Range<usize>) -> impl Strategy<Value = CaseStep> {
    let tombstone = prop::option::weighted(0.3, prop_oneof![Just(TtlChoice::Short), Just(TtlChoice::Long)]);
    let keep = prop_oneof![Just(TtlChoice::Zero), Just(TtlChoice::Short), Just(TtlChoice::Long)];
    let keep_for = prop::option::weighted(0.15, keep);
    let release = (claim_key(), tombstone, keep_for);
    let release = release.prop_map(|(claim, tombstone, keep_for)| ReleaseStep { claim, tombstone, keep_for });
    let batch = (prop::collection::vec(release, count), any::<bool>());
    batch.prop_map(|(batch, second)| CaseStep::Release { batch, second })
}

fn order_kind() -> impl Strategy<Value = OrderKind> {
    prop_oneof![
        Just(OrderKind::Ask),
        Just(OrderKind::EvictAtExpiry),
        Just(OrderKind::EvictNow),
        prop_oneof![Just(TtlChoice::Short), Just(TtlChoice::Long)].prop_map(OrderKind::Pause),
        Just(OrderKind::Resume),
        (1u8..6).prop_map(|capacity| OrderKind::Resize(NonZeroU8::new(capacity).unwrap_or(NonZeroU8::MIN))),
    ]
}

fn time_step() -> impl Strategy<Value = TimeStep> {
    prop_oneof![
        4 => Just(TimeStep::Moment),
        4 => Just(TimeStep::HalfShort),
        4 => Just(TimeStep::Short),
        2 => Just(TimeStep::Longer),
        1 => Just(TimeStep::Long),
        1 => Just(TimeStep::Forever),
    ]
}
