//! Acquire on ZooKeeper.
//!
//! A claim is an ephemeral sequential node (a *contender*) in the folder of its resource. The contenders with
//! the lowest sequence numbers hold the resource, as many as fit its capacity (`contender.rs`).
//!
//! 1. If this session has a granted contender for the claim, ask the ensemble whether it still exists.
//! 2. If the claim takes over from another claim, try to take that claim's place (`takeover.rs`).
//! 3. If this session has a waiting contender for the claim, go to step 5.
//! 4. Otherwise create the contender in one transaction ([`AcquireContext::create_contender`]). If the claim
//!    has a contender already, because the reply to an earlier attempt was lost, find that contender and go
//!    on with it (`recover.rs`).
//! 5. List the folder and decide: granted, blocked, or capacity mismatch (`evaluate.rs`). After step 4 the
//!    list was requested together with the transaction.
//!
//! Each step can find that the folder changed under it and returns [`RoundOutcome::Retry`]. After
//! [`ROUNDS_MAX`] rounds the verb fails as `Unavailable`.
//!
//! A free resource costs two requests, the transaction and the listing: as many as Curator makes. The second
//! does not wait for the reply to the first, so they take one round trip (ADR 0041).

use std::pin::pin;

use futures_util::future::{Either, select};
use leasehold_core::{
    Claim, ClaimRef, Effect, Error, ErrorKind, FencingToken, Grant, RenewRequest, Renewal, Timestamp, Verdict,
};
use zookeeper_client::{CreateMode, Error as Driver, Stat};

use crate::{
    NAME, ROUNDS_MAX, RoundOutcome,
    backend::ZooKeeper,
    claim_record::{ClaimRecord, token_from_zxid},
    error::StoreError,
    evaluate::ContenderOrigin,
    local_claims::LocalClaim,
    paths::{self, contender_prefix, folder},
    resource_view::ResourceView,
    session::Session,
    takeover::{Predecessor, Takeover},
    transaction::{OperationPosition, Transaction, TransactionError},
};

/// What all steps of one `acquire` call need.
pub(crate) struct AcquireContext<'a> {
    pub(crate) session: &'a Session,
    pub(crate) claim: &'a Claim,
    /// Resource and owner of the claim.
    pub(crate) reference: ClaimRef,
    /// When the call began. The remaining time of a grant counts from here.
    pub(crate) began: Timestamp,
    /// How many claims may wait for one resource.
    pub(crate) queue_max: u32,
}

/// The outcome of an attempt to create a contender.
pub(crate) enum CreateOutcome {
    /// With a list of the folder that was requested right after the transaction.
    Created(Option<ResourceView>),
    /// The claim has a tombstone: it was ended before the servers executed this request.
    Cancelled,
    /// The claim has a contender already.
    AlreadyExists,
    /// The predecessor's contender is gone or has changed, so it could not be deleted in the same
    /// transaction.
    PredecessorChanged,
}

/// The positions of the operations in the transaction that creates a contender.
struct CreatePositions {
    no_tombstone: OperationPosition,
    create_marker: OperationPosition,
    touch_folder: OperationPosition,
    create_node: OperationPosition,
    delete_predecessor: Option<OperationPosition>,
    delete_predecessor_marker: Option<OperationPosition>,
}

/// What to do after the transaction that creates a contender has failed.
enum CreateFailure {
    /// The attempt has this outcome.
    Ended(CreateOutcome),
    /// The cause was removed, so the transaction can be sent again.
    SendAgain,
    /// The predecessor has no marker. Send the transaction again without deleting the marker.
    SendWithoutPredecessorMarker,
}

impl ZooKeeper {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Verdict, StoreError> {
        self.check_limits(claim)?;
        let began = self.now();
        let session = self.session().await?;
        let context = AcquireContext {
            session: &session,
            claim,
            reference: claim.reference(),
            began,
            queue_max: self.info.limits.queue,
        };
        for _ in 0..ROUNDS_MAX {
            if let RoundOutcome::Done(verdict) = context.round().await? {
                return Ok(verdict);
            }
        }
        Err(StoreError::contention().after_effect())
    }

