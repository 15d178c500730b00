//! Goes on with a contender that the servers have and this session does not know: the reply to the request
//! that created it was lost, or another session of the same client created it.
//!
//! 1. Find the contender by its name or by the data of the marker (`marker.rs`).
//! 2. If there is none, the marker is stray: delete it and try again.
//! 3. If the contender belongs to this session, remember it. The next round of `acquire` evaluates it.
//! 4. If it belongs to another session, answer for it, but promise no time: that session may end at any
//!    moment.

use std::time::Duration;

use leasehold_core::{Blocked, ClaimRef, FencingToken, Grant, Verdict, WhenBlocked};

use crate::{
    RoundOutcome, acquire::AcquireContext, contender::Admission, error::StoreError, evaluate::blocked,
    local_claims::LocalClaim, marker::FoundContender, resource_view::ResourceView, session::Session,
};

impl AcquireContext<'_> {
    /// Looks for the contender of the claim. `Retry` if it is known now, or gone.
    pub(crate) async fn recover(&self) -> Result<RoundOutcome<Verdict>, StoreError> {
        let (session, resource) = (self.session, &self.claim.resource);
        let mut nodes = session.find(&self.reference).await?;
        let Some(found) = nodes.contenders.pop() else {
            session.remove_stray_marker(&self.reference, &nodes).await?;
            return Ok(RoundOutcome::Retry);
        };
        let token = session.token_of(resource, &found.record, &found.stat).await?;
        let Some(view) = session.view_with_weights(resource).await? else { return Ok(RoundOutcome::Retry) };
        let Some(position) = view.list.position(&found.node) else { return Ok(RoundOutcome::Retry) };
        if found.stat.ephemeral_owner != session.id {
            return self.answer_for_other_session(&view, position, token).await.map(RoundOutcome::Done);
        }
        let is_granted = position < view.admission().holder_count;
        session.adopt(self.reference.clone(), found, token, self.claim.share.weight(), is_granted);
        self.check_floor(token).await?;
        Ok(RoundOutcome::Retry)
    }

    /// Answers a claim whose contender, at this position, belongs to another session.
    async fn answer_for_other_session(
        &self,
        view: &ResourceView,
        position: usize,
        token: FencingToken,
    ) -> Result<Verdict, StoreError> {
        let Admission { holder_count, .. } = view.admission();
        if position < holder_count {
            // No time is promised, because this client does not know when that session was last heard.
            return Ok(Verdict::Granted(Grant::new(token, Duration::ZERO)));
        }
        let capacity = view.capacity_of_first(position + 1);
        if let Some(capacity) = capacity.filter(|capacity| *capacity != self.claim.share.capacity()) {
            self.session.remove_all(&self.reference).await?;
            return Ok(Verdict::Mismatch { capacity });
        }
        if self.claim.when_blocked == WhenBlocked::Leave {
            return self.leave(None).await;
        }
        let (holders, newest) = self.session.read_holders(&self.claim.resource, view).await?;
        let mut blocked: Blocked = blocked(view, holders, newest);
        blocked.queued = true;
        blocked.ahead = u32::try_from(position - holder_count).unwrap_or(u32::MAX);
        Ok(Verdict::Blocked(blocked))
    }
}

impl Session {
    /// Remembers a contender of this session that was found on the servers. `share_weight` is its weight
    /// unless the record says less.
    pub(crate) fn adopt(
        &self,
        claim: ClaimRef,
        found: FoundContender,
        token: FencingToken,
        share_weight: u32,
        is_granted: bool,
    ) {
        let weight = found.record.lowered_weight.unwrap_or(share_weight);
        let mut local = LocalClaim::new(found.node, token, found.record, weight);
        (local.version, local.took_over, local.is_granted) =
            (found.stat.version, found.took_over, is_granted);
        self.claims.insert(claim, local);
    }
}
