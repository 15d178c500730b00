//! Tests of the decision: from a resource as it was read to the plan.

use super::*;
use crate::{
    keys::Root,
    resource_view::tests::{claim, contender, view},
};
use leasehold_core::{Handover, Share};

const LEASES: AvailableLeases =
    AvailableLeases { hold: 77, wait: Some(66), tombstone: None, remainder: None };
const NO_KEYS: OwnerState =
    OwnerState { owner_key: OwnerKeyValue::Absent, owner_key_modified: ABSENT, slot_modified: ABSENT };

fn keys() -> ResourceKeys {
    Root::new(Root::DEFAULT).keys_of(&claim(1, Share::WHOLE).resource)
}

fn decide_with(claim: &Claim, view: ResourceView, owners: Vec<OwnerState>) -> Result<AcquirePlan, Error> {
    let (keys, read) = (keys(), ResourceRead { view, owners });
    let now = WallTime::from_micros(9);
    decide(&DecisionInput { keys: &keys, claim, read: &read, leases: LEASES, now, queue_max: 10 })
}

fn plan(claim: &Claim, view: ResourceView) -> AcquirePlan {
    decide_with(claim, view, vec![NO_KEYS; 2]).unwrap()
}

/// The names of the contenders, and whether each of them holds.
fn names(view: &ResourceView) -> Vec<(&str, bool)> {
    let contenders = view.contenders.iter().enumerate();
    contenders.map(|(index, contender)| (contender.name.as_str(), view.is_holder(index))).collect()
}

fn foreign(number: u8) -> Contender {
    Contender { record: None, ..contender(number, Share::WHOLE, false) }
}

#[test]
fn a_lease_is_handed_over_only_while_no_other_claim_waits() {
    let successor = claim(9, Share::WHOLE).queued().taking_over(Handover::from(claim(1, Share::WHOLE).owner));
    let alone = plan(&successor, view(vec![contender(1, Share::WHOLE, true)]));
    assert_eq!(alone.decision, Decision::Granted { created: None, continued_lease: None });
    assert_eq!(names(&alone.view), [(slot(&hash_owner(successor.owner)).as_str(), true)]);
    let none_since =
        |condition: &Precondition| matches!(condition, Precondition::NoneModifiedAfter { revision: 100, .. });
    assert!(alone.preconditions.iter().any(none_since));
    for waiter in [contender(2, Share::WHOLE, false), foreign(2)] {
        let refused = plan(&successor, view(vec![contender(1, Share::WHOLE, true), waiter]));
        assert_eq!(refused.decision, Decision::Blocked(Some(1)));
        let count = refused.view.contenders.len();
        assert_eq!(count, 2, "the predecessor is released, and the successor is at the end of the queue");
    }
}

#[test]
fn a_downgrade_keeps_its_lease_and_beside_a_foreign_lock_also_its_key() {
    let from = Handover::from(claim(1, Share::WRITE).owner);
    let reader = claim(9, Share::READ).taking_over(from);
    let moved =
        plan(&reader, view(vec![contender(1, Share::WRITE, true), contender(2, Share::WRITE, false)]));
    assert_eq!(moved.decision, Decision::Granted { created: None, continued_lease: Some(1) });
    assert_eq!(names(&moved.view), [("2", false), (slot(&hash_owner(reader.owner)).as_str(), true)]);
    let stayed = plan(&reader, view(vec![contender(1, Share::WRITE, true), foreign(2)]));
    assert_eq!(stayed.decision, Decision::Granted { created: Some(1), continued_lease: Some(1) });
    assert_eq!(names(&stayed.view), [("1", true), ("2", false)], "it is still first by creation");
}

#[test]
fn the_grant_of_a_waiter_depends_on_its_own_key_and_not_on_later_claims() {
    let ours = claim(2, Share::WHOLE).queued();
    let plan = plan(&ours, view(vec![contender(2, Share::WHOLE, false), contender(3, Share::WHOLE, false)]));
    assert_eq!(plan.decision, Decision::Granted { created: Some(2), continued_lease: None });
    let own_key = Precondition::ModifiedAt("leasehold/v1/lock/a/b/2".to_owned(), 2);
    assert!(plan.preconditions.contains(&own_key), "it must still be there");
    let none_since = |condition: &Precondition| matches!(condition, Precondition::NoneModifiedAfter { .. });
    assert!(!plan.preconditions.iter().any(none_since), "claims behind it do not matter");
}