    fn check_limits(&self, claim: &Claim) -> Result<(), Error> {
        let (note_max, ttl_min) = (self.info.limits.note, self.info.limits.ttl);
        if let Some(note) = claim.note.as_ref().filter(|note| note.len() > note_max) {
            return Err(note_too_long(note.len(), note_max));
        }
        if claim.ttl < ttl_min {
            // A lease lives as long as its session. A dead holder would keep the lease for longer than the
            // claim says.
            let ttl = claim.ttl;
            let message = format!(
                "a ttl of {ttl:?} is too short: {NAME} keeps a lease as long as its session, which is at \
                 least {ttl_min:?} here. Use a longer ttl, or connect with a shorter session_timeout"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }
}

/// A note is longer than the limit.
pub(crate) fn note_too_long(length: usize, most: usize) -> Error {
    Error::new(ErrorKind::Limit, format!("the note has {length} bytes: a note has at most {most} bytes"))
}

impl AcquireContext<'_> {
    /// Steps 1 to 5 of the algorithm at the top of the file, once.
    async fn round(&self) -> Result<RoundOutcome<Verdict>, StoreError> {
        let is_granted = self.session.claims.read(&self.reference, |local| local.is_granted);
        if is_granted == Some(true) {
            return self.confirm_grant().await;
        }
        let is_queued = is_granted.is_some();
        if let Some(handover) = self.claim.takes_over_from {
            return Takeover::new(self, handover, is_queued).run().await;
        }
        if is_queued {
            return self.evaluate(ContenderOrigin::EarlierCall, None).await;
        }
        match self.create_contender(&self.new_record(), None).await? {
            CreateOutcome::Created(listed) => self.evaluate(ContenderOrigin::ThisCall, listed).await,
            CreateOutcome::Cancelled => self.refuse_cancelled().await.map(RoundOutcome::Done),
            CreateOutcome::AlreadyExists => self.recover().await.map_err(StoreError::after_effect),
            // Not possible without a predecessor.
            CreateOutcome::PredecessorChanged => Ok(RoundOutcome::Retry),
        }
    }

    /// The record of a new contender for this claim.
    pub(crate) fn new_record(&self) -> ClaimRecord {
        ClaimRecord::new(&self.claim.holder, self.session.expiry, self.claim.note.as_deref())
    }

    /// Asks the ensemble whether a contender that was granted before still exists.
    async fn confirm_grant(&self) -> Result<RoundOutcome<Verdict>, StoreError> {
        let request = RenewRequest::new(self.reference.clone(), self.claim.ttl);
        let renewals = self.session.renew_local(std::slice::from_ref(&request), self.began).await?;
        Ok(match renewals.into_iter().next().flatten() {
            Some(Renewal::Renewed(renewed)) => {
                RoundOutcome::Done(Verdict::Granted(Grant::new(renewed.token, renewed.remaining)))
            }
            // The node is gone, and `renew_local` has forgotten it: the next round creates a new one.
            _ => RoundOutcome::Retry,
        })
    }

    /// Creates the contender of the claim and its marker. A predecessor's contender and marker are deleted in
    /// the same transaction.
    pub(crate) async fn create_contender(
        &self,
        record: &ClaimRecord,
        predecessor: Option<&Predecessor>,
    ) -> Result<CreateOutcome, StoreError> {
        let mut deletes_predecessor_marker = true;
        for _ in 0..ROUNDS_MAX {
            let sent = self.session.now();
            let mut transaction = self.session.transaction();
            let positions =
                self.add_creation(&mut transaction, record, predecessor, deletes_predecessor_marker);
            // ZooKeeper executes the requests of a session in their order, so the list already contains the new
            // contender. If it does not, because the connection was lost in between, `evaluate` lists again.
            let listing = pin!(self.session.view(&self.claim.resource));
            let (committed, listed) = match select(pin!(transaction.commit()), listing).await {
                Either::Left((Ok(committed), listing)) => (Ok(committed), listing.await.ok()),
                // Nothing to list. If the reply was that of another request, the list may never come.
                Either::Left((Err(error), _)) => (Err(error), None),
                Either::Right((listed, commit)) => (commit.await, listed.ok()),
            };
            let (position, source) = match committed {
                Ok(committed) => {
                    let node = committed.created_name(positions.create_node).unwrap_or_default().to_owned();
                    let stat = committed.stat().ok_or_else(|| StoreError::contention().after_effect())?;
                    self.session.note_commit_with_stat(sent, stat);
                    self.remember(node, stat, record).await?;
                    return Ok(CreateOutcome::Created(listed.flatten()));
                }
                Err(TransactionError::Operation { position, source }) => (position, source),
                Err(error) => return Err(StoreError::from(error)),
            };
            match self.explain_failure(&positions, position, source).await? {
                CreateFailure::Ended(outcome) => return Ok(outcome),
                CreateFailure::SendAgain => {}
                CreateFailure::SendWithoutPredecessorMarker => deletes_predecessor_marker = false,
            }
        }
        Err(StoreError::contention())
    }

    /// Adds the operations that create the contender.
    fn add_creation(
        &self,
        transaction: &mut Transaction<'_>,
        record: &ClaimRecord,
        predecessor: Option<&Predecessor>,
        deletes_predecessor_marker: bool,
    ) -> CreatePositions {
        let (session, resource) = (self.session, &self.claim.resource);
        let folder = folder(resource);
        let prefix = format!("{folder}/{}", contender_prefix(self.claim.owner, self.claim.share));
        let options = session.options(CreateMode::EphemeralSequential);
        CreatePositions {
            no_tombstone: transaction.check_no_tombstone(&self.reference),
            create_marker: transaction.create(&paths::marker(&self.reference), b"", &session.ephemeral()),
            // The token is the czxid of the new node, but servers up to 3.8 do not return the czxid of a node
            // that was created in a transaction (ZOOKEEPER-4667). The mzxid of a node that the same
            // transaction changes is the same number, and is returned (ADR 0026). The data names the resource
            // for clients that read the folder: see `resource_view.rs`.
            touch_folder: transaction.set_data(&folder, resource.key().as_bytes(), None),
            create_node: transaction.create_sequential(&prefix, &record.to_bytes(), &options),
            delete_predecessor: predecessor.map(|predecessor| {
                let path = paths::contender(resource, &predecessor.node);
                transaction.delete(&path, Some(predecessor.stat.version))
            }),
            delete_predecessor_marker: predecessor
                .filter(|_| deletes_predecessor_marker)
                .map(|predecessor| transaction.delete(&paths::marker(&predecessor.claim), None)),
        }
    }

    /// Finds out why the transaction that creates the contender failed, and removes the cause if possible.
    async fn explain_failure(
        &self,
        positions: &CreatePositions,
        failed: OperationPosition,
        source: Driver,
    ) -> Result<CreateFailure, StoreError> {
        match source {
            Driver::NodeExists if failed == positions.no_tombstone => {
                // Read the tombstone: a failure does not prove that it exists (ADR 0033), and it may be past
                // its end.
                let tombstone = self.session.read_tombstone(&self.reference).await?;
                Ok(match tombstone {
                    Some(_) => CreateFailure::Ended(CreateOutcome::Cancelled),
                    None => CreateFailure::SendAgain,
                })
            }
            Driver::NodeExists if failed == positions.create_marker => {
                Ok(CreateFailure::Ended(CreateOutcome::AlreadyExists))
            }
            // The first claim of this resource, or the servers have deleted the empty folder.
            Driver::NoNode if failed == positions.touch_folder || failed == positions.create_node => {
                self.session.create_folder(&folder(&self.claim.resource)).await?;
                Ok(CreateFailure::SendAgain)
            }
            Driver::NoNode | Driver::BadVersion if Some(failed) == positions.delete_predecessor => {
                Ok(CreateFailure::Ended(CreateOutcome::PredecessorChanged))
            }
            // See `Session::delete_contender` for why a marker can be missing.
            Driver::NoNode if Some(failed) == positions.delete_predecessor_marker => {
                Ok(CreateFailure::SendWithoutPredecessorMarker)
            }
            source => Err(StoreError::from(source)),
        }
    }

    /// Remembers a contender that was just created, unless its token is not above the claim's floor.
    async fn remember(&self, node: String, stat: &Stat, record: &ClaimRecord) -> Result<(), StoreError> {
        let token = token_from_zxid(stat.mzxid).map_err(|error| error.with_effect(Effect::Unknown))?;
        let local = LocalClaim::new(node, token, record.clone(), self.claim.share.weight());
        self.session.claims.insert(self.reference.clone(), local);
        self.check_floor(token).await
    }

    /// Refuses a contender whose token is not above the claim's floor, and deletes it.
    pub(crate) async fn check_floor(&self, token: FencingToken) -> Result<(), StoreError> {
        let Some(floor) = self.claim.floor.filter(|floor| *floor >= token) else { return Ok(()) };
        self.session.remove(&self.reference).await.map_err(StoreError::after_effect)?;
        let message = format!(
            "the ensemble issued token {token}, but token {floor} was issued before: the ensemble was \
             restored from an older state, and its tokens would go back. Restore a newer state, or move the \
             leases to a new store"
        );
        Err(StoreError::from(Error::new(ErrorKind::Invalid, message)))
    }

    /// Answers a claim that has a tombstone. The engine does not ask for such a claim again, so all its nodes
    /// must be gone before the answer: see `marker.rs`.
    pub(crate) async fn refuse_cancelled(&self) -> Result<Verdict, StoreError> {
        self.session.remove(&self.reference).await.map_err(StoreError::after_effect)?;
        Ok(Verdict::Cancelled)
    }
}
