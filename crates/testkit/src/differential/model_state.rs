//! The model's side of a case: the models of its resources, the audit trail, and what may expire when.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use leasehold_core::{
    AuditRecord, Claim, ClientId, Environment as _, FencingToken, Holder, Model, OwnerToken, Resource, Share,
    Timestamp,
};

use super::steps::{AcquireStep, ClaimKey, ShareFamily, TimeStep, TtlChoice};
use crate::target::BackendUnderTest;

/// The models of the two resources of a case, and the mapping between the tokens of model and backend.
pub(super) struct ModelState {
    pub(super) resources: [Resource; 2],
    pub(super) models: [Model; 2],
    pub(super) tokens: [TokenMap; 2],
    pub(super) audit: Vec<AuditRecord>,
    pub(super) expiry_times: ExpiryTimes,
    salt: [u8; 8],
    minted: u64,
}

impl ModelState {
    pub(super) fn new(passes_over: bool) -> ModelState {
        // Cases run side by side on the same server, so their names and owners must differ.
        let mut salt = [0; 8];
        leasehold::System::current().fill(&mut salt);
        let name = |number: u8| {
            let id = format!("{:016x}-{number}", u64::from_be_bytes(salt));
            Resource::new("differential", &id).expect("the name follows the grammar")
        };
        ModelState {
            resources: [name(0), name(1)],
            models: [new_model(passes_over), new_model(passes_over)],
            tokens: [TokenMap::default(), TokenMap::default()],
            audit: Vec::new(),
            expiry_times: ExpiryTimes::default(),
            salt,
            minted: 0,
        }
    }

    /// The common prefix of the keys of this case's resources.
    pub(super) fn prefix(&self) -> String {
        let key = self.resources[0].key();
        key[..key.len() - 1].to_owned()
    }

    pub(super) fn owner(&self, owner: u8) -> OwnerToken {
        let mut bytes = [0; 16];
        bytes[0] = owner + 1;
        bytes[1..9].copy_from_slice(&self.salt);
        OwnerToken::from_bytes(bytes)
    }

    /// The clock from which the model mints its next token: above every earlier token.
    pub(super) fn next_clock(&mut self) -> u64 {
        self.minted += 1;
        self.minted
    }

    pub(super) fn claim(&self, step: &AcquireStep, share: Share, target: &BackendUnderTest) -> Claim {
        let ClaimKey { owner, resource } = step.claim;
        let holder = Arc::new(Holder::new("differential", u32::from(owner), &format!("owner {owner}")));
        let (resource, ttl) = (self.resources[usize::from(resource)].clone(), step.ttl.duration(target));
        let mut claim = Claim::new(resource, self.owner(owner), share, ttl, holder);
        claim.place_ttl = step.place_ttl.duration(target);
        claim.client = ClientId::from_number(step.client.into());
        claim.note = step.note.map(|byte| Arc::from([byte]));
        claim
    }
}

fn new_model(passes_over: bool) -> Model {
    if passes_over { Model::new(0) } else { Model::new(0).without_passing_over() }
}

/// The mapping of the model's tokens to the backend's tokens, for one resource.
#[derive(Default)]
pub(super) struct TokenMap {
    backend_tokens: BTreeMap<FencingToken, FencingToken>,
    used: HashSet<FencingToken>,
    pub(super) newest: Option<FencingToken>,
    greatest_exclusive: Option<FencingToken>,
    last_grants: BTreeMap<OwnerToken, FencingToken>,
}

impl TokenMap {
    /// Records that both sides granted, and checks the backend's token: the same grant must have the same
    /// token, a new grant a new token, and the tokens of exclusive grants must grow.
    pub(super) fn granted(
        &mut self,
        owner: OwnerToken,
        share: Share,
        model_token: FencingToken,
        backend_token: FencingToken,
    ) -> Result<(), String> {
        if let Some(&known) = self.backend_tokens.get(&model_token) {
            return if known == backend_token {
                Ok(())
            } else {
                Err(format!("the same grant had {known:?} before and has {backend_token:?} now"))
            };
        }
        if !self.used.insert(backend_token) {
            return Err(format!("a new grant has {backend_token:?}, which another grant had before"));
        }
        if share.is_exclusive() {
            if let Some(greatest) = self.greatest_exclusive.filter(|greatest| *greatest >= backend_token) {
                return Err(format!(
                    "an exclusive grant has {backend_token:?}, and an earlier one had {greatest:?}"
                ));
            }
            self.greatest_exclusive = Some(backend_token);
        }
        self.backend_tokens.insert(model_token, backend_token);
        self.newest = self.newest.max(Some(backend_token));
        self.last_grants.insert(owner, model_token);
        Ok(())
    }

