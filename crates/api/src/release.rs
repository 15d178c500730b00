//! `POST /v1/release`: ends claims.

use std::time::Duration;

use leasehold_core::{ClaimRef, Error, ReleaseRequest, Released, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    acquire::{check_name, check_problem, read_claim},
    fields::{self, ClaimName, OwnerText},
    list::{self, Entry, OneOrMany, Unreadable},
    problem::Problem,
};

/// A release, as a client sends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(
    feature = "openapi",
    derive(schemars::JsonSchema),
    schemars(extend("oneOf" = crate::openapi::one_name()))
)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
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
    /// Leave a tombstone for this long: a delayed request of this owner is refused. Needed after an unanswered request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("maximum" = crate::bounds::BURY_MS)))]
    pub bury_ms: Option<u64>,
    /// If the claim holds the resource: keep it closed for this long, with no holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_for_ms: Option<u64>,
}

impl From<&ReleaseRequest> for ReleaseBody {
    fn from(request: &ReleaseRequest) -> ReleaseBody {
        let (resource, key) = fields::write_resource(&request.resource);
        let (bury_ms, keep_for_ms) =
            (request.tombstone.map(fields::ms_up), request.keep_for.map(fields::ms_up));
        ReleaseBody { resource, key, owner: OwnerText(request.owner), bury_ms, keep_for_ms }
    }
}

impl ReleaseBody {
    /// Reads the body of a request: one release, or `{"leases":[…]}`.
    ///
    /// # Errors
    /// If it is neither.
    pub fn read(body: &[u8]) -> Result<OneOrMany<ReleaseBody>, Unreadable> {
        OneOrMany::read(body, "leases")
    }

    /// The body of a request with many releases.
    pub fn write_many(requests: &[ReleaseBody], timeout_ms: Option<u64>) -> Value {
        list::write_many("leases", requests, timeout_ms)
    }

    /// The release for the store.
    ///
    /// # Errors
    /// `Invalid` if the resource cannot be read.
    pub fn request(&self) -> Result<ReleaseRequest> {
        let claim = read_claim(self.resource.as_deref(), self.key.as_deref(), self.owner.0)?;
        let mut request = ReleaseRequest::new(claim);
        request.tombstone = self.bury_ms.map(Duration::from_millis);
        request.keep_for = self.keep_for_ms.map(Duration::from_millis);
        Ok(request)
    }
}

/// The answer to a release: always 200.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum ReleaseReply {
    /// The claim held the resource or was queued, and this request ended it.
    Released(ClaimName),
    /// There was no such claim. It may have expired, or the request was sent twice.
    AlreadyGone(ClaimName),
}

/// What the server answers to this release.
pub fn reply(request: &ReleaseRequest, released: Result<Released>) -> Entry<ReleaseReply> {
    let claim = ClaimName::of(&request.resource, request.owner);
    match released {
        Ok(Released::AlreadyGone) => Entry::Reply(200, ReleaseReply::AlreadyGone(claim)),
        Ok(_) => Entry::Reply(200, ReleaseReply::Released(claim)),
        Err(error) => Problem::from(&error).about(&request.resource, request.owner).into(),
    }
}

/// What the answer means for the client that sent this release.
///
/// # Errors
/// As [`acquire::outcome`](crate::acquire::outcome).
pub fn outcome(request: &ReleaseRequest, entry: Entry<ReleaseReply>) -> Result<Released> {
    let asked = ClaimRef { resource: request.resource.clone(), owner: request.owner };
    match entry.into_result() {
        Ok(ReleaseReply::Released(claim)) => check_name(&asked, &claim).map(|()| Released::Now),
        Ok(ReleaseReply::AlreadyGone(claim)) => check_name(&asked, &claim).map(|()| Released::AlreadyGone),
        Err(problem) => {
            check_problem(&asked, &problem)?;
            Err(Error::from(&*problem))
        }
    }
}
