//! `POST /v1/renew`: renews leases and places in the queue.

use std::time::Duration;

use leasehold_core::{ClaimRef, Error, RenewRequest, Renewal, Renewed, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    acquire::{check_name, check_problem, read_claim, unreadable},
    fields::{self, ClaimName, OwnerText, TokenText},
    inspect::FinishRequestBody,
    list::{self, Entry, OneOrMany, Unreadable},
    problem::{Problem, RefusedVerdict},
};

/// A renewal, as a client sends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(
    feature = "openapi",
    derive(schemars::JsonSchema),
    schemars(extend("oneOf" = crate::openapi::one_name()))
)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// The resource, as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceName>"))]
    pub resource: Option<String>,
    /// The resource by its key: for hashed ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceKey>"))]
    pub key: Option<String>,
    /// The owner token of the claim.
    pub owner: OwnerText,
    /// The new ttl, counted from now; for a place in the queue, its place ttl.
    #[cfg_attr(feature = "openapi", schemars(extend("minimum" = 1)))]
    pub ttl_ms: u64,
    /// Replaces the note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Replaces the note, if it is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note_base64: Option<String>,
}

impl From<&RenewRequest> for RenewBody {
    fn from(request: &RenewRequest) -> RenewBody {
        let (resource, key) = fields::write_resource(&request.resource);
        let (note, note_base64) = fields::write_note(request.note.as_deref());
        let (owner, ttl_ms) = (OwnerText(request.owner), fields::ttl_ms(request.ttl));
        RenewBody { resource, key, owner, ttl_ms, note, note_base64 }
    }
}

impl RenewBody {
    /// Reads the body of a request: one renewal, or `{"leases":[…]}`.
    ///
    /// # Errors
    /// If it is neither.
    pub fn read(body: &[u8]) -> Result<OneOrMany<RenewBody>, Unreadable> {
        OneOrMany::read(body, "leases")
    }

    /// The body of a request with many renewals.
    pub fn write_many(requests: &[RenewBody], timeout_ms: Option<u64>) -> Value {
        list::write_many("leases", requests, timeout_ms)
    }

    /// The renewal for the store.
    ///
    /// # Errors
    /// `Invalid` if the resource or the note cannot be read.
    pub fn request(&self) -> Result<RenewRequest> {
        let claim = read_claim(self.resource.as_deref(), self.key.as_deref(), self.owner.0)?;
        let mut request = RenewRequest::new(claim, Duration::from_millis(self.ttl_ms));
        request.note = fields::read_note(self.note.as_deref(), self.note_base64.as_deref())?;
        Ok(request)
    }
}

/// The answer to a renewal that succeeded.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum RenewReply {
    /// 200: the lease was renewed.
    Kept(KeptReply),
    /// 202: the claim is queued, and its place was renewed.
    Queued(PlaceReply),
}

/// A renewed lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct KeptReply {
    /// The claim.
    #[serde(flatten)]
    pub claim: ClaimName,
    /// The number of the grant: its token, if it is exclusive.
    pub grant: TokenText,
    /// The ttl that was given.
    pub ttl_ms: u64,
    /// How much time was left when the store executed the request.
    pub remaining_ms: u64,
    /// An operator's request that the holder finish.
    pub asked: Option<FinishRequestBody>,
    /// An operator evicted the holder: this lease was not extended, and will not be.
    #[serde(default)]
    pub evicting: bool,
}

/// A renewed place in the queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct PlaceReply {
    /// The claim.
    #[serde(flatten)]
    pub claim: ClaimName,
    /// How long the place lasts: ask again or renew within this time.
    pub place_ms: u64,
}

/// What the server answers to this renewal.
pub fn reply(request: &RenewRequest, renewal: Result<Renewal>) -> Entry<RenewReply> {
    let claim = || ClaimName::of(&request.resource, request.owner);
    let problem = match renewal {
        Ok(Renewal::Renewed(renewed)) => {
            let kept = KeptReply {
                claim: claim(),
                grant: TokenText(renewed.token),
                ttl_ms: fields::ms_down(request.ttl),
                remaining_ms: fields::ms_down(renewed.remaining),
                asked: renewed.asked.as_ref().map(FinishRequestBody::from),
                evicting: renewed.evicting,
            };
            return Entry::Reply(200, RenewReply::Kept(kept));
        }
        Ok(Renewal::Queued { remaining }) => {
            let place = PlaceReply { claim: claim(), place_ms: fields::ms_down(remaining) };
            return Entry::Reply(202, RenewReply::Queued(place));
        }
        Ok(Renewal::Gone { why }) => Problem::gone(why, RefusedVerdict::Gone),
        Err(error) => Problem::from(&error),
    };
    problem.about(&request.resource, request.owner).into()
}

/// What the answer means for the client that sent this renewal.
///
/// # Errors
/// As [`acquire::outcome`](crate::acquire::outcome).
pub fn outcome(request: &RenewRequest, entry: Entry<RenewReply>) -> Result<Renewal> {
    let asked = ClaimRef { resource: request.resource.clone(), owner: request.owner };
    match entry.into_result() {
        Ok(RenewReply::Kept(kept)) => {
            check_name(&asked, &kept.claim)?;
            let mut renewed = Renewed::new(kept.grant.0, Duration::from_millis(kept.remaining_ms));
            renewed.asked = kept.asked.as_ref().map(FinishRequestBody::to_core);
            renewed.evicting = kept.evicting;
            Ok(Renewal::Renewed(renewed))
        }
        Ok(RenewReply::Queued(place)) => {
            check_name(&asked, &place.claim)?;
            Ok(Renewal::Queued { remaining: Duration::from_millis(place.place_ms) })
        }
        Err(problem) => {
            check_problem(&asked, &problem)?;
            match (problem.verdict, problem.why) {
                (Some(RefusedVerdict::Gone), Some(why)) => Ok(Renewal::Gone { why: why.into() }),
                (Some(RefusedVerdict::Gone), None) => Err(unreadable("a lost claim without a reason")),
                _ => Err(Error::from(&*problem)),
            }
        }
    }
}
