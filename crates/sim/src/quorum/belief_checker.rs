//! Checks what holders believe and which tokens they have, in true time.

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

/// Knows all nodes, all beliefs and all tokens.
pub(crate) struct BeliefChecker {
    world: Arc<World>,
    tokens: Mutex<GrantedTokens>,
    /// Whether exclusion is promised in this run.
    excludes: bool,
}

#[derive(Default)]
struct GrantedTokens {
    /// All granted tokens, with their owners.
    tokens: BTreeMap<FencingToken, OwnerToken>,
    beliefs: BTreeMap<u64, (NodeId, LeaseView, String)>,
    next: u64,
    register: Register,
}

impl BeliefChecker {
    pub(crate) fn new(world: &Arc<World>, excludes: bool) -> BeliefChecker {
        BeliefChecker { world: Arc::clone(world), tokens: Mutex::default(), excludes }
    }

    fn tokens(&self) -> MutexGuard<'_, GrantedTokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn grants(&self) -> u64 {
        self.tokens().tokens.len() as u64
    }

    /// A claim begins: the token of its grant has to be above this one.
    pub(crate) fn begin(&self) -> Option<FencingToken> {
        self.tokens().tokens.last_key_value().map(|(token, _)| *token)
    }

    /// A claim that began with `above` was granted. Its page counts as a belief while it is kept.
    pub(crate) fn granted(
        self: &Arc<BeliefChecker>,
        node: NodeId,
        above: Option<FencingToken>,
        view: &LeaseView,
        name: &str,
    ) -> BeliefHandle {
        let (token, owner) = (view.token(), view.owner_token());
        self.world.stamp(token.get());
        let mut granted = self.tokens();
        if above.is_some_and(|above| token <= above) {
            self.world
                .fail("token order", format!("{name} has {token:?}, and began after {above:?} was given"));
        }
        if let Some(other) = granted.tokens.insert(token, owner).filter(|other| *other != owner) {
            self.world.fail("token twice", format!("{name} has {token:?}, which {other:?} was given before"));
        }
        granted.next += 1;
        let id = granted.next;
        granted.beliefs.insert(id, (node, view.clone(), name.to_owned()));
        drop(granted);
        self.look();
        BeliefHandle { beliefs: Arc::clone(self), id }
    }

    /// At most one believes to hold, among those that run.
    pub(crate) fn look(&self) {
        if !self.excludes {
            return;
        }
        let granted = self.tokens();
        let vouching: Vec<&str> = granted
            .beliefs
            .values()
            .filter(|(node, ..)| self.world.health(*node) == Health::Running)
            .filter(|(_, view, _)| view.check().is_ok())
            .map(|(.., name)| name.as_str())
            .collect();
        if vouching.len() > 1 {
            self.world.fail(
                "exclusion",
                format!("{} take their lease for valid at the same time", vouching.join(" and ")),
            );
        }
    }

    /// Raises the mark and reads. None if the token is stale.
    pub(crate) fn read(&self, view: &LeaseView, name: &str) -> Option<u64> {
        match self.tokens().register.enter(view.token().get(), Some(view.owner_token())) {
            register::FenceReply::Read(value) => Some(value),
            register::FenceReply::Stale => None,
            register::FenceReply::Shared => {
                self.world.fail("token twice", format!("{name} shows a token that another one has shown"));
                None
            }
        }
    }

    pub(crate) fn write(&self, view: &LeaseView, value: u64, name: &str) {
        if !self.tokens().register.write(view.token().get(), value) {
            self.world.fail("lost update", format!("{name} wrote {value}, and an update is lost"));
        }
    }
}

impl fmt::Debug for BeliefChecker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeliefChecker").finish_non_exhaustive()
    }
}

/// One belief.
#[derive(Debug)]
pub(crate) struct BeliefHandle {
    beliefs: Arc<BeliefChecker>,
    id: u64,
}

impl Drop for BeliefHandle {
    fn drop(&mut self) {
        let gone = self.beliefs.tokens().beliefs.remove(&self.id);
        drop(gone); // outside of the lock
    }
}
