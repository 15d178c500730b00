//! The verb `release`: gives up a seat or leaves the line, and perhaps leaves a tombstone or stays closed.

use std::time::Duration;

use leasehold_core::{ClaimRef, Error, ErrorKind, GoneReason, ReleaseRequest, Released};

use crate::{
    backend::Etcd,
    error::Fault,
    keys::{Keys, mark},
    line::{Contender, OwnKey},
    pool::whole_seconds,
    read::grave,
    txn::{Change, Changes, Guard},
};

const ATTEMPTS: u32 = 40;

impl Etcd {
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released, Fault> {
        let keys = self.link.config.root.of(&request.resource);
        let claim = ClaimRef { resource: request.resource.clone(), owner: request.owner };
        let me = mark(request.owner);
        let keep_for = request.keep_for.filter(|keep_for| !keep_for.is_zero());
        if request.tombstone.is_none()
            && keep_for.is_none()
            && let Some(released) = self.release_known(&keys, &claim, &me).await?
        {
            return Ok(released);
        }
        let grave = match request.tombstone {
            Some(tombstone) => Some(self.pool.grant(whole_seconds(tombstone)).await?.id),
            None => None,
        };
        for attempt in 0..ATTEMPTS {
            let (own, contender) = self.link.owner(&keys, &me).await?;
            let ended = self.end(&keys, &me, (&own, contender.as_ref()), grave, keep_for).await?;
            if let Some(released) = ended {
                self.forget(&claim, grave.is_some());
                return Ok(released);
            }
            self.step_aside(attempt).await;
        }
        let message = "the claim changes faster than it can be ended";
        Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message)))
    }

    /// The one transaction, of a claim that this process knows: compared on when it was last written, so that it can
    /// never end what an heir, a farewell or an operator has made of it.
    async fn release_known(
        &self,
        keys: &Keys,
        claim: &ClaimRef,
        me: &str,
    ) -> Result<Option<Released>, Fault> {
        let Some(record) = self.claims.get(claim).filter(|record| record.created != 0) else {
            return Ok(None);
        };
        let contender = keys.contender(&record.name);
        let guards = vec![Guard::Modified(contender.clone(), record.written)];
        let mut changes = Changes::from([(contender, Change::Delete)]);
        if record.name != me {
            changes.insert(keys.own(me), Change::Delete);
        }
        if self.link.commit(guards, &changes).await?.is_some() {
            self.forget(claim, false);
            return Ok(Some(Released::Now));
        }
        Ok(None)
    }

    /// Ends what was found; `None` if it has changed meanwhile.
    async fn end(
        &self,
        keys: &Keys,
        me: &str,
        (own, contender): (&OwnKey, Option<&Contender>),
        grave_lease: Option<i64>,
        keep_for: Option<Duration>,
    ) -> Result<Option<Released>, Fault> {
        let home = keys.contender(me);
        let mut guards =
            vec![Guard::Modified(keys.own(me), own.modified), Guard::Modified(home.clone(), own.home)];
        let mut changes = Changes::new();
        let mut kept = None;
        let live = contender.filter(|contender| contender.entry.as_ref().is_some_and(|entry| !entry.kept));
        if let Some(contender) = live {
            let key = keys.contender(&contender.name);
            if key != home {
                guards.push(Guard::Modified(key.clone(), contender.modified));
            }
            let holds = contender.entry.clone().filter(|entry| entry.held);
            match keep_for.zip(holds) {
                Some((keep_for, mut entry)) => {
                    (entry.kept, entry.ttl_ms) =
                        (true, u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX));
                    let lease = self.pool.grant(whole_seconds(keep_for)).await?.id;
                    kept = Some(lease);
                    if key != home {
                        changes.insert(keys.own(me), Change::Put { value: contender.name.clone(), lease });
                    }
                    changes.insert(key, Change::Put { value: entry.write(), lease });
                }
                None => {
                    changes.insert(key, Change::Delete);
                    if own.modified != 0 {
                        changes.insert(keys.own(me), Change::Delete);
                    }
                }
            }
        }
        if let Some(lease) = grave_lease {
            changes.insert(keys.own(me), Change::Put { value: grave(GoneReason::Cancelled), lease });
        }
        let written = changes.is_empty() || self.link.commit(guards, &changes).await?.is_some();
        if !written {
            kept.into_iter().for_each(|unused| self.pool.revoke_unused(unused));
        }
        let released = if live.is_some() { Released::Now } else { Released::AlreadyGone };
        Ok(written.then_some(released))
    }
}
