//! The contenders of a resource, and the rule that decides which of them hold it. No I/O.
//!
//! 1. The children of a resource's folder are sorted by the part of their name that Curator sorts by.
//! 2. From the head, contenders hold the resource as long as the sum of their weights fits the capacity. The
//!    first contender that does not fit and all contenders behind it wait, so that no
//!    contender overtakes another.
//! 3. The capacity comes from the name of the first contender, unless an operator has set another one.
//! 4. While the resource is paused, no further contender is granted. Contenders that held it when the
//!    operator paused or resized it keep it.
//!
//! No node says "granted": a contender holds the resource from the moment in which it is within that run at
//! the head, whether or not its client has noticed (ADR 0025). The names suffice for the decision. Only a
//! weight can have been lowered afterwards, which is stored in the data of the node; so the name is an upper
//! bound.

use std::collections::HashMap;

use leasehold_core::{Error, ErrorKind, OwnerToken, Result, Share, admission::WINDOW};

use crate::{
    control_node::ControlNode,
    paths::{CONTROL, CURATOR_LOCK},
};

/// How many characters a UUID has.
const UUID_LENGTH: usize = 36;

/// A child of a resource's folder that competes for the resource, as its name describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) name: String,
    /// The offset in `name` of the part that decides the order.
    sort_key_at: usize,
    /// The owner token in the name, or what stands there in the name of a Curator node. `None` for a contender of
    /// any other program.
    pub(crate) owner: Option<OwnerToken>,
    pub(crate) share: Share,
}

impl Contender {
    pub(crate) fn parse(name: String) -> Contender {
        let sort_key_at = name.rfind(CURATOR_LOCK).map_or(0, |at| at + CURATOR_LOCK.len());
        // A contender of another program, such as Curator, is a plain mutex.
        let (owner, share) = parse_owner_and_share(&name).unwrap_or((None, Share::WHOLE));
        Contender { name, sort_key_at, owner, share }
    }

    /// The part of the name by which contenders are sorted, as text. Curator compares the same part in the
    /// same way.
    pub(crate) fn sort_key(&self) -> &str {
        &self.name[self.sort_key_at..]
    }

    /// What the node is if another program has created it.
    pub(crate) fn foreign_form(&self) -> &'static str {
        if self.owner.is_some() { "curator node" } else { "node" }
    }

    /// Whether the sequence number has overflowed 2^31 and is negative now. The newest contender would then
    /// sort first.
    pub(crate) fn has_wrapped(&self) -> bool {
        self.sort_key_at > 0 && self.sort_key().starts_with('-')
    }
}

/// Reads owner and share from `_c_<uuid>-lock-…` or `_c_<uuid>-<weight>of<capacity>-lock-…`.
fn parse_owner_and_share(name: &str) -> Option<(Option<OwnerToken>, Share)> {
    let rest = name.strip_prefix("_c_")?;
    let (uuid, rest) = rest.split_at_checked(UUID_LENGTH)?;
    let owner = uuid.replace('-', "").parse().ok();
    let middle = &rest[..rest.rfind(CURATOR_LOCK)?];
    let share = match middle.trim_matches('-').split_once("of") {
        Some((weight, capacity)) => Share::new(weight.parse().ok()?, capacity.parse().ok()?).ok()?,
        None => Share::WHOLE,
    };
    Some((owner, share))
}

/// All contenders of a resource, in order: first those that hold it, then those that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContenderList {
    pub(crate) contenders: Vec<Contender>,
    /// Whether the folder contains a control node.
    pub(crate) has_control_node: bool,
    /// Weights that are lower than the name says, by name.
    lowered_weights: HashMap<String, u32>,
}

/// The result of the admission rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) capacity: u32,
    /// How many contenders hold the resource, counted from the head. All others wait.
    pub(crate) holder_count: usize,
}

impl ContenderList {
    /// Parses and sorts the children of a resource's folder.
    ///
    /// # Errors
    /// `Limit` if sequence numbers have overflowed: then the newest contender sorts first, and no grant is
    /// safe.
    pub(crate) fn parse(children: Vec<String>) -> Result<ContenderList> {
        let child_count = children.len();
        let names = children.into_iter().filter(|name| name != CONTROL);
        let mut contenders: Vec<_> = names.map(Contender::parse).collect();
        if let Some(wrapped) = contenders.iter().find(|contender| contender.has_wrapped()) {
            let message = format!(
                "the sequence number {} of a contender has overflowed 2^31: stop all clients of this \
                 resource until the servers have removed its empty folder; numbers then start from 0",
                wrapped.sort_key()
            );
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let has_control_node = contenders.len() < child_count;
        contenders.sort_by(|a, b| a.sort_key().cmp(b.sort_key()));
        Ok(ContenderList { contenders, has_control_node, lowered_weights: HashMap::new() })
    }

    /// The position of the contender with this name; 0 is the head.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.name == name)
    }

