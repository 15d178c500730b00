//! Renew on ZooKeeper: one transaction asks the ensemble whether all nodes of a client still exist.
//!
//! 1. Write the new notes, if there are any.
//! 2. Send one transaction of version checks, one for each claim. It changes nothing, but it is a write: a
//!    read would be answered by the server that we are connected to, which may be cut off from an ensemble
//!    that has ended our session already (ADR 0026).
//! 3. If a check fails because the node is gone, forget the claim and go to 2. If it fails because the node
//!    has another version, read the node again and go to 2.
//! 4. Once it succeeds, all remaining claims are renewed until [`Session::remaining`].
//! 5. For claims that this session does not know, look for their nodes one by one. A failed check is no proof
//!    that a node is gone (ADR 0033), so claims of step 3 come here too.

use std::time::Duration;

use leasehold_core::{
    ClaimRef, Error, ErrorKind, GoneReason, RenewRequest, Renewal, Renewed, Result, Timestamp,
};
use zookeeper_client::Error as Driver;

use crate::{
    ROUNDS_MAX,
    acquire::note_too_long,
    backend::ZooKeeper,
    error::StoreError,
    local_claims::RecordWrite,
    marker::FoundContender,
    paths,
    session::Session,
    transaction::{OperationPosition, TransactionError},
};

/// How many bytes of paths go into one request. Servers refuse requests of more than a megabyte
/// (`jute.maxbuffer`).
const REQUEST_BYTES_MAX: usize = 256 * 1024;
/// An upper bound for the bytes that one check needs in addition to the key of its resource.
const CHECK_BYTES: usize = 128;

impl ZooKeeper {
    pub(crate) async fn try_renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let batch_max = self.info.limits.batch;
        if requests.len() > batch_max {
            let message = format!("{} renewals in one call: at most {batch_max} are allowed", requests.len());
            return repeat(&Error::new(ErrorKind::Limit, message), requests.len());
        }
        let note_max = self.info.limits.note;
        let note_length = |request: &RenewRequest| request.note.as_ref().map_or(0, |note| note.len());
        if requests.iter().all(|request| note_length(request) <= note_max) {
            return self.renew_batch(requests).await;
        }
        // Only the requests with too long a note are refused. The others are renewed one by one: this is
        // rare.
        let mut renewals = Vec::with_capacity(requests.len());
        for request in requests {
            renewals.push(match note_length(request) {
                length if length > note_max => Err(note_too_long(length, note_max)),
                _ => self.renew_batch(std::slice::from_ref(request)).await.remove(0),
            });
        }
        renewals
    }

    async fn renew_batch(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let began = self.now();
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) => return repeat(&error.into_error(), requests.len()),
        };
        let mut renewals = Vec::with_capacity(requests.len());
        for chunk in chunks(requests) {
            match session.renew_local(chunk, began).await {
                Ok(known) => {
                    for (request, renewal) in chunk.iter().zip(known) {
                        renewals.push(match renewal {
                            Some(renewal) => Ok(renewal),
                            None => session.renew_found(request, began).await.map_err(StoreError::into_error),
                        });
                    }
                }
                // All ephemeral nodes of the session are gone with it.
                Err(error) if error.session_ended => {
                    renewals.extend(chunk.iter().map(|_| Ok(Renewal::Gone { why: GoneReason::NotThere })));
                }
                Err(error) => renewals.extend(repeat(&error.into_error(), chunk.len())),
            }
        }
        renewals
    }
}

impl Session {
    /// Steps 1 to 4: renews the claims that this session knows. `None` for a claim that it does not know, or
    /// not any more.
    pub(crate) async fn renew_local(
        &self,
        requests: &[RenewRequest],
        began: Timestamp,
    ) -> Result<Vec<Option<Renewal>>, StoreError> {
        for request in requests.iter().filter(|request| request.note.is_some()) {
            self.write_note(request).await?;
        }
        // Each request can be gone once; beyond that, nodes can only change versions.
        for _ in 0..requests.len() + ROUNDS_MAX as usize {
            if self.check_nodes(requests).await? {
                break;
            }
        }
        Ok(requests.iter().map(|request| self.local_renewal(request, began)).collect())
    }

    /// Checks the nodes of all known claims in one transaction. False if one of them was gone or had changed;
    /// the local claim is up to date then.
    async fn check_nodes(&self, requests: &[RenewRequest]) -> Result<bool, StoreError> {
        let mut transaction = self.transaction();
        let mut checks: Vec<(OperationPosition, ClaimRef)> = Vec::new();
        {
            let claims = self.claims.lock();
            for claim in requests.iter().map(reference) {
                if let Some(local) = claims.get(&claim) {
                    let path = paths::contender(&claim.resource, &local.node);
                    checks.push((transaction.check_version(&path, local.version), claim));
                }
            }
        }
        if checks.is_empty() {
            return Ok(true);
        }
        let sent = self.now();
        let (failed, source) = match transaction.commit_with_request_id().await {
            Ok(_) => {
                self.note_commit(sent);
                return Ok(true);
            }
            Err(TransactionError::Operation { position, source }) => (position, source),
            Err(error) => return Err(StoreError::from(error)),
        };
        let claim = checks.iter().find(|(position, _)| *position == failed).map(|(_, claim)| claim);
        match (claim, source) {
            (Some(claim), Driver::NoNode) => self.claims.remove(claim),
            (Some(claim), Driver::BadVersion) => self.reread(claim).await?,
            (_, source) => return Err(StoreError::from(source)),
        }
        Ok(false)
    }

