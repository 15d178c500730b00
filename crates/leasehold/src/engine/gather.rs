//! Claims that come at once are sent in one call, and releases likewise (ADR 0039). How is in [`leasehold_support::gather`].
//!
//! Some claims go alone and at once, whatever is under way: one that takes over from another, because it releases that one; and one
//! that has asked before, because its turn may have come, or it may have been granted unnoticed.

use std::{sync::atomic::AtomicBool, time::Duration};

use leasehold_core::{ReleaseRequest, Released, Result, Verb};

use super::Engine;

impl Engine {
    /// Sends one release, alone or with others.
    pub(super) async fn call_release(&self, request: &ReleaseRequest, at_most: Duration) -> Result<Released> {
        // Whether it was sent does not matter: every release that is dropped or fails is repeated in the background.
        let in_flight = AtomicBool::new(false);
        let call = async { self.releases.send(request, &in_flight, true).await.result };
        self.call(Verb::Release, Some(&request.resource), at_most, call).await
    }
}
