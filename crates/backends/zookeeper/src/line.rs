//! Who of a line holds: the rule of seating, on a list of names. Pure.
//!
//! The store seats by itself. Whoever can move holds, whether or not it has asked again: as in Curator, where the first
//! in line is the holder. Weights only add up along the line, so the holders are always a run at its head.

use std::collections::HashMap;

use leasehold_core::{Error, ErrorKind, OwnerToken, Result, admission::WINDOW};

use crate::{
    control::Control,
    names::{CONTROL, Contender},
};

/// Everyone who is there, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) contenders: Vec<Contender>,
    /// Whether an operator has said something to the resource.
    pub(crate) has_control: bool,
    /// Weights that were lowered after the node was made, by name.
    lowered: HashMap<String, u32>,
}

/// Who holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seating {
    pub(crate) capacity: u32,
    /// So many from the head hold; the others wait.
    pub(crate) seated: usize,
}

impl Line {
    /// # Errors
    /// `Limit` if sequence numbers have wrapped: then the newest would stand first, and nobody can be granted.
    pub(crate) fn of(children: Vec<String>) -> Result<Line> {
        let before = children.len();
        let names = children.into_iter().filter(|name| name != CONTROL);
        let mut contenders: Vec<_> = names.map(Contender::read).collect();
        if contenders.iter().any(Contender::has_wrapped) {
            let message =
                "the line's sequence numbers have wrapped: let it run empty, so that its node is removed";
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let has_control = contenders.len() < before;
        contenders.sort_by(|a, b| a.key().cmp(b.key()));
        Ok(Line { contenders, has_control, lowered: HashMap::new() })
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.name == name)
    }

    /// All nodes that bear this owner's name, first in line first.
    pub(crate) fn of_owner(&self, owner: OwnerToken) -> impl Iterator<Item = &Contender> {
        self.contenders.iter().filter(move |contender| contender.owner == Some(owner))
    }

    /// This node weighs less than its name says.
    pub(crate) fn lower(&mut self, name: &str, weight: u32) {
        self.lowered.insert(name.to_owned(), weight);
    }

    pub(crate) fn weight(&self, contender: &Contender) -> u32 {
        let named = contender.share.weight();
        self.lowered.get(&contender.name).map_or(named, |&lowered| named.min(lowered))
    }

    /// The capacity that the first so many use; none if that is nobody.
    pub(crate) fn capacity_of(&self, first: usize, control: Option<&Control>) -> Option<u32> {
        let first = self.contenders[..first].first()?;
        Some(control.and_then(|control| control.capacity).unwrap_or(first.share.capacity()))
    }

    /// Who holds, under what an operator said.
    pub(crate) fn seating(&self, control: Option<&Control>) -> Seating {
        let first = self.contenders.first().map_or(0, |first| first.share.capacity());
        let capacity = control.and_then(|control| control.capacity).unwrap_or(first);
        let paused = control.is_some_and(Control::is_paused);
        let through = control.and_then(|control| control.through.as_deref());
        let (mut taken, mut seated) = (0, 0);
        for contender in &self.contenders {
            taken += u64::from(self.weight(contender));
            // Whoever held when the operator spoke goes on holding.
            let stays = through.is_some_and(|through| contender.key() <= through);
            if !stays && (paused || taken > u64::from(capacity)) {
                break;
            }
            seated += 1;
        }
        Seating { capacity, seated }
    }

    /// Whether one with this weight at this position would hold.
    pub(crate) fn would_hold(&self, position: usize, weight: u32, capacity: u32) -> bool {
        let ahead: u64 = self.contenders[..position].iter().map(|c| u64::from(self.weight(c))).sum();
        ahead + u64::from(weight) <= u64::from(capacity)
    }

