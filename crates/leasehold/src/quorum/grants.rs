//! What this client was granted, so that a lease can be given again to a node that lost it or was away.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use leasehold_core::{FencingToken, OwnerToken, RenewRequest, Resource, Timestamp, quorum_node::VoteRequest};

/// The grants of this client, by resource and owner.
#[derive(Debug, Default)]
pub(super) struct Grants(Mutex<GrantMap>);

#[derive(Debug, Default)]
struct GrantMap {
    grants: HashMap<(Resource, OwnerToken), RememberedGrant>,
    /// At this size, grants that have ended are removed.
    prune_at: usize,
}

#[derive(Debug)]
struct RememberedGrant {
    /// The vote request that was granted. Its proposal is the token.
    request: Arc<VoteRequest>,
    /// Until when a majority surely has it.
    until: Timestamp,
}

const PRUNE_MIN: usize = 64;

impl Grants {
    fn lock(&self) -> MutexGuard<'_, GrantMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a grant. The request proposes its token.
    pub(super) fn remember(&self, request: &Arc<VoteRequest>, until: Timestamp, now: Timestamp) {
        let mut map = self.lock();
        // Pruned when the map has doubled: the cost of a grant stays constant on average.
        if map.grants.len() >= map.prune_at.max(PRUNE_MIN) {
            map.grants.retain(|_, grant| grant.until > now);
            map.prune_at = map.grants.len() * 2;
        }
        let grant = RememberedGrant { request: Arc::clone(request), until };
        map.grants.insert((request.resource.clone(), request.owner), grant);
    }

    pub(super) fn forget(&self, resource: &Resource, owner: OwnerToken) {
        self.lock().grants.remove(&(resource.clone(), owner));
    }

    /// The token that this client was granted.
    pub(super) fn token(&self, request: &RenewRequest) -> Option<FencingToken> {
        let map = self.lock();
        map.grants.get(&(request.resource.clone(), request.owner)).map(|grant| grant.request.proposal)
    }

    /// Records that a majority renewed the grant, perhaps with another note, ttl or token.
    pub(super) fn record_renewal(&self, renewed: &RenewRequest, token: FencingToken, until: Timestamp) {
        let mut map = self.lock();
        let Some(grant) = map.grants.get_mut(&(renewed.resource.clone(), renewed.owner)) else { return };
        grant.until = grant.until.max(until);
        let request = &grant.request;
        if renewed.note.is_some() || request.ttl != renewed.ttl || request.proposal != token {
            let note = renewed.note.clone().or_else(|| request.note.clone());
            let changed = VoteRequest { note, ttl: renewed.ttl, proposal: token, ..(**request).clone() };
            grant.request = Arc::new(changed);
        }
    }

    /// Whether this client was granted it, and has neither released nor lost it since.
    pub(super) fn is_known(&self, request: &VoteRequest) -> bool {
        self.lock().grants.contains_key(&(request.resource.clone(), request.owner))
    }

    /// The grant, while a majority surely has it.
    pub(super) fn live(
        &self,
        resource: &Resource,
        owner: OwnerToken,
        now: Timestamp,
    ) -> Option<Arc<VoteRequest>> {
        let map = self.lock();
        let grant = map.grants.get(&(resource.clone(), owner))?;
        (grant.until > now).then(|| Arc::clone(&grant.request))
    }
}