    /// The backend's token for the grant that has this token in the model.
    pub(super) fn backend_token(&self, model_token: FencingToken) -> Option<FencingToken> {
        self.backend_tokens.get(&model_token).copied()
    }

    pub(super) fn last_grant_of(&self, owner: OwnerToken) -> Option<FencingToken> {
        self.last_grants.get(&owner).copied()
    }
}

/// The times at which a ttl may expire. With a real clock, calls avoid these times, because the model and the
/// backend could disagree on whether the ttl has expired.
#[derive(Default)]
pub(super) struct ExpiryTimes {
    /// For each ttl, the earliest and the latest time at which it expires.
    ranges: Vec<(Timestamp, Timestamp)>,
}

impl ExpiryTimes {
    /// Adds a ttl that was granted by a call that ran from `began` to `ended`.
    pub(super) fn add(&mut self, began: Timestamp, ended: Timestamp, lasting: Duration, grace: Duration) {
        self.ranges.push((began.after(lasting), ended.after(lasting + grace)));
    }

    /// Until when to wait, if something may expire within `margin` from now.
    pub(super) fn clear_from(&self, now: Timestamp, margin: Duration) -> Option<Timestamp> {
        let close = |(first, last): &&(Timestamp, Timestamp)| {
            first.before(margin) <= now && now <= last.after(margin)
        };
        self.ranges.iter().filter(close).map(|(_, last)| last.after(margin)).max()
    }

    /// Whether something may have expired while a call ran, or within `margin` of it.
    pub(super) fn touches(&self, began: Timestamp, ended: Timestamp, margin: Duration) -> bool {
        self.ranges.iter().any(|(first, last)| first.before(margin) <= ended && began <= last.after(margin))
    }
}

const LONG: Duration = Duration::from_secs(90);

impl TtlChoice {
    /// The duration of the ttl for this backend.
    pub(super) fn duration(self, target: &BackendUnderTest) -> Duration {
        let short = target.shortest_ttl();
        match self {
            // A session keeps grants alive, so short ttls mean nothing.
            _ if !target.backend().info().capabilities.own_ttl => LONG,
            TtlChoice::Zero => Duration::ZERO,
            TtlChoice::Short => short,
            TtlChoice::Longer => short * 3,
            TtlChoice::Long => LONG,
        }
    }
}

impl TimeStep {
    /// The duration of the step. With a real clock only short times pass.
    pub(super) fn duration(self, target: &BackendUnderTest) -> Duration {
        let short = target.shortest_ttl();
        match (self, target.is_exact()) {
            (TimeStep::Moment, _) => Duration::from_millis(1),
            (TimeStep::HalfShort, true) => short / 2,
            (TimeStep::HalfShort, false) => short / 8,
            (TimeStep::Short, _) => short,
            (TimeStep::Longer, true) => short * 3,
            (TimeStep::Long, true) => LONG,
            (TimeStep::Forever, true) => Duration::from_secs(600),
            (_, false) => short / 4,
        }
    }
}

impl ShareFamily {
    /// The share of a claim of this family.
    pub(super) fn share(self, weight: u8, other_capacity: bool) -> Share {
        let (weight, capacity) = match (self, other_capacity) {
            (_, true) => (1, 7),
            (ShareFamily::Mutex, _) => (1, 1),
            (ShareFamily::Semaphore, _) => (1 + u32::from(weight) % 3, 3),
            (ShareFamily::ReadWrite, _) => (if weight.is_multiple_of(3) { u32::MAX } else { 1 }, u32::MAX),
        };
        Share::new(weight, capacity).expect("these shares are valid")
    }
}
