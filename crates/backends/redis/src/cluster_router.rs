//! Sends calls to the nodes of a cluster and follows redirects. ADR 0014.
//!
//! 1. Send the call to the node that has the slot, according to the slot map.
//! 2. `-MOVED`: the slot is at another node. Correct the map and send the call there.
//! 3. `-ASK`: the slot is being moved and this key has already left. Send the call to the importing node,
//!    after `ASKING`.
//! 4. `-TRYAGAIN`: the keys of the resource are on both nodes. Ask again for [`SLOT_MIGRATION_MAX`]; then the
//!    caller may do with the owner key alone (`slot_migration.rs`).
//! 5. No connection, or a node that is no primary any more: read the slot map again, and try again until the
//!    timeout.
//! 6. Any other error ends the call.
//!
//! In cases 2 to 5 the node has done nothing, so sending the call again repeats nothing. A call that may have
//! been executed is never sent again from here.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use leasehold_core::{Error, ErrorKind, Timestamp};
use redis::Cmd;

use crate::{
    cluster::{Cluster, PrimaryNode, no_owner},
    error::{Redirect, StoreError},
    join,
    request::Reply,
    router::{MakeCall, call, call_all, call_asking},
    script::Script,
};

/// How many redirects are followed. After that, the nodes disagree about the slot.
const REDIRECTS_MAX: u32 = 8;
/// How long to wait for a slot that is being moved. Most are there sooner.
const SLOT_MIGRATION_MAX: Duration = Duration::from_millis(50);
/// The first pause before a node is asked again. It doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How many redirected calls of a batch are followed at once.
const FOLLOWED_AT_ONCE: usize = 64;

/// How far the retries of one call have come.
pub(crate) struct RetryState {
    began: Timestamp,
    redirects: u32,
    pause: Duration,
}

impl RetryState {
    pub(crate) fn new(now: Timestamp) -> RetryState {
        RetryState { began: now, redirects: 0, pause: PAUSE_MIN }
    }
}

/// Where to send a call after an error.
pub(crate) enum NextTarget {
    /// To the node that has the slot by now.
    Owner,
    /// To this node, which imports the slot, after `ASKING`.
    Importing(Arc<PrimaryNode>),
    /// Nowhere: the call ends with its error.
    GiveUp,
}

impl NextTarget {
    pub(crate) fn is_owner(&self) -> bool {
        matches!(self, NextTarget::Owner)
    }
}

impl Cluster {
    /// Calls a script at the node that has a slot, or sends a command if there is no script.
    pub(crate) async fn run(&self, slot: u16, script: Option<&Script>, make: MakeCall<'_>) -> Reply {
        let node = match self.owner(slot) {
            Ok(node) => node,
            Err(_) => {
                self.refresh(self.environment.now()).await;
                self.owner(slot)?
            }
        };
        match call(&node, script, make).await {
            // Boxed, because this future is large and most calls need no redirect.
            Err(error) => Box::pin(self.follow(slot, script, make, (node, error))).await,
            reply => reply,
        }
    }

    /// Follows redirects, starting from a node and its error.
    async fn follow(
        &self,
        slot: u16,
        script: Option<&Script>,
        make: MakeCall<'_>,
        (mut node, mut error): (Arc<PrimaryNode>, StoreError),
    ) -> Reply {
        let mut state = RetryState::new(self.environment.now());
        loop {
            let reply = match self.next_target(slot, &node, &error, &mut state).await {
                NextTarget::GiveUp => return Err(explain_redirect(error)),
                NextTarget::Importing(importing) => {
                    node = importing;
                    call_asking(&node, script, make).await
                }
                NextTarget::Owner => {
                    node = self.owner(slot)?;
                    call(&node, script, make).await
                }
            };
            match reply {
                Err(next) => error = next,
                reply => return reply,
            }
        }
    }

    /// Where to send the call after `node` returned this error. Pauses first where the cluster needs time.
    pub(crate) async fn next_target(
        &self,
        slot: u16,
        node: &PrimaryNode,
        error: &StoreError,
        state: &mut RetryState,
    ) -> NextTarget {
        let now = self.environment.now();
        let elapsed = state.began.until(now);
        match error.redirect() {
            Some(Redirect::Moved(host, port)) if state.redirects < REDIRECTS_MAX => {
                state.redirects += 1;
                self.slot_moved(slot, &self.node_at(&host, port, node));
                NextTarget::Owner
            }
            Some(Redirect::Ask(host, port)) if state.redirects < REDIRECTS_MAX => {
                state.redirects += 1;
                NextTarget::Importing(self.node_at(&host, port, node))
            }
            // Not for longer: ADR 0015 has something better to do for plain claims.
            Some(Redirect::TryAgain) if elapsed < SLOT_MIGRATION_MAX => {
                self.pause(state).await;
                NextTarget::Owner
            }
            Some(Redirect::NotHere) if elapsed < self.config.timeout => {
                self.refresh_and_pause(now, state).await
            }
            None if error.is_connect() && elapsed < self.config.timeout => {
                self.refresh_and_pause(now, state).await
            }
            _ => {
                if error.is_unanswered() {
                    // A node that does not answer may have been replaced by its replica.
                    self.suspect_map();
                }
                NextTarget::GiveUp
            }
        }
    }

