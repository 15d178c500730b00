//! The verb `acquire`, decided: from one resource as it was read to what is to be written, if nothing has changed.
//!
//! Pure. It follows the model step by step; where it differs, a comment says so.

use leasehold_core::{Claim, Error, ErrorKind, FencingToken, GoneReason, WallTime, WhenBlocked};

use crate::{
    entry::Entry,
    keys::{Keys, mark},
    line::{Contender, Line, Own, OwnKey},
    read::grave,
    txn::{Change, Changes, Guard},
};

/// The etcd leases that a plan may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leases {
    /// What a holder is put under.
    pub(crate) hold: i64,
    /// What a place is put under, if there is one at hand.
    pub(crate) place: Option<i64>,
    /// What a tombstone of the predecessor is put under, if there is to be one.
    pub(crate) grave: Option<i64>,
    /// What a downgrade is put under that must not stay under the lease of its predecessor.
    pub(crate) remainder: Option<i64>,
}

/// What the claim is answered once the plan is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Cancelled,
    Mismatch(u32),
    /// It holds already, at this index.
    Holds(usize),
    /// Its contender was created then, or is created now; its lease, if it is not the one to hold under.
    Granted {
        created: Option<i64>,
        lease: Option<i64>,
    },
    /// It waits at this index, or has no place.
    Blocked(Option<usize>),
    /// It is to wait, and there is no lease for its place at hand.
    NeedsPlace,
}

/// What to write, and what that means.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) guards: Vec<Guard>,
    pub(crate) changes: Changes,
    pub(crate) answer: Answer,
    /// The line as it is afterwards.
    pub(crate) line: Line,
}

/// An upper bound for what was not created yet.
const NEW: i64 = i64::MAX;

struct Draft<'a> {
    keys: &'a Keys,
    claim: &'a Claim,
    leases: Leases,
    now: WallTime,
    me: String,
    /// What there is of the claimant, and of its predecessor if it has one.
    owns: &'a [OwnKey],
    guards: Vec<Guard>,
    changes: Changes,
    line: Line,
    /// Someone may have come in between, and that would matter.
    needs_quiet: bool,
}

/// Decides. `owns` says what there is of the claimant, and of its predecessor if it has one.
///
/// # Errors
/// `Limit` if the line is full; `Invalid` if the floor cannot be met.
pub(crate) fn decide(
    keys: &Keys,
    claim: &Claim,
    (line, owns): (Line, &[OwnKey]),
    leases: Leases,
    now: WallTime,
    line_max: usize,
) -> Result<Plan, Error> {
    let me = mark(claim.owner);
    let read = (line.revision, line.pause.clone());
    let draft = Draft {
        keys,
        claim,
        leases,
        now,
        me,
        owns,
        guards: Vec::new(),
        changes: Changes::new(),
        line,
        needs_quiet: false,
    };
    draft.run(line_max).map(|(draft, answer)| draft.finish(read, answer))
}

