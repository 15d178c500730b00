//! The verb `release`: gives up a lease or a place in the queue.
//!
//! 1. A plain request on a resource that was not contended a moment ago: call `scripts/release_plain.lua` (ADR
//!    0038). Mostly that is all.
//! 2. Otherwise call `scripts/release.lua`, which handles every case and wakes waiters.
//!
//! If the cluster moves the slot of the resource, release on the owner key alone, where that is possible
//! (`slot_migration.rs`).

use std::borrow::Cow;

use leasehold_core::{ClaimRef, ReleaseRequest, Released};
use redis::Cmd;

use crate::{
    acquire::wrong_count,
    backend::{Redis, at_least_one_milli, millis},
    error::StoreError,
    keys::Keys,
    reply::Fields,
    script::{self, Script},
};

impl Redis {
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        if self.is_plain_release(request) {
            let make = |_| Cow::Owned(plain_release_call(&script::RELEASE_PLAIN, &[request]));
            let reply = match self.router.run(&request.resource, &script::RELEASE_PLAIN, &make).await {
                Err(error) if error.is_try_again() => {
                    return Box::pin(self.release_with_owner_key(request, error)).await;
                }
                reply => reply?,
            };
            let mut fields = Fields::of(reply)?;
            let released = self.read_plain_release(request, fields.int()?);
            if !fields.is_empty() {
                return Err(wrong_count());
            }
            if let Some(released) = released {
                return Ok(released);
            }
        }
        self.release_whole(request).await
    }

    /// Whether `release_plain.lua` may carry out the request.
    pub(crate) fn is_plain_release(&self, request: &ReleaseRequest) -> bool {
        let is_plain =
            request.tombstone.is_none() && request.keep_for.is_none_or(|keep_for| keep_for.is_zero());
        is_plain && !self.contended.contains(&request.resource, self.environment.now())
    }

    /// Reads the reply of `release_plain.lua` for one request. `None`: it is not plain, and nothing was done.
    pub(crate) fn read_plain_release(&self, request: &ReleaseRequest, reply: i64) -> Option<Released> {
        match reply {
            1 => Some(Released::Now),
            0 => Some(Released::AlreadyGone),
            _ => {
                self.contended.note(&request.resource, self.environment.now());
                None
            }
        }
    }

    /// Calls `scripts/release.lua`.
    pub(crate) async fn release_whole(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        let make = |_| Cow::Owned(self.release_call(request));
        let reply = match self.router.run(&request.resource, &script::RELEASE, &make).await {
            Err(error) if error.is_try_again() => {
                return Box::pin(self.release_with_owner_key(request, error)).await;
            }
            reply => reply,
        };
        let claim = ClaimRef { resource: request.resource.clone(), owner: request.owner };
        match Fields::of(self.name_wrong_type(claim, reply).await?)?.int()? {
            1 => Ok(Released::Now),
            _ => Ok(Released::AlreadyGone),
        }
    }

    fn release_call(&self, request: &ReleaseRequest) -> Cmd {
        let owner = request.owner.reveal();
        let mut call = self.call(&script::RELEASE, &request.resource, &owner, 9);
        self.push_common_arguments(&mut call, &request.resource);
        call.arg(&owner);
        match request.tombstone {
            None => call.arg(-1),
            Some(tombstone) => call.arg(millis(tombstone)),
        };
        // 0 means "do not keep", so any shorter time counts as a millisecond.
        match request.keep_for.filter(|keep_for| !keep_for.is_zero()) {
            None => call.arg(0),
            Some(keep_for) => call.arg(at_least_one_milli(keep_for)),
        };
        call
    }
}

/// The call of `scripts/release_plain.lua`, or of `scripts/release_plain_many.lua` for several requests.
pub(crate) fn plain_release_call(script: &Script, requests: &[&ReleaseRequest]) -> Cmd {
    let mut call = script.call(2 * requests.len());
    for request in requests {
        let mut keys = Keys::of(&request.resource);
        call.arg(keys.owner());
        call.arg(keys.state());
    }
    for request in requests {
        call.arg(request.owner.reveal());
    }
    call
}
