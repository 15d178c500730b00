//! The model's side of a case: what was granted, recorded and promised so far.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use leasehold_core::{
    AuditRecord, Claim, Environment as _, FencingToken, Holder, Model, OwnerToken, Resource, Share, Timestamp,
};

use super::steps::{Asking, Family, Pause, Span, Who};
use crate::target::BackendUnderTest;

/// Two resources as the model has them, and how the backend's tokens map onto the model's.
pub(super) struct World {
    pub(super) resources: [Resource; 2],
    pub(super) models: [Model; 2],
    pub(super) tokens: [Tokens; 2],
    pub(super) audit: Vec<AuditRecord>,
    pub(super) horizon: Horizon,
    salt: [u8; 8],
    minted: u64,
}

impl World {
    pub(super) fn new() -> World {
        let mut salt = [0; 8];
        leasehold::System::current().fill(&mut salt);
        let name = |number: u8| {
            let id = format!("{:016x}-{number}", u64::from_be_bytes(salt));
            Resource::new("differential", &id).expect("the name follows the grammar")
        };
        World {
            resources: [name(0), name(1)],
            models: [Model::new(0), Model::new(0)],
            tokens: [Tokens::default(), Tokens::default()],
            audit: Vec::new(),
            horizon: Horizon::default(),
            salt,
            minted: 0,
        }
    }

    /// What the keys of this case's resources begin with.
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

    /// The clock from which the model mints: always above what it minted before.
    pub(super) fn clock(&mut self) -> u64 {
        self.minted += 1;
        self.minted
    }

    pub(super) fn claim(&self, asking: &Asking, share: Share, target: &BackendUnderTest) -> Claim {
        let Who { owner, resource } = asking.who;
        let holder = Arc::new(Holder::new("differential", u32::from(owner), &format!("owner {owner}")));
        let (resource, ttl) = (self.resources[usize::from(resource)].clone(), asking.ttl.given(target));
        let mut claim = Claim::new(resource, self.owner(owner), share, ttl, holder);
        claim.place_ttl = asking.place_ttl.given(target);
        claim.note = asking.note.map(|byte| Arc::from([byte]));
        claim
    }
}

/// How tokens of the model and of the backend correspond, on one resource.
#[derive(Default)]
pub(super) struct Tokens {
    theirs: BTreeMap<FencingToken, FencingToken>,
    used: HashSet<FencingToken>,
    pub(super) newest: Option<FencingToken>,
    greatest_exclusive: Option<FencingToken>,
    last_grants: BTreeMap<OwnerToken, FencingToken>,
}

impl Tokens {
    /// Both sides granted: `ours` is the model's token, `theirs` the backend's.
    pub(super) fn granted(
        &mut self,
        owner: OwnerToken,
        share: Share,
        ours: FencingToken,
        theirs: FencingToken,
    ) -> Result<(), String> {
        if let Some(&known) = self.theirs.get(&ours) {
            return if known == theirs {
                Ok(())
            } else {
                Err(format!("the same grant had {known:?} before and has {theirs:?} now"))
            };
        }
        if !self.used.insert(theirs) {
            return Err(format!("a new grant has {theirs:?}, which another grant had before"));
        }
        if share.is_exclusive() {
            if let Some(greatest) = self.greatest_exclusive.filter(|greatest| *greatest >= theirs) {
                return Err(format!(
                    "an exclusive grant has {theirs:?}, and an earlier one had {greatest:?}"
                ));
            }
            self.greatest_exclusive = Some(theirs);
        }
        self.theirs.insert(ours, theirs);
        self.newest = self.newest.max(Some(theirs));
        self.last_grants.insert(owner, ours);
        Ok(())
    }

    /// What the backend calls a grant of the model.
    pub(super) fn translate(&self, ours: FencingToken) -> Option<FencingToken> {
        self.theirs.get(&ours).copied()
    }

    pub(super) fn last_grant_of(&self, owner: OwnerToken) -> Option<FencingToken> {
        self.last_grants.get(&owner).copied()
    }
}

/// The moments at which something may end: with a real clock, calls stay clear of them.
#[derive(Default)]
pub(super) struct Horizon {
    ends: Vec<(Timestamp, Timestamp)>,
}

impl Horizon {
    /// Something was given for this long, by a call that ran from `began` to `ended`.
    pub(super) fn given(
        &mut self,
        began: Timestamp,
        ended: Timestamp,
        lasting: Duration,
        lateness: Duration,
    ) {
        self.ends.push((began.after(lasting), ended.after(lasting + lateness)));
    }

    /// Until when to wait so as not to call into an end.
    pub(super) fn clear_from(&self, now: Timestamp, margin: Duration) -> Option<Timestamp> {
        let close = |(first, last): &&(Timestamp, Timestamp)| {
            first.before(margin) <= now && now <= last.after(margin)
        };
        self.ends.iter().filter(close).map(|(_, last)| last.after(margin)).max()
    }

    /// Whether something may have ended while a call ran, or close to it.
    pub(super) fn touches(&self, began: Timestamp, ended: Timestamp, margin: Duration) -> bool {
        self.ends.iter().any(|(first, last)| first.before(margin) <= ended && began <= last.after(margin))
    }
}

impl Span {
    /// How long that is, when given for a ttl.
    pub(super) fn given(self, target: &BackendUnderTest) -> Duration {
        let short = target.shortest_ttl();
        match self {
            _ if !target.backend().info().capabilities.own_ttl => Duration::from_secs(90),
            Span::Zero => Duration::ZERO,
            Span::Short => short,
            Span::Longer => short * 3,
            Span::Long => Duration::from_secs(90),
        }
    }
}

impl Pause {
    /// How long that is; with a real clock only short times pass.
    pub(super) fn lasting(self, target: &BackendUnderTest) -> Duration {
        let short = target.shortest_ttl();
        match (self, target.is_exact()) {
            (Pause::Blink, _) => Duration::from_millis(1),
            (Pause::HalfShort, true) => short / 2,
            (Pause::HalfShort, false) => short / 8,
            (Pause::Short, _) => short,
            (Pause::Longer, true) => short * 3,
            (Pause::Long, true) => Duration::from_secs(90),
            (Pause::Forever, true) => Duration::from_secs(600),
            (_, false) => short / 4,
        }
    }
}

impl Family {
    /// The share that a claim of this family asks for.
    pub(super) fn share(self, weight: u8, stray: bool) -> Share {
        let (weight, capacity) = match (self, stray) {
            (_, true) => (1, 7),
            (Family::Mutex, _) => (1, 1),
            (Family::Semaphore, _) => (1 + u32::from(weight) % 3, 3),
            (Family::ReadWrite, _) => (if weight.is_multiple_of(3) { u32::MAX } else { 1 }, u32::MAX),
        };
        Share::new(weight, capacity).expect("these are shares")
    }
}
