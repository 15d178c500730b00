//! The changes of the last samples, numbered, for streams that follow them and for the timeline of a resource. Bounded: what is older is
//! forgotten, and a stream that has not read it is told so.

use std::{collections::VecDeque, fmt::Write as _, sync::Arc, time::Duration};

use leasehold_api::events::{CHANGE, ChangeBody, ResyncReason};
use leasehold_core::Resource;

use super::changes::Change;
use crate::access::Scope;

/// How many changes a stream reads at once.
const READ_AT_ONCE: usize = 256;
/// A reader that has more changes than this before it is told to read the overview again, which costs it less.
const FLOOD: usize = 1000;

/// The changes that this server remembers.
#[derive(Debug)]
pub(super) struct History {
    /// Tells this server from others, and from itself before a restart.
    server: String,
    changes: VecDeque<Arc<Entry>>,
    most: usize,
    /// The number of the newest change.
    last: u64,
    /// Changes up to this number are forgotten, or were not seen.
    forgotten: u64,
    /// The number of the newest change at the first sample.
    first: u64,
}

/// A change, with its text: written once, for all streams.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) resource: Resource,
    pub(super) body: ChangeBody,
    /// The time between the two samples that show it.
    pub(super) within: Duration,
    json: String,
}

/// The changes of one sample, ready to be added: the last ones that a history keeps, and how many there were.
#[derive(Debug)]
pub(super) struct Found {
    entries: Vec<Entry>,
    count: u64,
}

impl Found {
    /// Of a history that keeps so many.
    pub(super) fn of(mut changes: Vec<Change>, most: usize) -> Found {
        let count = changes.len() as u64;
        changes.drain(..changes.len().saturating_sub(most));
        let entry = |Change { resource, body, within }| {
            // A type of the API that cannot be written is a bug; the change is lost, nothing else.
            let json = serde_json::to_string(&body).unwrap_or_default();
            Entry { resource, body, within, json }
        };
        Found { entries: changes.into_iter().map(entry).collect(), count }
    }
}

/// What a stream reads next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The text of changes, and the number of the last one that was read. The text is empty if the reader may see none of them.
    Changes(String, u64),
    /// Some are left out, so many where that is known: go on from this number.
    Resync(ResyncReason, Option<u64>, u64),
    Nothing,
}