#[test]
fn a_full_queue_takes_no_more_claims_and_a_token_is_never_below_the_floor() {
    let many = (1..=11).map(|number| contender(number, Share::WHOLE, number == 1)).collect();
    let late = claim(99, Share::WHOLE).queued();
    let error = decide_with(&late, view(many), vec![NO_KEYS]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    let above = claim(2, Share::WHOLE).queued().above(FencingToken::new(50).unwrap());
    let alone = view(vec![contender(2, Share::WHOLE, false)]);
    let error = decide_with(&above, alone, vec![NO_KEYS]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn a_new_claim_is_one_key_and_a_place_that_was_taken_over_has_an_owner_key_too() {
    let ours = claim(9, Share::WHOLE).queued();
    let hash = hash_owner(ours.owner);
    let slot = slot(&hash);
    let (lock, owner) = (format!("leasehold/v1/lock/a/b/{slot}"), format!("leasehold/v1/own/a/b/{hash}"));
    let new = plan(&ours, view(vec![contender(1, Share::WHOLE, true)]));
    assert_eq!(new.changes.keys().collect::<Vec<_>>(), [&lock]);
    for key in [&lock, &owner] {
        let absent = Precondition::ModifiedAt(key.clone(), ABSENT);
        assert!(new.preconditions.contains(&absent), "{:?}", new.preconditions);
    }
    let successor = ours.taking_over(Handover::from(claim(2, Share::WHOLE).owner));
    let taken =
        plan(&successor, view(vec![contender(1, Share::WHOLE, true), contender(2, Share::WHOLE, false)]));
    assert_eq!(taken.decision, Decision::Blocked(Some(1)));
    assert_eq!(taken.changes[&owner], KeyChange::Put { value: "2".to_owned(), lease: 66 });
    assert_eq!(taken.changes.len(), 2, "the contender and the owner key: {:?}", taken.changes);
}

#[test]
fn a_shared_claim_below_its_floor_gets_a_new_key_under_a_new_name() {
    let share = Share::new(1, 2).unwrap();
    let ours = claim(9, share).queued().above(FencingToken::new(50).unwrap());
    let hash = hash_owner(ours.owner);
    let keys = keys();
    let place = Contender { name: slot(&hash), ..contender(9, share, false) };
    let owners = vec![OwnerState { slot_modified: place.modified, ..NO_KEYS }];
    let plan = decide_with(&ours, view(vec![place]), owners).unwrap();
    let name = name_from_lease(LEASES.hold);
    assert_eq!(plan.decision, Decision::Granted { created: None, continued_lease: None });
    assert_eq!(plan.changes[&keys.contender(&slot(&hash))], KeyChange::Delete, "the old key is deleted");
    assert!(matches!(plan.changes[&keys.contender(&name)], KeyChange::Put { .. }));
    assert_eq!(plan.changes[&keys.owner(&hash)], KeyChange::Put { value: name, lease: 77 });
}

#[test]
fn a_claim_whose_slot_is_taken_is_named_by_its_lease_and_has_an_owner_key() {
    let ours = claim(9, Share::WHOLE).queued();
    let (keys, hash) = (keys(), hash_owner(ours.owner));
    let theirs = Contender { name: slot(&hash), ..contender(1, Share::WHOLE, true) };
    let owners = vec![OwnerState { slot_modified: theirs.modified, ..NO_KEYS }];
    let name = name_from_lease(LEASES.hold);
    let queued = decide_with(&ours, view(vec![theirs.clone()]), owners.clone()).unwrap();
    assert_eq!(queued.decision, Decision::Blocked(Some(1)));
    assert!(matches!(queued.changes[&keys.contender(&name)], KeyChange::Put { lease: 66, .. }));
    assert_eq!(queued.changes[&keys.owner(&hash)], KeyChange::Put { value: name.clone(), lease: 66 });
    assert!(queued.preconditions.contains(&Precondition::ModifiedAt(keys.contender(&name), ABSENT)));
    let same_slot = Precondition::ModifiedAt(keys.contender(&slot(&hash)), theirs.modified);
    assert!(queued.preconditions.contains(&same_slot), "the owner has not got the slot since");
    // A successor still has the name of a lease that this claim uses now.
    let taken_over = Contender { name: name.clone(), ..contender(2, Share::WHOLE, false) };
    let third = decide_with(&ours, view(vec![theirs, taken_over]), owners).unwrap();
    assert_eq!(third.view.contenders[2].name, format!("{name}.64"));
}