impl Draft<'_> {
    fn run(mut self, line_max: usize) -> Result<(Self, Answer), Error> {
        let capacity = self.claim.share.capacity();
        let from = self.claim.takes_over_from.map(|from| mark(from.owner)).filter(|from| *from != self.me);
        if self.owns.first().is_some_and(|own| matches!(own.own, Own::Grave(_))) {
            // The claim is dead, but whom it was to succeed wanted to go all the same.
            from.iter().for_each(|from| self.depart(from));
            return Ok((self, Answer::Cancelled));
        }
        if let Some(index) = self.line.find(&self.me).filter(|index| self.line.is_held(*index)) {
            let kept = self.entry(index).is_some_and(|entry| entry.kept);
            return Ok((self, if kept { Answer::Cancelled } else { Answer::Holds(index) }));
        }
        if let Some(theirs) = self.line.capacity().filter(|theirs| *theirs != capacity) {
            self.leave();
            return Ok((self, Answer::Mismatch(theirs)));
        }
        if let Some(from) = from
            && let Some(answer) = self.succeed(&from)
        {
            return Ok((self, answer));
        }
        let place = self.line.find(&self.me);
        let open = self.line.pause.is_none();
        if open && self.line.fits(place, self.claim.share.weight(), capacity) {
            let answer = self.sit(place)?;
            return Ok((self, answer));
        }
        let answer = self.wait(place, line_max)?;
        Ok((self, answer))
    }

    fn entry(&self, index: usize) -> Option<&Entry> {
        self.line.contenders[index].entry.as_ref()
    }

    /// Takes over a seat, or a place; or finds nothing, and leaves the rest to the rule.
    fn succeed(&mut self, from: &str) -> Option<Answer> {
        let weight = self.claim.share.weight();
        let found = self.line.find(from);
        let seat = found.filter(|index| self.line.is_held(*index));
        let seat = seat.and_then(|index| Some((index, self.entry(index)?.clone())));
        if let Some((index, seat)) = seat.filter(|(_, seat)| !seat.kept && seat.weight >= weight) {
            let downgrade = weight < seat.weight;
            // Tokens are creation revisions: a seat that was handed on past someone who waits would make the token
            // of that one the lower of the two. So unlike the model, nothing is handed on past anyone.
            let others = self.line.places().any(|place| Some(place) != self.line.find(&self.me));
            if !downgrade && (self.line.pause.is_some() || seat.evicting || others) {
                self.depart(from);
                return None;
            }
            return Some(self.inherit(from, index, &seat, downgrade));
        }
        let place = found.filter(|index| !self.line.is_held(*index));
        if let (Some(index), None, WhenBlocked::Queue, Some(lease)) =
            (place, self.line.find(&self.me), self.claim.when_blocked, self.leases.place)
        {
            let mut entry = Entry::waiting(self.claim, self.now);
            entry.since_us = self.entry(index).map_or(entry.since_us, |old| old.since_us);
            self.forget(from);
            self.rewrite(index, entry, lease);
            return None;
        }
        if place.is_some()
            && self.claim.when_blocked == WhenBlocked::Queue
            && self.line.find(&self.me).is_none()
        {
            return Some(Answer::NeedsPlace);
        }
        self.depart(from);
        None
    }

    fn inherit(&mut self, from: &str, index: usize, seat: &Entry, downgrade: bool) -> Answer {
        let mut entry = Entry::holding(self.claim, self.now);
        entry.turns = if downgrade { seat.turns } else { seat.turns.saturating_add(1) };
        let lease = self.leases.remainder.unwrap_or(self.line.contenders[index].lease);
        if !downgrade {
            self.depart(from);
            self.leave();
            self.add(entry, self.leases.hold);
            return Answer::Granted { created: None, lease: None };
        }
        // The same work goes on with less: until the same end, and what an operator said to it stands.
        (entry.asked, entry.evicting, entry.ttl_ms) = (seat.asked.clone(), seat.evicting, seat.ttl_ms);
        if self.line.has_strangers() {
            // A stranger goes by the order of creation alone: the key must stay where it is.
            let created = self.line.contenders[index].created;
            self.forget(from);
            self.leave();
            let index = self.line.find(from).unwrap_or(index);
            self.rewrite(index, entry, lease);
            return Answer::Granted { created: Some(created), lease: Some(lease) };
        }
        self.depart(from);
        self.leave();
        self.add(entry, lease);
        Answer::Granted { created: None, lease: Some(lease) }
    }

    /// Takes a seat: from its place, or as a new contender.
    fn sit(&mut self, place: Option<usize>) -> Result<Answer, Error> {
        let entry = Entry::holding(self.claim, self.now);
        let Some(index) = place else {
            self.add(entry, self.leases.hold);
            return Ok(Answer::Granted { created: None, lease: None });
        };
        let created = self.line.contenders[index].created;
        let floor = self.claim.floor.map_or(0, FencingToken::as_i64);
        if floor < created {
            self.rewrite(index, entry, self.leases.hold);
            return Ok(Answer::Granted { created: Some(created), lease: None });
        }
        if self.claim.share.is_exclusive() {
            return Err(beyond(floor, self.line.revision));
        }
        // Who shares has no order to keep: it takes a new number.
        self.leave();
        self.add(entry, self.leases.hold);
        Ok(Answer::Granted { created: None, lease: None })
    }

    fn wait(&mut self, place: Option<usize>, line_max: usize) -> Result<Answer, Error> {
        match (self.claim.when_blocked, place, self.leases.place) {
            (WhenBlocked::Leave, ..) => {
                self.leave();
                Ok(Answer::Blocked(None))
            }
            (WhenBlocked::Queue, Some(index), _) => Ok(Answer::Blocked(Some(index))),
            (WhenBlocked::Queue, None, None) => Ok(Answer::NeedsPlace),
            (WhenBlocked::Queue, None, Some(_)) if self.line.ahead(None) >= line_max => Err(full(line_max)),
            (WhenBlocked::Queue, None, Some(lease)) => {
                let quiet = self.needs_quiet;
                self.add(Entry::waiting(self.claim, self.now), lease);
                if !quiet && !self.line.has_strangers() && self.line.contenders.len() > 1 {
                    // Whoever comes in between comes first: it does not matter, if it is of the same capacity.
                    let (lock, capacity) = (self.keys.lock.clone(), self.claim.share.capacity());
                    self.needs_quiet = false;
                    self.guards.push(Guard::Capacity { lock, capacity });
                }
                Ok(Answer::Blocked(Some(self.line.contenders.len() - 1)))
            }
        }
    }

    /// A new contender, behind all.
    fn add(&mut self, entry: Entry, lease: i64) {
        let home = self.owns.first().map_or(0, |own| own.home);
        // Its own place, or what an heir has made of that, bears the mark already: a key of its own all the same.
        let name = if home == 0 { self.me.clone() } else { format!("{}.{:x}", self.me, self.line.revision) };
        self.guard(&name, 0);
        self.put(&name, &entry, lease);
        let (created, modified, text) = (NEW, NEW, String::new());
        self.line.contenders.push(Contender { name, created, modified, lease, entry: Some(entry), text });
        self.line.total += 1;
        self.needs_quiet = true;
    }

    /// Makes a contender ours, or another one of ours; its creation revision stays.
    fn rewrite(&mut self, index: usize, entry: Entry, lease: i64) {
        let Contender { name, modified, .. } = self.line.contenders[index].clone();
        self.guard(&name, modified);
        self.put(&name, &entry, lease);
        let contender = &mut self.line.contenders[index];
        (contender.entry, contender.lease, contender.modified) = (Some(entry), lease, NEW);
    }

    /// Writes a contender of the claimant, and where it is unless it bears the mark.
    fn put(&mut self, name: &str, entry: &Entry, lease: i64) {
        self.changes.insert(self.keys.contender(name), Change::Put { value: entry.write(), lease });
        if name == self.me {
            self.unpoint(&self.me.clone());
        } else {
            let change = Change::Put { value: name.to_owned(), lease };
            self.changes.insert(self.keys.own(&self.me), change);
        }
    }

    fn remove(&mut self, index: usize) {
        let contender = self.line.contenders.remove(index);
        self.line.total -= 1;
        self.guard(&contender.name, contender.modified);
        self.changes.insert(self.keys.contender(&contender.name), Change::Delete);
    }

    /// A contender must be as it was read.
    fn guard(&mut self, name: &str, modified: i64) {
        let guard = Guard::Modified(self.keys.contender(name), modified);
        if modified != NEW && !self.guards.contains(&guard) {
            self.guards.push(guard);
        }
    }

    /// Gives up the claimant's own place.
    fn leave(&mut self) {
        if let Some(index) = self.line.find(&self.me) {
            self.remove(index);
            self.unpoint(&self.me.clone());
        }
    }

    /// An owner's key goes, if there is one, or if one was to be.
    fn unpoint(&mut self, mark: &str) {
        let key = self.keys.own(mark);
        let own = self.owns.get(usize::from(mark != self.me));
        self.changes.remove(&key);
        if own.is_some_and(|own| own.modified != 0) {
            self.changes.insert(key, Change::Delete);
        }
    }

    /// The predecessor goes, unless it is only kept, and is buried if some request of it may still come.
    fn depart(&mut self, from: &str) {
        let found = self.line.find(from);
        if let Some(index) = found.filter(|index| !self.entry(*index).is_some_and(|entry| entry.kept)) {
            self.remove(index);
            self.forget(from);
        } else if self.leases.grave.is_some() {
            self.forget(from);
        }
    }

    /// The predecessor's key goes, or becomes a tombstone.
    fn forget(&mut self, from: &str) {
        self.unpoint(from);
        if let Some(lease) = self.leases.grave {
            let change = Change::Put { value: grave(GoneReason::Cancelled), lease };
            self.changes.insert(self.keys.own(from), change);
        }
    }

    fn finish(mut self, read: (i64, Option<crate::line::Pause>), answer: Answer) -> Plan {
        if !self.changes.is_empty() {
            let marks = [Some(self.me.clone()), self.claim.takes_over_from.map(|from| mark(from.owner))];
            for (mark, own) in marks.into_iter().flatten().zip(self.owns) {
                self.guards.push(Guard::Modified(self.keys.own(&mark), own.modified));
                // Nothing of an owner came to where it would be, either.
                self.guard(&mark, own.home);
            }
            let (revision, pause) = read;
            let modified = pause.map_or(0, |pause| pause.modified);
            self.guards.push(Guard::Modified(self.keys.pause.clone(), modified));
            if self.needs_quiet {
                self.guards.push(Guard::NothingSince { lock: self.keys.lock.clone(), revision });
            }
        }
        let Draft { guards, changes, line, .. } = self;
        Plan { guards, changes, answer, line }
    }
}