    /// The positions of all contenders that have this owner in their name.
    pub(crate) fn positions_of_owner(&self, owner: OwnerToken) -> impl Iterator<Item = usize> {
        let named = move |(_, contender): &(usize, &Contender)| contender.owner == Some(owner);
        self.contenders.iter().enumerate().filter(named).map(|(position, _)| position)
    }

    /// Notes that a contender weighs less than its name says.
    pub(crate) fn lower_weight(&mut self, name: &str, weight: u32) {
        self.lowered_weights.insert(name.to_owned(), weight);
    }

    /// The weight of a contender, as far as it is known.
    pub(crate) fn weight(&self, contender: &Contender) -> u32 {
        let named = contender.share.weight();
        self.lowered_weights.get(&contender.name).map_or(named, |&lowered| named.min(lowered))
    }

    /// The capacity that the first `count` contenders use. `None` if `count` is 0.
    pub(crate) fn capacity_of_first(&self, count: usize, control: Option<&ControlNode>) -> Option<u32> {
        let first = self.contenders[..count].first()?;
        Some(control.and_then(|control| control.capacity).unwrap_or(first.share.capacity()))
    }

    /// Decides which contenders hold the resource.
    pub(crate) fn admission(&self, control: Option<&ControlNode>) -> Admission {
        let named_capacity = self.contenders.first().map_or(0, |first| first.share.capacity());
        let capacity = control.and_then(|control| control.capacity).unwrap_or(named_capacity);
        let is_paused = control.is_some_and(ControlNode::is_paused);
        let last_holder_key = control.and_then(|control| control.last_holder_key.as_deref());
        let (mut taken, mut holder_count) = (0, 0);
        for contender in &self.contenders {
            taken += u64::from(self.weight(contender));
            let held_before = last_holder_key.is_some_and(|last| contender.sort_key() <= last);
            if !held_before && (is_paused || taken > u64::from(capacity)) {
                break;
            }
            holder_count += 1;
        }
        Admission { capacity, holder_count }
    }

    /// Whether a contender with this weight at this position fits the capacity.
    pub(crate) fn fits(&self, position: usize, weight: u32, capacity: u32) -> bool {
        let ahead: u64 = self.contenders[..position].iter().map(|c| u64::from(self.weight(c))).sum();
        ahead + u64::from(weight) <= u64::from(capacity)
    }