    async fn refresh_and_pause(&self, now: Timestamp, state: &mut RetryState) -> NextTarget {
        self.refresh(now).await;
        self.pause(state).await;
        NextTarget::Owner
    }

    async fn pause(&self, state: &mut RetryState) {
        self.environment.sleep(state.pause).await;
        state.pause = (state.pause * 2).min(PAUSE_MAX);
    }

    /// Sends many calls, each to the node that has its slot. The replies are in the same order.
    ///
    /// 1. One pipeline to each node, all nodes at once.
    /// 2. Calls whose node could not be reached: read the slot map again, and send them once more.
    /// 3. Calls that were redirected: follow each of them.
    pub(crate) async fn run_all(&self, script: Option<&Script>, calls: Vec<(u16, Cmd)>) -> Vec<Reply> {
        let began = self.environment.now();
        let mut replies: Vec<Reply> = calls.iter().map(|_| Err(no_owner())).collect();
        let all: Vec<usize> = (0..calls.len()).collect();
        self.send_to_owners(script, &calls, &all, &mut replies).await;
        let is_unreached = |reply: &Reply| matches!(reply, Err(error) if error.is_connect());
        let unreached: Vec<usize> = (0..calls.len()).filter(|&index| is_unreached(&replies[index])).collect();
        if !unreached.is_empty() {
            self.refresh(began).await;
            self.send_to_owners(script, &calls, &unreached, &mut replies).await;
        }
        let is_redirected = |reply: &Reply| matches!(reply, Err(error) if error.redirect().is_some());
        let redirected: Vec<usize> =
            (0..calls.len()).filter(|&index| is_redirected(&replies[index])).collect();
        for some in redirected.chunks(FOLLOWED_AT_ONCE) {
            let follow = some.iter().map(|&index| {
                let (slot, call) = &calls[index];
                let error = std::mem::replace(&mut replies[index], Err(no_owner())).err();
                let error = error.unwrap_or_else(no_owner);
                async move {
                    let node = self.owner(*slot)?;
                    self.follow(*slot, script, &|_| Cow::Borrowed(call), (node, error)).await
                }
            });
            let followed = join::join_all(follow.collect()).await;
            some.iter().zip(followed).for_each(|(&index, reply)| replies[index] = reply);
        }
        replies
    }

    /// Sends the calls with these indexes: one pipeline to each node, all nodes at once.
    async fn send_to_owners(
        &self,
        script: Option<&Script>,
        calls: &[(u16, Cmd)],
        indexes: &[usize],
        replies: &mut [Reply],
    ) {
        let mut by_node: BTreeMap<u32, (Arc<PrimaryNode>, Vec<usize>)> = BTreeMap::new();
        for &index in indexes {
            if let Ok(node) = self.owner(calls[index].0) {
                by_node.entry(node.number).or_insert_with(|| (node, Vec::new())).1.push(index);
            }
        }
        let groups: Vec<(Arc<PrimaryNode>, Vec<usize>)> = by_node.into_values().collect();
        let sent = groups.iter().map(|(node, indexes)| {
            let calls = indexes.iter().map(|&index| calls[index].1.clone()).collect();
            async move { call_all(node, script, calls).await }
        });
        let outcomes = join::join_all(sent.collect()).await;
        for ((_, indexes), outcomes) in groups.iter().zip(outcomes) {
            indexes.iter().zip(outcomes).for_each(|(&index, reply)| replies[index] = reply);
        }
    }
}

/// Explains a redirect that was not followed to the caller of the backend.
pub(crate) fn explain_redirect(error: StoreError) -> StoreError {
    match error.redirect() {
        Some(Redirect::Moved(..) | Redirect::Ask(..)) => {
            let message = "the nodes of the cluster do not agree which of them has the slot of this resource: \
                           check CLUSTER SLOTS on each of them";
            StoreError::Translated(Error::new(ErrorKind::Unavailable, message))
        }
        _ => error,
    }
}
