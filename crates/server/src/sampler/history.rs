//! The changes of the last samples, numbered, for streams that follow them. Bounded: what is older is forgotten, and a stream that has
//! not read it is told so.

use std::{collections::VecDeque, fmt::Write as _, sync::Arc};

use leasehold_api::events::{CHANGE, ResyncReason};
use leasehold_core::Resource;

use super::changes::Change;

/// How many changes a stream reads at once.
const READ_AT_ONCE: usize = 256;

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
}

/// A change as it is sent: written once, for all streams.
#[derive(Debug)]
struct Entry {
    resource: Resource,
    text: String,
}

/// What a stream reads next.
#[derive(Debug)]
pub(crate) enum Next {
    /// The text of changes, and the number of the last one that was looked at. The text is empty if the reader may see none of them.
    Changes(String, u64),
    /// Some were missed: go on from this number.
    Resync(ResyncReason, u64),
    Nothing,
}

impl History {
    pub(super) fn new(server: String, most: usize) -> History {
        History { server, changes: VecDeque::new(), most: most.max(1), last: 0, forgotten: 0 }
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The id of a change: what `Last-Event-ID` says.
    pub(super) fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.server)
    }

    pub(super) fn add(&mut self, changes: Vec<Change>) {
        for Change { resource, body } in changes {
            self.last += 1;
            let mut text = String::new();
            // A type of the API that cannot be written is a bug; the change is lost, nothing else.
            let json = serde_json::to_string(&body).unwrap_or_default();
            let _ = write!(text, "id: {}\nevent: {CHANGE}\ndata: {json}\n\n", self.id(self.last));
            self.changes.push_back(Arc::new(Entry { resource, text }));
        }
        while self.changes.len() > self.most {
            self.changes.pop_front();
            self.forgotten += 1;
        }
    }

    /// The server does not look for a while: nothing can follow from before, so the numbers of then are not valid any more.
    pub(super) fn forget(&mut self) {
        self.changes.clear();
        self.last += 1;
        self.forgotten = self.last;
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
    pub(super) fn after(&self, number: u64, may_see: impl Fn(&Resource) -> bool) -> Next {
        if number >= self.last {
            return Next::Nothing;
        }
        if number < self.forgotten {
            return Next::Resync(ResyncReason::Lag, self.last);
        }
        let skip = usize::try_from(number - self.forgotten).unwrap_or(usize::MAX);
        let (mut text, mut read) = (String::new(), number);
        for entry in self.changes.iter().skip(skip).take(READ_AT_ONCE) {
            read += 1;
            if may_see(&entry.resource) {
                text.push_str(&entry.text);
            }
        }
        Next::Changes(text, read)
    }
}
