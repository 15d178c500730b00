//! How long a contender lasts, and how it is extended.
//!
//! A contender lasts as long as the etcd lease that it is attached to. To extend it, its lease is kept alive;
//! if the ttl needs a lease of another length, the contender is moved to one. Its creation revision stays, so
//! it keeps its place in the queue and its token.

use std::time::Duration;

use leasehold_core::{ClaimRef, Timestamp};

use crate::{
    backend::Etcd,
    error::StoreError,
    keys::{ResourceKeys, hash_owner, slot},
    lease_pool::{EtcdLease, seconds_for},
    local_claims::LocalClaim,
    resource_view::Contender,
    transaction::{KeyChange, KeyChanges, Precondition},
};

/// A contender's lease, and until when the owner of the claim believes that it lasts. The lease itself lasts
/// longer, because it has whole seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub(crate) lease: EtcdLease,
    pub(crate) ends: Timestamp,
}

/// The outcome of [`Etcd::extend`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExtendOutcome {
    Extended(Lifetime),
    /// The contender was changed or deleted meanwhile: read it again.
    ContenderChanged,
}

impl Etcd {
    /// The lifetime of a contender: as this process knows it, or else from etcd. `None` if its lease does not
    /// exist.
    pub(crate) async fn lifetime_of(
        &self,
        known: Option<&LocalClaim>,
        contender: &Contender,
    ) -> Result<Option<Lifetime>, StoreError> {
        let known = known.and_then(|local| known_lifetime(local, contender));
        if known.is_some() { Ok(known) } else { self.stored_lifetime_of(contender).await }
    }

    /// The lifetime of a contender as etcd reports it, in whole seconds rounded down.
    async fn stored_lifetime_of(&self, contender: &Contender) -> Result<Option<Lifetime>, StoreError> {
        let now = self.environment.now();
        let Some((left, granted)) = self.lease_pool.remaining(contender.lease).await? else {
            return Ok(None);
        };
        let kept_alive_at = now.after(left).before(Duration::from_secs(granted));
        // The owner counts on its ttl and not on the longer lease.
        let counted_on = contender.record.as_ref().map_or(left, |record| left.min(record.ttl()));
        // etcd does not store which length was requested. The granted length is the same unless it was below
        // the minimum.
        let lease = EtcdLease {
            id: contender.lease,
            requested_seconds: granted,
            granted_seconds: granted,
            kept_alive_at,
        };
        Ok(Some(Lifetime { lease, ends: now.after(counted_on) }))
    }

    /// The longer of the lifetime that this process knows and the one that etcd reports: another client may
    /// have kept the lease alive since, and what we know ourselves is more exact. `None` if the lease does
    /// not exist.
    pub(crate) async fn longest_lifetime_of(
        &self,
        local: &LocalClaim,
        contender: &Contender,
    ) -> Result<Option<Lifetime>, StoreError> {
        let Some(stored) = self.stored_lifetime_of(contender).await? else { return Ok(None) };
        let known = known_lifetime(local, contender).filter(|known| known.ends > stored.ends);
        Ok(Some(known.unwrap_or(stored)))
    }

    /// Makes a contender last this long from now. Never shortens.
    pub(crate) async fn extend(
        &self,
        keys: &ResourceKeys,
        claim: &ClaimRef,
        contender: &Contender,
        ttl: Duration,
    ) -> Result<ExtendOutcome, StoreError> {
        let local = self.local_claims.get(claim);
        let Some(lifetime) = self.lifetime_of(local.as_ref(), contender).await? else {
            return Ok(ExtendOutcome::ContenderChanged);
        };
        let now = self.environment.now();
        let wanted = now.after(ttl);
        // It lasts that long already. A shorter ttl does not shorten a claim.
        if wanted <= lifetime.ends {
            let lifetime = match &local {
                Some(local) => self.longest_lifetime_of(local, contender).await?,
                None => Some(lifetime),
            };
            return Ok(lifetime.map_or(ExtendOutcome::ContenderChanged, ExtendOutcome::Extended));
        }
        let mut lease = lifetime.lease;
        if lease.requested_seconds != seconds_for(ttl) {
            return self.move_to_new_lease(keys, claim, contender, ttl).await;
        }
        if !lease.lasts(now, ttl) {
            match self.lease_pool.keep_alive(&mut lease).await {
                Err(error) if error.is_lease_gone() => return Ok(ExtendOutcome::ContenderChanged),
                kept => kept?,
            }
        }
        self.local_claims.update(claim, |local| {
            // Not if the contender was moved to another lease meanwhile.
            if local.attached_lease.is_some_and(|attached| attached.id == lease.id) {
                (local.attached_lease, local.ends) = (Some(lease), local.ends.max(wanted));
            }
        });
        Ok(ExtendOutcome::Extended(Lifetime { lease, ends: wanted }))
    }

    /// Moves a contender to a lease of another length. Its creation revision stays.
    async fn move_to_new_lease(
        &self,
        keys: &ResourceKeys,
        claim: &ClaimRef,
        contender: &Contender,
        ttl: Duration,
    ) -> Result<ExtendOutcome, StoreError> {
        let Some(mut record) = contender.record.clone() else { return Ok(ExtendOutcome::ContenderChanged) };
        let mut lease = self.lease_pool.take(ttl).await?;
        let now = self.environment.now();
        if !lease.lasts(now, ttl) {
            self.lease_pool.keep_alive(&mut lease).await?;
        }
        record.set_ttl(ttl);
        // This write answers a call, too.
        record.called = false;
        let (key, owner_hash) = (keys.contender(&contender.name), hash_owner(claim.owner));
        let put = |value: String| KeyChange::Put { value, lease: lease.id };
        let mut changes = KeyChanges::from([(key.clone(), put(record.to_value()))]);
        if contender.name != slot(&owner_hash) {
            // The owner key that points to the contender must last as long as the contender.
            changes.insert(keys.owner(&owner_hash), put(contender.name.clone()));
        }
        let unchanged = vec![Precondition::ModifiedAt(key, contender.modified)];
        let Some(modified) = self.connections.commit(unchanged, &changes).await? else {
            self.lease_pool.revoke_unused(lease.id);
            return Ok(ExtendOutcome::ContenderChanged);
        };
        let ends = now.after(ttl);
        self.local_claims.update(claim, |local| {
            (local.attached_lease, local.ends, local.modified) = (Some(lease), ends, modified);
        });
        Ok(ExtendOutcome::Extended(Lifetime { lease, ends }))
    }
}

/// What this process knows of the lifetime of its contender, if the contender still has the lease that is
/// known.
fn known_lifetime(local: &LocalClaim, contender: &Contender) -> Option<Lifetime> {
    let lease = local.attached_lease.filter(|lease| lease.id == contender.lease)?;
    Some(Lifetime { lease, ends: local.ends })
}