    /// The renewal of a claim whose node was just checked. `None` if the claim is not known.
    fn local_renewal(&self, request: &RenewRequest, began: Timestamp) -> Option<Renewal> {
        let (remaining, server_now_ms) = (self.remaining(began), self.server_now_ms());
        self.claims.update(&reference(request), |local| {
            if !local.is_granted {
                return Renewal::Queued { remaining };
            }
            // A holder that is being evicted keeps the deadline that it had, so that its lease runs out.
            let evicting = local.record.evicting;
            if !evicting {
                local.valid_until = local.valid_until.max(began.after(remaining));
            }
            let mut renewed = Renewed::new(local.token, began.until(local.valid_until));
            renewed.evicting = evicting;
            renewed.asked = local.record.finish_request(server_now_ms);
            Renewal::Renewed(renewed)
        })
    }

    /// Writes the new note of a request into the node of its claim, if the claim is known and granted.
    async fn write_note(&self, request: &RenewRequest) -> Result<(), StoreError> {
        let claim = reference(request);
        for _ in 0..ROUNDS_MAX {
            let known = self.claims.read(&claim, |local| {
                local.is_granted.then(|| (local.node.clone(), local.version, local.record.clone()))
            });
            let Some((node, version, mut record)) = known.flatten() else { return Ok(()) };
            record.set_note(request.note.as_deref());
            match self.write_local_record(&claim, (&node, version), record).await? {
                RecordWrite::Written(_) | RecordWrite::NodeGone => return Ok(()),
                RecordWrite::VersionChanged => self.reread(&claim).await?,
            }
        }
        Err(StoreError::contention())
    }

    /// Step 5: renews a claim that this session does not know. It belongs to another session, or it is gone.
    async fn renew_found(&self, request: &RenewRequest, began: Timestamp) -> Result<Renewal, StoreError> {
        let claim = reference(request);
        if let Some(found) = self.find(&claim).await?.contenders.pop()
            && let Some(view) = self.view_with_weights(&request.resource).await?
            && let Some(position) = view.list.position(&found.node)
        {
            let is_granted = position < view.admission().holder_count;
            if found.stat.ephemeral_owner != self.id {
                return self.renew_of_other_session(request, found, is_granted).await;
            }
            // The reply that said that the node is gone was not about this node; or the claim's first reply
            // was lost.
            let token = self.token_of(&request.resource, &found.record, &found.stat).await?;
            let weight = view.list.weight(&view.list.contenders[position]);
            self.adopt(claim, found, token, weight, is_granted);
            let renewed = self.renew_local(std::slice::from_ref(request), began).await?;
            let gone = Renewal::Gone { why: GoneReason::NotThere };
            return Ok(renewed.into_iter().flatten().next().unwrap_or(gone));
        }
        let why = self.read_tombstone(&claim).await?.unwrap_or(GoneReason::NotThere);
        Ok(Renewal::Gone { why })
    }

    /// Renews a claim whose node belongs to another session. No time is promised, because that session may
    /// end at any moment.
    async fn renew_of_other_session(
        &self,
        request: &RenewRequest,
        mut found: FoundContender,
        is_granted: bool,
    ) -> Result<Renewal, StoreError> {
        let token = self.token_of(&request.resource, &found.record, &found.stat).await?;
        if !is_granted {
            return Ok(Renewal::Queued { remaining: Duration::ZERO });
        }
        if let Some(note) = &request.note {
            found.record.set_note(Some(note));
            let path = paths::contender(&request.resource, &found.node);
            self.write_record(&path, &found.record, found.stat.version).await?;
        }
        let mut renewed = Renewed::new(token, Duration::ZERO);
        renewed.evicting = found.record.evicting;
        renewed.asked = found.record.finish_request(self.server_now_ms());
        Ok(Renewal::Renewed(renewed))
    }
}

fn reference(request: &RenewRequest) -> ClaimRef {
    ClaimRef { resource: request.resource.clone(), owner: request.owner }
}

fn repeat(error: &Error, times: usize) -> Vec<Result<Renewal>> {
    (0..times).map(|_| Err(error.clone())).collect()
}

/// Splits a batch into chunks whose checks fit one request.
fn chunks(requests: &[RenewRequest]) -> impl Iterator<Item = &[RenewRequest]> {
    let mut rest = requests;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |request: &&RenewRequest| {
            bytes += request.resource.key().len() + CHECK_BYTES;
            bytes <= REQUEST_BYTES_MAX
        };
        // At least one, so that a very long key does not stop the batch.
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (chunk, after) = rest.split_at(count);
        rest = after;
        (!chunk.is_empty()).then_some(chunk)
    })
}