    /// Whom to watch: as long as all of these are there, the one at this position cannot move. As few as will do,
    /// the heaviest and nearest first; nothing if it would take too many.
    pub(crate) fn blockers(&self, position: usize, weight: u32, capacity: u32) -> Option<Vec<&Contender>> {
        let mut ahead: Vec<_> = self.contenders[..position].iter().rev().collect();
        ahead.sort_by_key(|contender| std::cmp::Reverse(self.weight(contender)));
        let (mut chosen, mut taken) = (Vec::new(), u64::from(weight));
        for contender in ahead {
            if taken > u64::from(capacity) {
                break;
            }
            taken += u64::from(self.weight(contender));
            chosen.push(contender);
        }
        (taken > u64::from(capacity) && chosen.len() <= WINDOW).then_some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Share, admission};
    use proptest::prelude::*;

    use super::*;
    use crate::names::contender;

    fn line(weights: &[u32], capacity: u32) -> Line {
        let name = |(index, &weight): (usize, &u32)| {
            let owner = OwnerToken::from_bytes([u8::try_from(index).unwrap(); 16]);
            format!("{}{index:010}", contender(owner, Share::new(weight.min(capacity), capacity).unwrap()))
        };
        Line::of(weights.iter().enumerate().map(name).collect()).unwrap()
    }

    proptest! {
        #[test]
        fn the_store_seats_whom_the_rule_would_grant(weights in prop::collection::vec(1u32..5, 0..40), capacity in 1u32..9) {
            let line = line(&weights, capacity);
            let weights: Vec<_> = line.contenders.iter().map(|c| line.weight(c)).collect();
            let seated = line.seating(None).seated;
            prop_assert_eq!(seated.min(admission::WINDOW), admission::grantable(0, weights, capacity));
        }

        #[test]
        fn while_its_blockers_are_there_nobody_moves(weights in prop::collection::vec(1u32..5, 1..30), capacity in 1u32..9, gone in any::<u64>()) {
            let line = line(&weights, capacity);
            let seating = line.seating(None);
            for position in seating.seated..line.contenders.len() {
                let own = line.weight(&line.contenders[position]);
                let blockers = line.blockers(position, own, capacity).expect("few enough");
                // Anyone else ahead may leave: it still cannot move.
                let ahead = line.contenders[..position].iter().enumerate();
                let stays = ahead.filter(|(index, c)| blockers.contains(c) || (gone >> (index % 64)) & 1 == 1);
                let left: u64 = stays.map(|(_, c)| u64::from(line.weight(c))).sum();
                prop_assert!(left + u64::from(own) > u64::from(capacity));
            }
        }
    }

    #[test]
    fn a_mutex_watches_its_predecessor_and_a_writer_too() {
        let mutex = line(&[1, 1, 1], 1);
        let names = |line: &Line, at: usize, weight: u32, capacity: u32| -> Vec<usize> {
            let blockers = line.blockers(at, weight, capacity).unwrap();
            blockers.iter().map(|blocker| line.position(&blocker.name).unwrap()).collect()
        };
        assert_eq!(names(&mutex, 2, 1, 1), [1]);
        let max = u32::MAX;
        let readers = line(&[1, 1, max, 1, max], max);
        assert_eq!(names(&readers, 4, max, max), [2], "the nearest writer ahead");
        assert_eq!(names(&readers, 2, max, max), [1], "all must go: the last one tells");
        assert_eq!(names(&readers, 3, 1, max), [2], "a reader waits for the writer alone");
    }

    #[test]
    fn who_held_when_the_operator_spoke_goes_on() {
        let line = line(&[2, 2, 1], 4);
        assert_eq!(line.seating(None), Seating { capacity: 4, seated: 2 });
        let through = Some("0000000001".to_owned());
        let smaller = Control { capacity: Some(2), through: through.clone(), ..Control::default() };
        assert_eq!(line.seating(Some(&smaller)), Seating { capacity: 2, seated: 2 });
        let mut paused = Control { through, ..Control::default() };
        paused.pause(1);
        assert_eq!(line.seating(Some(&paused)).seated, 2);
        let nobody = Control { through: None, ..paused };
        assert_eq!(line.seating(Some(&nobody)).seated, 0);
    }

    #[test]
    fn a_wrapped_sequence_grants_nobody() {
        let error = Line::of(vec!["_c_x-lock--2147483648".to_owned()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
    }
}
