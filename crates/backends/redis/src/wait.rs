//! The verb `wait`: returns when it is worth asking again.
//!
//! 1. If `acquire` kept a waiter for this claim, wait for its wake-up. No request is sent.
//! 2. Otherwise register a waiter and make sure that wake-ups are received.
//! 3. Ask the server (`scripts/watch.lua`) whether something changed before that. If so, return.
//! 4. Wait for the wake-up; or, if wake-ups are not received, for [`POLL_WITHOUT_WAKEUPS`].
//!
//! All of this ends after `at_most`.

use std::{borrow::Cow, time::Duration};

use leasehold_core::{ClaimRef, Cursor};
use leasehold_support::race::{Either, first};

use crate::{
    backend::{Redis, at_least_one_milli},
    error::StoreError,
    reply::Fields,
    script,
};

/// How often a waiter asks again while no wake-ups are received.
const POLL_WITHOUT_WAKEUPS: Duration = Duration::from_millis(500);

/// What `scripts/watch.lua` says.
enum WatchReply {
    AskAgain,
    /// The claim has a place in the queue: its owner is woken.
    HasPlace,
    /// The claim has no place: this client is woken by every change of the resource.
    Watching,
    /// The slot of the resource is being moved, so the server could not say.
    SlotMoves,
}

impl Redis {
    pub(crate) async fn wait_at_most(
        &self,
        claim: &ClaimRef,
        since: Cursor,
        at_most: Duration,
    ) -> Result<(), StoreError> {
        let woken = self.wait_for_change(claim, since, at_most);
        match first(woken, self.environment.sleep(at_most)).await {
            Either::Left(outcome) => outcome,
            Either::Right(()) => Ok(()),
        }
    }

    async fn wait_for_change(
        &self,
        claim: &ClaimRef,
        since: Cursor,
        at_most: Duration,
    ) -> Result<(), StoreError> {
        if let Some(waiter) = self.listener.take_pending(claim, since) {
            waiter.woken().await;
            return Ok(());
        }
        let waiter = self.listener.register(claim.clone());
        self.listener.start(&self.router, &claim.resource, &self.environment);
        // If the subscription takes longer, this waiter polls.
        let timeout = self.environment.sleep(self.router.config().connect_timeout);
        first(self.listener.connected(&claim.resource), timeout).await;
        // Boxed: thousands may wait, and need the room for a request only at the beginning.
        let slot_moves = match Box::pin(self.watch(claim, since, at_most)).await? {
            WatchReply::AskAgain => return Ok(()),
            WatchReply::HasPlace => {
                waiter.has_place();
                false
            }
            WatchReply::Watching => false,
            WatchReply::SlotMoves => true,
        };
        // Scripts cannot publish while the slot moves: see `release_with_owner_key`.
        if slot_moves || !self.listener.is_connected(&claim.resource) {
            first(waiter.woken(), self.environment.sleep(POLL_WITHOUT_WAKEUPS)).await;
        } else {
            waiter.woken().await;
        }
        Ok(())
    }

    async fn watch(
        &self,
        claim: &ClaimRef,
        since: Cursor,
        at_most: Duration,
    ) -> Result<WatchReply, StoreError> {
        let owner = claim.owner.reveal();
        let mut call = self.call(&script::WATCH, &claim.resource, &owner, 9);
        self.push_common_arguments(&mut call, &claim.resource);
        call.arg(&owner).arg(format!("{:012x}", since.0)).arg(at_least_one_milli(at_most));
        match self.router.run(&claim.resource, &script::WATCH, &|_| Cow::Borrowed(&call)).await {
            Err(error) if error.is_try_again() => Ok(WatchReply::SlotMoves),
            Err(error) => Err(error),
            Ok(reply) => Ok(match Fields::of(reply)?.int()? {
                1 => WatchReply::AskAgain,
                0 => WatchReply::HasPlace,
                _ => WatchReply::Watching,
            }),
        }
    }
}
