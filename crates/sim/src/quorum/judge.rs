//! Judges what holders believe and which tokens they show, in true time.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use leasehold::{FencingToken, LeaseView, OwnerToken};

use crate::{
    register::{self, Register},
    world::{Health, NodeId, World},
};

/// Sees everyone.
pub(crate) struct Judge {
    world: Arc<World>,
    books: Mutex<Books>,
    /// Exclusion is promised in this run.
    excludes: bool,
}

#[derive(Default)]
struct Books {
    /// Tokens that were given, and to whom.
    tokens: BTreeMap<FencingToken, OwnerToken>,
    beliefs: BTreeMap<u64, (NodeId, LeaseView, String)>,
    next: u64,
    register: Register,
}

impl Judge {
    pub(crate) fn new(world: &Arc<World>, excludes: bool) -> Judge {
        Judge { world: Arc::clone(world), books: Mutex::default(), excludes }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn grants(&self) -> u64 {
        self.books().tokens.len() as u64
    }

    /// A claim begins: the token of its grant has to be above this one.
    pub(crate) fn begin(&self) -> Option<FencingToken> {
        self.books().tokens.last_key_value().map(|(token, _)| *token)
    }

    /// A claim that began with `above` was granted. Its page counts as a belief while it is kept.
    pub(crate) fn granted(
        self: &Arc<Judge>,
        node: NodeId,
        above: Option<FencingToken>,
        view: &LeaseView,
        name: &str,
    ) -> Page {
        let (token, owner) = (view.token(), view.owner_token());
        self.world.stamp(token.get());
        let mut books = self.books();
        if above.is_some_and(|above| token <= above) {
            self.world
                .fail("token order", format!("{name} has {token:?}, and began after {above:?} was given"));
        }
        if let Some(other) = books.tokens.insert(token, owner).filter(|other| *other != owner) {
            self.world.fail("token twice", format!("{name} has {token:?}, which {other:?} was given before"));
        }
        books.next += 1;
        let id = books.next;
        books.beliefs.insert(id, (node, view.clone(), name.to_owned()));
        drop(books);
        self.look();
        Page { judge: Arc::clone(self), id }
    }

    /// At most one believes to hold, among those that run.
    pub(crate) fn look(&self) {
        if !self.excludes {
            return;
        }
        let books = self.books();
        let vouching: Vec<&str> = books
            .beliefs
            .values()
            .filter(|(node, ..)| self.world.health(*node) == Health::Running)
            .filter(|(_, view, _)| view.check().is_ok())
            .map(|(.., name)| name.as_str())
            .collect();
        if vouching.len() > 1 {
            self.world.fail("exclusion", format!("{} vouch at the same time", vouching.join(" and ")));
        }
    }

    /// Raises the mark and reads. None if the token is stale.
    pub(crate) fn read(&self, view: &LeaseView, name: &str) -> Option<u64> {
        match self.books().register.enter(view.token().get(), Some(view.owner_token())) {
            register::Entry::Read(value) => Some(value),
            register::Entry::Stale => None,
            register::Entry::Shared => {
                self.world.fail("token twice", format!("{name} shows a token that another one has shown"));
                None
            }
        }
    }

    pub(crate) fn write(&self, view: &LeaseView, value: u64, name: &str) {
        if !self.books().register.write(view.token().get(), value) {
            self.world.fail("lost update", format!("{name} wrote {value}, and an update is lost"));
        }
    }
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judge").finish_non_exhaustive()
    }
}

/// One belief.
#[derive(Debug)]
pub(crate) struct Page {
    judge: Arc<Judge>,
    id: u64,
}

impl Drop for Page {
    fn drop(&mut self) {
        let gone = self.judge.books().beliefs.remove(&self.id);
        drop(gone); // outside of the lock
    }
}