/// The floor is above what the store can give.
pub(crate) fn beyond(floor: i64, revision: i64) -> Error {
    let message = format!(
        "token {floor} has been seen, and etcd is at revision {revision}: it was restored from an older snapshot, and \
         its tokens would go back"
    );
    Error::new(ErrorKind::Invalid, message)
}

pub(crate) fn full(line_max: usize) -> Error {
    Error::new(ErrorKind::Limit, format!("{line_max} wait in line already"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        keys::Root,
        line::tests::{claim, contender, line},
    };
    use leasehold_core::{Handover, Share};

    const LEASES: Leases = Leases { hold: 77, place: Some(66), grave: None, remainder: None };
    const NOTHING: OwnKey = OwnKey { own: Own::Nothing, modified: 0, home: 0 };

    fn plan(claim: &Claim, line: Line) -> Plan {
        let keys = Root::new(Root::DEFAULT).of(&claim.resource);
        let owns = vec![NOTHING; 2];
        decide(&keys, claim, (line, &owns), LEASES, WallTime::from_micros(9), 10).unwrap()
    }

    fn of(line: &Line) -> Vec<(&str, bool)> {
        let held = |(index, contender)| -> (&str, bool) {
            let contender: &Contender = contender;
            (contender.name.as_str(), line.is_held(index))
        };
        line.contenders.iter().enumerate().map(held).collect()
    }

    fn stranger(number: u8) -> Contender {
        Contender { entry: None, ..contender(number, Share::WHOLE, false) }
    }

    #[test]
    fn a_seat_is_handed_on_only_while_nobody_waits() {
        let heir = claim(9, Share::WHOLE).queued().taking_over(Handover::from(claim(1, Share::WHOLE).owner));
        let alone = plan(&heir, line(vec![contender(1, Share::WHOLE, true)]));
        assert_eq!(alone.answer, Answer::Granted { created: None, lease: None });
        assert_eq!(of(&alone.line), [(mark(heir.owner).as_str(), true)]);
        assert!(alone.guards.iter().any(|guard| matches!(guard, Guard::NothingSince { revision: 100, .. })));
        for waiting in [contender(2, Share::WHOLE, false), stranger(2)] {
            let refused = plan(&heir, line(vec![contender(1, Share::WHOLE, true), waiting]));
            assert_eq!(refused.answer, Answer::Blocked(Some(1)));
            assert_eq!(
                refused.line.contenders.len(),
                2,
                "the predecessor is gone, and the heir stands at the end"
            );
        }
    }

    #[test]
    fn a_downgrade_stays_under_its_lease_and_past_a_stranger_in_its_place() {
        let from = Handover::from(claim(1, Share::WRITE).owner);
        let reader = claim(9, Share::READ).taking_over(from);
        let moved =
            plan(&reader, line(vec![contender(1, Share::WRITE, true), contender(2, Share::WRITE, false)]));
        assert_eq!(moved.answer, Answer::Granted { created: None, lease: Some(1) });
        assert_eq!(of(&moved.line), [("2", false), (mark(reader.owner).as_str(), true)]);
        let stayed = plan(&reader, line(vec![contender(1, Share::WRITE, true), stranger(2)]));
        assert_eq!(stayed.answer, Answer::Granted { created: Some(1), lease: Some(1) });
        assert_eq!(of(&stayed.line), [("1", true), ("2", false)], "it is still first by creation");
    }

    #[test]
    fn a_place_is_granted_by_its_own_key_alone() {
        let ours = claim(2, Share::WHOLE).queued();
        let plan =
            plan(&ours, line(vec![contender(2, Share::WHOLE, false), contender(3, Share::WHOLE, false)]));
        assert_eq!(plan.answer, Answer::Granted { created: Some(2), lease: None });
        let own = Guard::Modified("leasehold/v1/lock/a/b/2".to_owned(), 2);
        assert!(plan.guards.contains(&own), "it must still be there");
        let quiet = plan.guards.iter().any(|guard| matches!(guard, Guard::NothingSince { .. }));
        assert!(!quiet, "whoever comes behind does not disturb it");
    }

    #[test]
    fn a_full_line_takes_no_more_and_an_old_token_is_not_undercut() {
        let crowd = (1..=11).map(|number| contender(number, Share::WHOLE, number == 1)).collect();
        let keys = Root::new(Root::DEFAULT).of(&claim(99, Share::WHOLE).resource);
        let owns = vec![NOTHING];
        let now = WallTime::from_micros(9);
        let late = claim(99, Share::WHOLE).queued();
        let error = decide(&keys, &late, (line(crowd), &owns), LEASES, now, 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        let above = claim(2, Share::WHOLE).queued().above(FencingToken::new(50).unwrap());
        let alone = line(vec![contender(2, Share::WHOLE, false)]);
        let error = decide(&keys, &above, (alone, &owns), LEASES, now, 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_new_contender_is_one_key_and_one_that_was_taken_over_is_found_by_a_second() {
        let ours = claim(9, Share::WHOLE).queued();
        let me = mark(ours.owner);
        let (lock, own) = (format!("leasehold/v1/lock/a/b/{me}"), format!("leasehold/v1/own/a/b/{me}"));
        let new = plan(&ours, line(vec![contender(1, Share::WHOLE, true)]));
        assert_eq!(new.changes.keys().collect::<Vec<_>>(), [&lock]);
        for key in [&lock, &own] {
            assert!(new.guards.contains(&Guard::Modified(key.clone(), 0)), "{:?}", new.guards);
        }
        let heir = ours.taking_over(Handover::from(claim(2, Share::WHOLE).owner));
        let taken =
            plan(&heir, line(vec![contender(1, Share::WHOLE, true), contender(2, Share::WHOLE, false)]));
        assert_eq!(taken.answer, Answer::Blocked(Some(1)));
        assert_eq!(taken.changes[&own], Change::Put { value: "2".to_owned(), lease: 66 });
        assert_eq!(taken.changes.len(), 2, "it, and where it is: {:?}", taken.changes);
    }

    #[test]
    fn who_shares_takes_a_new_number_under_a_new_name() {
        let share = Share::new(1, 2).unwrap();
        let ours = claim(9, share).queued().above(FencingToken::new(50).unwrap());
        let me = mark(ours.owner);
        let keys = Root::new(Root::DEFAULT).of(&ours.resource);
        let place = Contender { name: me.clone(), ..contender(9, share, false) };
        let owns = [OwnKey { home: place.modified, ..NOTHING }];
        let now = WallTime::from_micros(9);
        let plan = decide(&keys, &ours, (line(vec![place]), &owns), LEASES, now, 10).unwrap();
        let name = format!("{me}.64");
        assert_eq!(plan.answer, Answer::Granted { created: None, lease: None });
        assert_eq!(plan.changes[&keys.contender(&me)], Change::Delete, "a key is created once it was gone");
        assert!(matches!(plan.changes[&keys.contender(&name)], Change::Put { .. }));
        assert_eq!(plan.changes[&keys.own(&me)], Change::Put { value: name, lease: 77 });
    }
}
