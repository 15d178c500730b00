//! Votes and undos. Those that come at once for one node go in one script (ADR 0039): each is a step of its own.
//!
//! A vote that the script could not carry out among others is sent alone, so that it fails with its own error.

use std::sync::Arc;

use leasehold_core::{
    Result,
    quorum_node::{AttemptId, UndoRequest, Vote, VoteRequest},
};
use leasehold_support::gather::{GatherLimits, GatheredCall, Results};
use redis::Cmd;

use super::{
    NodeServer, ServerRun,
    reply::{read_undone, read_votes},
};
use crate::{
    backend::{at_least_one_milli, millis, note_argument},
    connection::Connection,
    error::StoreError,
    keys::{BIRTH, Keys},
    script::{NODE_UNDO, NODE_VOTE},
};

/// More would keep the server busy for longer than a client waits for company.
const GATHER: usize = 16;
const CALLS_IN_FLIGHT: usize = 2;

/// Calls of `scripts/node_vote.lua`.
pub(super) enum Votes {}

/// Calls of `scripts/node_undo.lua`.
pub(super) enum Undos {}

/// What is asked of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VoteVerb {
    Vote,
    Claim,
    Join,
}

impl VoteVerb {
    fn as_str(self) -> &'static str {
        match self {
            VoteVerb::Vote => "vote",
            VoteVerb::Claim => "claim",
            VoteVerb::Join => "join",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct NodeVote {
    pub(super) verb: VoteVerb,
    pub(super) request: VoteRequest,
}

fn limits(gather: usize) -> GatherLimits {
    GatherLimits { domain: Default::default(), gather, calls_in_flight: CALLS_IN_FLIGHT }
}

impl GatheredCall for Votes {
    type Target = NodeServer;
    type Request = NodeVote;
    type Reply = Vote;

    const NAME: &'static str = "vote";

    fn limits(_: &NodeServer, _: &NodeVote) -> GatherLimits {
        limits(GATHER)
    }

    fn send<'a>(server: &'a NodeServer, requests: &'a [NodeVote]) -> Results<'a, Vote> {
        Box::pin(server.vote_all(requests))
    }
}

impl GatheredCall for Undos {
    type Target = NodeServer;
    type Request = UndoRequest;
    type Reply = bool;

    const NAME: &'static str = "undo";

    fn limits(_: &NodeServer, request: &UndoRequest) -> GatherLimits {
        // A script that writes a tombstone has room for one.
        limits(if request.tombstone.is_some() { 1 } else { GATHER })
    }

    fn send<'a>(server: &'a NodeServer, requests: &'a [UndoRequest]) -> Results<'a, bool> {
        Box::pin(server.undo_all(requests))
    }
}

impl NodeServer {
    async fn vote_all(&self, requests: &[NodeVote]) -> Vec<Result<Vote>> {
        let votes = match self.try_votes(requests).await {
            Ok(votes) => votes,
            Err(error) => return all_failed(&error, requests.len()),
        };
        let mut results = Vec::with_capacity(requests.len());
        for (request, vote) in requests.iter().zip(votes) {
            results.push(match vote {
                Some(vote) => Ok(vote),
                None => self
                    .try_votes(std::slice::from_ref(request))
                    .await
                    .and_then(only)
                    .map_err(StoreError::into_error),
            });
        }
        results
    }

    async fn try_votes(&self, requests: &[NodeVote]) -> Result<Vec<Option<Vote>>, StoreError> {
        let ServerRun { connection, run_id } = self.server_run().await?;
        let reply = self.connections.run(&connection, &NODE_VOTE, vote_call(requests, &run_id)).await?;
        let resources: Vec<_> = requests.iter().map(|vote| &vote.request.resource).collect();
        self.checked(&connection, read_votes(reply, &resources))
    }

    async fn undo_all(&self, requests: &[UndoRequest]) -> Vec<Result<bool>> {
        match self.try_undos(requests).await {
            Ok(undone) => undone.into_iter().map(Ok).collect(),
            Err(error) => all_failed(&error, requests.len()),
        }
    }

    async fn try_undos(&self, requests: &[UndoRequest]) -> Result<Vec<bool>, StoreError> {
        let connection = self.connections.get().await?;
        let reply = self.connections.run(&connection, &NODE_UNDO, undo_call(requests)).await?;
        self.checked(&connection, read_undone(reply, requests.len()))
    }

    /// Closes the connection if a reply cannot be read: the next one may belong to another request.
    fn checked<T>(
        &self,
        connection: &Arc<Connection>,
        reply: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        reply.inspect_err(|error| self.connections.discard_if_broken(connection, error))
    }
}

/// The reply to a request that was sent alone.
fn only<T>(mut replies: Vec<Option<T>>) -> Result<T, StoreError> {
    replies.pop().flatten().ok_or_else(StoreError::missing_reply)
}

fn all_failed<T>(error: &StoreError, count: usize) -> Vec<Result<T>> {
    (0..count).map(|_| Err(error.clone().into_error())).collect()
}

fn vote_call(requests: &[NodeVote], run_id: &str) -> Cmd {
    let mut call = NODE_VOTE.call(1 + 4 * requests.len());
    call.arg(BIRTH);
    for NodeVote { request, .. } in requests {
        let (owner, attempt) = (request.owner.reveal(), format_attempt(request.attempt));
        let mut keys = Keys::of(&request.resource);
        call.arg(keys.owner()).arg(keys.register());
        call.arg(keys.tombstone(&owner)).arg(keys.attempt_tombstone(&owner, &attempt));
    }
    call.arg(run_id);
    for NodeVote { verb, request } in requests {
        call.arg(verb.as_str()).arg(request.owner.reveal()).arg(format_attempt(request.attempt));
        call.arg(at_least_one_milli(request.ttl)).arg(request.proposal.get());
        call.arg(request.stored_holder().to_string()).arg(note_argument(request.note.as_deref()));
    }
    call
}

/// A call with a tombstone has one request.
fn undo_call(requests: &[UndoRequest]) -> Cmd {
    let tombstone = requests.iter().find_map(|undo| undo.tombstone);
    let mut call = NODE_UNDO.call(requests.len() + usize::from(tombstone.is_some()));
    for undo in requests {
        let mut keys = Keys::of(&undo.resource);
        call.arg(keys.owner());
        if undo.tombstone.is_some() {
            let owner = undo.owner.reveal();
            call.arg(match undo.attempt {
                None => keys.tombstone(&owner),
                Some(attempt) => keys.attempt_tombstone(&owner, &format_attempt(attempt)),
            });
        }
    }
    match tombstone {
        None => call.arg(-1),
        Some(tombstone) => call.arg(millis(tombstone)),
    };
    for undo in requests {
        let attempt = undo.attempt.map(format_attempt).unwrap_or_default();
        call.arg(undo.owner.reveal()).arg(attempt).arg(Keys::of(&undo.resource).change_channel());
    }
    call
}

/// All attempts have the same length, because `node_vote.lua` compares them as texts.
fn format_attempt(attempt: AttemptId) -> String {
    format!("{:016x}", attempt.0)
}
