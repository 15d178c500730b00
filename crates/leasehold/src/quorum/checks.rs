//! What is refused before anything is sent, and the errors of a quorum.

use std::time::Duration;

use leasehold_core::{Claim, Error, ErrorKind, FencingToken, Limits, RenewRequest, Result, Share};

use super::QuorumState;

impl QuorumState {
    /// Refuses a claim that a quorum cannot grant.
    pub(super) fn check_claim(&self, claim: &Claim, limits: &Limits) -> Result<()> {
        if claim.share != Share::WHOLE {
            let message =
                "a quorum has exclusive leases only: its nodes cannot agree on who shares a resource";
            return Err(unsupported(message));
        }
        if claim.note.as_ref().is_some_and(|note| note.len() > limits.note) {
            return Err(note_too_long(limits));
        }
        if let Some(error) = self.status().refused.clone() {
            return Err(error);
        }
        self.check_ttl(claim.ttl)
    }

    pub(super) fn check_renewal(&self, request: &RenewRequest, limits: &Limits) -> Result<()> {
        if request.note.as_ref().is_some_and(|note| note.len() > limits.note) {
            return Err(note_too_long(limits));
        }
        self.check_ttl(request.ttl)
    }

    fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let gate = self.status().gate;
        if ttl > gate { Err(ttl_above_gate(gate)) } else { Ok(()) }
    }

    /// The token to propose first: the microseconds of this host's clock, but above the claim's floor.
    pub(super) fn first_proposal(&self, claim: &Claim) -> Result<FencingToken> {
        FencingToken::propose(claim.floor, self.environment.wall().as_micros())
    }

    /// The error when too many nodes have no vote. Has the nodes looked at, because some may get their vote back.
    pub(super) fn too_few_voters(&self, abstain: usize) -> Error {
        self.membership_wakeup.notify_one();
        let known = self.status().stopped.clone();
        let why = known.unwrap_or_else(|| {
            format!(
                "{abstain} of {} nodes have no vote, because they may have forgotten what they granted",
                self.size()
            )
        });
        unavailable(why)
    }
}

fn note_too_long(limits: &Limits) -> Error {
    Error::new(ErrorKind::Limit, format!("a note has at most {} bytes", limits.note))
}

pub(super) fn ttl_above_gate(gate: Duration) -> Error {
    let message = format!(
        "ttl must not be longer than the uptime gate, {gate:?}: a node that forgot a longer lease could grant it again"
    );
    Error::new(ErrorKind::Limit, message)
}

pub(super) fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

pub(super) fn unsupported(message: &str) -> Error {
    Error::new(ErrorKind::Unsupported, message.to_owned())
}