impl History {
    pub(super) fn new(server: String, most: usize) -> History {
        History { server, changes: VecDeque::new(), most: most.max(1), last: 0, forgotten: 0, first: 0 }
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// How many changes it keeps.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// The id of a change: what `Last-Event-ID` says.
    pub(super) fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.server)
    }

    pub(super) fn add(&mut self, found: Found) {
        self.last += found.count;
        self.changes.extend(found.entries.into_iter().map(Arc::new));
        self.changes.drain(..self.changes.len().saturating_sub(self.most));
        self.forgotten = self.forgotten.max(self.last - self.changes.len() as u64);
    }

    /// No samples are taken for a while. Changes in between would be missing, so earlier numbers are not valid any more.
    pub(super) fn forget(&mut self) {
        self.changes.clear();
        self.last += 1;
        (self.forgotten, self.first) = (self.last, self.last);
    }

    /// Where a stream begins whose request has this `Last-Event-ID`.
    pub(super) fn begin(&self, last_id: Option<&str>) -> Result<u64, ResyncReason> {
        let Some(id) = last_id else { return Err(ResyncReason::Start) };
        let number = id.rsplit_once('-').filter(|(server, _)| *server == self.server);
        let number: Option<u64> = number.and_then(|(_, number)| number.parse().ok());
        match number.filter(|number| *number <= self.last) {
            None => Err(ResyncReason::OtherServer),
            Some(number) if number < self.forgotten => Err(ResyncReason::Lag),
            Some(number) => Ok(number),
        }
    }

    /// What comes after the change with this number, of resources that the reader may see.
    pub(super) fn after(&self, number: u64, scope: Scope<'_>) -> Next {
        let missed = self.last.saturating_sub(number);
        if missed == 0 {
            return Next::Nothing;
        }
        if number < self.forgotten {
            // How much others change is nobody else's business.
            let count = scope.is_everything().then_some(missed);
            return Next::Resync(ResyncReason::Lag, count, self.last);
        }
        let skip = usize::try_from(number - self.forgotten).unwrap_or(usize::MAX);
        let unread = || self.changes.iter().skip(skip);
        if unread().len() > FLOOD {
            let visible = unread().filter(|entry| scope.has(&entry.resource)).count();
            if visible > FLOOD {
                return Next::Resync(ResyncReason::Lag, Some(visible as u64), self.last);
            }
        }
        let (mut text, mut read) = (String::new(), number);
        for entry in unread().take(READ_AT_ONCE) {
            read += 1;
            if scope.has(&entry.resource) {
                let id = self.id(read);
                let _ = write!(text, "id: {id}\nevent: {CHANGE}\ndata: {}\n\n", entry.json);
            }
        }
        Next::Changes(text, read)
    }

    /// The changes of a resource, newest first.
    pub(super) fn of(&self, resource: &Resource) -> Vec<Arc<Entry>> {
        self.changes.iter().rev().filter(|entry| entry.resource == *resource).cloned().collect()
    }

    /// The oldest change that is remembered, if earlier ones are forgotten.
    pub(super) fn oldest_if_forgetful(&self) -> Option<&ChangeBody> {
        let oldest = self.changes.front().filter(|_| self.forgotten > self.first);
        oldest.map(|entry| &entry.body)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_api::events::ChangeKind;

    use super::*;
    use crate::sampler::changes::change;

    fn found(count: usize, most: usize) -> Found {
        let one = |number: usize| change(&format!("report/{number}"), ChangeKind::Granted, None);
        Found::of((0..count).map(one).collect(), most)
    }

    #[test]
    fn a_reader_of_a_busy_store_is_told_to_read_anew_and_how_much_it_missed() {
        let mut history = History::new("server".to_owned(), 4096);
        history.add(found(FLOOD, history.most()));
        assert!(matches!(history.after(0, Scope::everything()), Next::Changes(_, 256)));
        history.add(found(1, history.most()));
        let next = history.after(0, Scope::everything());
        assert_eq!(next, Next::Resync(ResyncReason::Lag, Some(1001), 1001));
        let namespaces = ["quiet".to_owned()];
        let quiet = history.after(0, Scope::of_namespaces(&namespaces));
        assert_eq!(quiet, Next::Changes(String::new(), 256), "a reader who may see none of them goes on");
        assert_eq!(history.after(1001, Scope::everything()), Next::Nothing);
        // More than it keeps, in one sample.
        history.add(found(10_000, history.most()));
        assert_eq!((history.last(), history.changes.len()), (11_001, 4096));
        let next = history.after(1001, Scope::everything());
        assert_eq!(next, Next::Resync(ResyncReason::Lag, Some(10_000), 11_001));
        let next = history.after(1001, Scope::of_namespaces(&namespaces));
        assert_eq!(next, Next::Resync(ResyncReason::Lag, None, 11_001));
    }

    #[test]
    fn the_numbers_of_changes_follow_each_other() {
        let mut history = History::new("server".to_owned(), 3);
        history.add(found(2, 3));
        let Next::Changes(text, 2) = history.after(0, Scope::everything()) else { panic!("two changes") };
        assert!(text.starts_with("id: server-1\n") && text.contains("\n\nid: server-2\n"), "{text}");
        history.add(found(2, 3));
        assert!(matches!(history.after(0, Scope::everything()), Next::Resync(..)));
        let Next::Changes(text, 4) = history.after(1, Scope::everything()) else { panic!("three changes") };
        assert!(text.starts_with("id: server-2\n") && text.contains("id: server-4\n"), "{text}");
        assert!(history.oldest_if_forgetful().is_some());
        history.forget();
        assert_eq!((history.last(), history.oldest_if_forgetful()), (5, None));
        assert_eq!(history.begin(Some("server-4")), Err(ResyncReason::Lag));
    }
}
