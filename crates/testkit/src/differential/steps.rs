//! What may happen in a case, as plain data that shrinks well.

use std::num::NonZeroU8;

use proptest::prelude::*;

/// A family of shares and what is done with them.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) family: Family,
    pub(super) steps: Vec<Step>,
}

/// What the resources of a case are used as.
#[derive(Clone, Copy, Debug)]
pub(super) enum Family {
    Mutex,
    Semaphore,
    ReadWrite,
}

/// An owner, by number, and a resource, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) owner: u8,
    pub(super) resource: u8,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Acquire(Asking),
    Renew { batch: Vec<Renewing>, second: bool },
    Release { who: Who, tombstone: Option<Span>, keep_for: Option<Span>, second: bool },
    Order { resource: u8, meaning: Meaning, what: What, second: bool },
    Look { resource: u8 },
    List { limit: u8 },
    Audit { limit: u8 },
    Pass(Pause),
}

#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) who: Who,
    /// Picks the weight within the family.
    pub(super) weight: u8,
    /// Uses another capacity than the family.
    pub(super) stray: bool,
    pub(super) queue: bool,
    pub(super) ttl: Span,
    pub(super) place_ttl: Span,
    pub(super) takes_over_from: Option<(u8, Option<Span>)>,
    pub(super) floor: bool,
    pub(super) note: Option<u8>,
    pub(super) second: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Renewing {
    pub(super) who: Who,
    pub(super) ttl: Span,
    pub(super) note: Option<u8>,
}

/// Which grant an order means.
#[derive(Clone, Copy, Debug)]
pub(super) enum Meaning {
    Whoever,
    LastGrantOf(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Ask,
    EvictAtExpiry,
    EvictNow,
    Pause(Span),
    Resume,
    Resize(NonZeroU8),
}

/// A length of time that is given: how long that is depends on the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    Zero,
    Short,
    Longer,
    Long,
}

/// A length of time that passes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    Blink,
    HalfShort,
    /// Exactly onto the end of what was given for short.
    Short,
    Longer,
    Long,
    /// Until even tombstones have ended.
    Forever,
}

const OWNERS: u8 = 5;

pub(super) fn case(most: usize) -> impl Strategy<Value = Case> {
    let family = prop_oneof![Just(Family::Mutex), Just(Family::Semaphore), Just(Family::ReadWrite)];
    (family, prop::collection::vec(step(), 1..=most)).prop_map(|(family, steps)| Case { family, steps })
}

fn who() -> impl Strategy<Value = Who> {
    let resource = prop_oneof![5 => Just(0u8), 1 => Just(1u8)];
    (0..OWNERS, resource).prop_map(|(owner, resource)| Who { owner, resource })
}

fn step() -> impl Strategy<Value = Step> {
    let renew = (prop::collection::vec(renewing(), 1..4), any::<bool>());
    let renew = renew.prop_map(|(batch, second)| Step::Renew { batch, second });
    let resource = prop_oneof![5 => Just(0u8), 1 => Just(1u8)];
    let meaning = prop_oneof![2 => Just(Meaning::Whoever), 1 => (0..OWNERS).prop_map(Meaning::LastGrantOf)];
    let order = (resource, meaning, what(), any::<bool>());
    let order =
        order.prop_map(|(resource, meaning, what, second)| Step::Order { resource, meaning, what, second });
    prop_oneof![
        16 => asking().prop_map(Step::Acquire),
        4 => renew,
        6 => release(),
        2 => order,
        1 => (0u8..2).prop_map(|resource| Step::Look { resource }),
        1 => (0u8..3).prop_map(|limit| Step::List { limit }),
        1 => (0u8..3).prop_map(|limit| Step::Audit { limit }),
        4 => pause().prop_map(Step::Pass),
    ]
}

fn asking() -> impl Strategy<Value = Asking> {
    let given = prop_oneof![2 => Just(Span::Short), 1 => Just(Span::Longer), 4 => Just(Span::Long)];
    let place = prop_oneof![1 => Just(Span::Short), 3 => Just(Span::Long)];
    let tombstone = prop::option::of(prop_oneof![Just(Span::Short), Just(Span::Long)]);
    let takes_over_from = prop::option::weighted(0.3, (0..OWNERS, tombstone));
    let flags =
        (prop::bool::weighted(0.03), prop::bool::weighted(0.7), prop::bool::weighted(0.2), any::<bool>());
    (who(), 0u8..4, flags, given, place, takes_over_from, prop::option::weighted(0.2, any::<u8>())).prop_map(
        |(who, weight, (stray, queue, floor, second), ttl, place_ttl, takes_over_from, note)| Asking {
            who,
            weight,
            stray,
            queue,
            ttl,
            place_ttl,
            takes_over_from,
            floor,
            note,
            second,
        },
    )
}

fn renewing() -> impl Strategy<Value = Renewing> {
    let given = prop_oneof![Just(Span::Short), Just(Span::Longer), Just(Span::Long)];
    (who(), given, prop::option::weighted(0.2, any::<u8>())).prop_map(|(who, ttl, note)| Renewing {
        who,
        ttl,
        note,
    })
}

fn release() -> impl Strategy<Value = Step> {
    let tombstone = prop::option::weighted(0.3, prop_oneof![Just(Span::Short), Just(Span::Long)]);
    let keep = prop_oneof![Just(Span::Zero), Just(Span::Short), Just(Span::Long)];
    let keep_for = prop::option::weighted(0.15, keep);
    let release = (who(), tombstone, keep_for, any::<bool>());
    release.prop_map(|(who, tombstone, keep_for, second)| Step::Release { who, tombstone, keep_for, second })
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        Just(What::Ask),
        Just(What::EvictAtExpiry),
        Just(What::EvictNow),
        prop_oneof![Just(Span::Short), Just(Span::Long)].prop_map(What::Pause),
        Just(What::Resume),
        (1u8..6).prop_map(|capacity| What::Resize(NonZeroU8::new(capacity).unwrap_or(NonZeroU8::MIN))),
    ]
}

fn pause() -> impl Strategy<Value = Pause> {
    prop_oneof![
        4 => Just(Pause::Blink),
        4 => Just(Pause::HalfShort),
        4 => Just(Pause::Short),
        2 => Just(Pause::Longer),
        1 => Just(Pause::Long),
        1 => Just(Pause::Forever),
    ]
}
