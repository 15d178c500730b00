//! What is refused before anything is sent, and how it is said.

use std::time::Duration;

use leasehold_core::{Claim, Error, ErrorKind, FencingToken, Limits, Result, Share};

use super::{Shared, unsupported};

impl Shared {
    pub(super) fn admit(&self, claim: &Claim, limits: &Limits) -> Result<()> {
        if claim.share != Share::WHOLE {
            let message = "a quorum has exclusive leases only: its nodes could not agree on who shares";
            return Err(unsupported(message));
        }
        if claim.note.as_ref().is_some_and(|note| note.len() > limits.note) {
            let message = format!("a note has at most {} bytes", limits.note);
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let gate = self.condition().gate;
        if claim.ttl > gate { Err(too_long(gate)) } else { Ok(()) }
    }

    pub(super) fn proposal(&self, claim: &Claim) -> Result<FencingToken> {
        FencingToken::propose(claim.floor, self.environment.wall().as_micros())
    }

    pub(super) fn stopped(&self, abstain: usize) -> Error {
        self.tending.notify_one();
        let known = self.condition().stopped.clone();
        let why = known.unwrap_or_else(|| {
            format!(
                "{abstain} of {} nodes have no vote: they may have forgotten what they granted",
                self.size()
            )
        });
        Error::new(ErrorKind::Unavailable, why)
    }
}

pub(super) fn too_long(gate: Duration) -> Error {
    let message = format!(
        "a ttl is at most the uptime gate, {gate:?}: a node that forgot a longer one could grant it again"
    );
    Error::new(ErrorKind::Limit, message)
}

pub(super) fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}
