//! The verb `release`: gives up a lease or a place in the queue. One round trip; the script tries the plain
//! case first (ADR 0019).

use std::borrow::Cow;

use leasehold_core::{ClaimRef, ReleaseRequest, Released};
use redis::Cmd;

use crate::{
    backend::{Redis, at_least_one_milli, millis},
    error::StoreError,
    reply::Fields,
    script,
};

impl Redis {
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
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