    /// The contenders that a waiter at this position must watch: while all of them exist, it cannot be
    /// granted.
    ///
    /// Returns as few as possible, so that a release wakes as few waiters as possible: the heaviest first,
    /// and of equally heavy ones the nearest. For a mutex that is the direct predecessor, as in Curator.
    /// `None` if more than [`WINDOW`] would be needed, or if even all contenders ahead do not block it (it is
    /// paused).
    pub(crate) fn blockers(&self, position: usize, weight: u32, capacity: u32) -> Option<Vec<&Contender>> {
        let mut ahead: Vec<_> = self.contenders[..position].iter().rev().collect();
        ahead.sort_by_key(|contender| std::cmp::Reverse(self.weight(contender)));
        let (mut blockers, mut taken) = (Vec::new(), u64::from(weight));
        for contender in ahead {
            if taken > u64::from(capacity) {
                break;
            }
            taken += u64::from(self.weight(contender));
            blockers.push(contender);
        }
        (taken > u64::from(capacity) && blockers.len() <= WINDOW).then_some(blockers)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::admission;
    use proptest::prelude::*;

    use super::*;
    use crate::paths::contender_prefix;

    fn owner() -> OwnerToken {
        "00112233445566778899aabbccddeeff".parse().unwrap()
    }

    fn contenders(weights: &[u32], capacity: u32) -> ContenderList {
        let name = |(index, &weight): (usize, &u32)| {
            let owner = OwnerToken::from_bytes([u8::try_from(index).unwrap(); 16]);
            let share = Share::new(weight.min(capacity), capacity).unwrap();
            format!("{}{index:010}", contender_prefix(owner, share))
        };
        ContenderList::parse(weights.iter().enumerate().map(name).collect()).unwrap()
    }

    proptest! {
        #[test]
        fn the_holders_are_those_that_the_core_rule_would_grant(
            weights in prop::collection::vec(1u32..5, 0..40),
            capacity in 1u32..9,
        ) {
            let list = contenders(&weights, capacity);
            let weights: Vec<_> = list.contenders.iter().map(|c| list.weight(c)).collect();
            let holders = list.admission(None).holder_count;
            prop_assert_eq!(holders.min(admission::WINDOW), admission::grantable(0, weights, capacity));
        }

        #[test]
        fn while_its_blockers_exist_a_waiter_cannot_be_granted(
            weights in prop::collection::vec(1u32..5, 1..30),
            capacity in 1u32..9,
            stays in any::<u64>(),
        ) {
            let list = contenders(&weights, capacity);
            for position in list.admission(None).holder_count..list.contenders.len() {
                let own = list.weight(&list.contenders[position]);
                let blockers = list.blockers(position, own, capacity).expect("few enough");
                // Any other contender ahead may leave: the waiter still does not fit.
                let ahead = list.contenders[..position].iter().enumerate();
                let is_left = |(index, c): &(usize, &Contender)| {
                    blockers.contains(c) || (stays >> (index % 64)) & 1 == 1
                };
                let left: u64 = ahead.filter(is_left).map(|(_, c)| u64::from(list.weight(c))).sum();
                prop_assert!(left + u64::from(own) > u64::from(capacity));
            }
        }
    }

    #[test]
    fn a_mutex_watches_its_predecessor_and_so_does_a_writer() {
        let mutex = contenders(&[1, 1, 1], 1);
        let blockers = |list: &ContenderList, at: usize, weight: u32, capacity: u32| -> Vec<usize> {
            let blockers = list.blockers(at, weight, capacity).unwrap();
            blockers.iter().map(|blocker| list.position(&blocker.name).unwrap()).collect()
        };
        assert_eq!(blockers(&mutex, 2, 1, 1), [1]);
        let max = u32::MAX;
        let readers = contenders(&[1, 1, max, 1, max], max);
        assert_eq!(blockers(&readers, 4, max, max), [2], "the nearest writer ahead");
        assert_eq!(blockers(&readers, 2, max, max), [1], "all must go, so watching one of them suffices");
        assert_eq!(blockers(&readers, 3, 1, max), [2], "a reader waits for the writer alone");
    }

    #[test]
    fn a_pause_or_a_smaller_capacity_takes_the_resource_from_no_holder() {
        let list = contenders(&[2, 2, 1], 4);
        assert_eq!(list.admission(None), Admission { capacity: 4, holder_count: 2 });
        let last_holder_key = Some("0000000001".to_owned());
        let smaller = ControlNode {
            capacity: Some(2),
            last_holder_key: last_holder_key.clone(),
            ..ControlNode::default()
        };
        assert_eq!(list.admission(Some(&smaller)), Admission { capacity: 2, holder_count: 2 });
        let mut paused = ControlNode { last_holder_key, ..ControlNode::default() };
        paused.pause(1);
        assert_eq!(list.admission(Some(&paused)).holder_count, 2);
        let paused_when_free = ControlNode { last_holder_key: None, ..paused };
        assert_eq!(list.admission(Some(&paused_when_free)).holder_count, 0);
    }

    #[test]
    fn an_overflowed_sequence_number_is_an_error_and_never_a_grant() {
        let error = ContenderList::parse(vec!["_c_x-lock--2147483648".to_owned()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
    }

    #[test]
    fn a_contender_has_the_name_that_curator_would_give_it() {
        assert_eq!(contender_prefix(owner(), Share::WHOLE), "_c_00112233-4455-6677-8899-aabbccddeeff-lock-");
        for share in [Share::WHOLE, Share::READ, Share::WRITE, Share::new(2, 5).unwrap()] {
            let contender = Contender::parse(format!("{}0000000042", contender_prefix(owner(), share)));
            let parsed = (contender.owner, contender.share, contender.sort_key());
            assert_eq!(parsed, (Some(owner()), share, "0000000042"));
            assert!(!contender.has_wrapped());
        }
    }

    #[test]
    fn contenders_of_other_programs_sort_as_in_curator() {
        let kazoo = Contender::parse("f00__lock__0000000001".to_owned());
        assert_eq!((kazoo.owner, kazoo.sort_key()), (None, "f00__lock__0000000001"));
        let bare = Contender::parse("lock-0000000003".to_owned());
        assert_eq!((bare.owner, bare.sort_key(), bare.share), (None, "0000000003", Share::WHOLE));
        assert!(Contender::parse("_c_x-lock--2147483648".to_owned()).has_wrapped());
        assert!(Contender::parse(CONTROL.to_owned()).sort_key() > "9999999999");
    }
}
