//! `POST /v1/wait`: says which claims are worth asking for again. A hint: it may return early, and keeps no place.

use leasehold_core::{ClaimRef, Cursor, Result};
use serde::{Deserialize, Serialize};

use crate::{
    acquire::read_claim,
    fields::{self, OwnerText, StoreId},
    list::{self, Unreadable},
};

/// The body of a request to wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WaitBody {
    /// The claims.
    #[serde(deserialize_with = "list::objects")]
    #[cfg_attr(feature = "openapi", schemars(extend("maxItems" = crate::bounds::ENTRIES)))]
    pub claims: Vec<WaitingClaim>,
    /// Return after this long at the latest.
    #[cfg_attr(feature = "openapi", schemars(extend("maximum" = crate::bounds::WAIT_MS)))]
    pub wait_ms: u64,
}

/// A claim that waits, and from where.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(
    feature = "openapi",
    derive(schemars::JsonSchema),
    schemars(extend("oneOf" = crate::openapi::one_name()))
)]
#[serde(deny_unknown_fields)]
pub struct WaitingClaim {
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
    /// The cursor of its last answer.
    pub cursor: String,
}

impl WaitBody {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// If it is not one.
    pub fn read(body: &[u8]) -> Result<WaitBody, Unreadable> {
        list::read_body(body)
    }
}

impl WaitingClaim {
    /// The claim as a client sends it.
    pub fn new(claim: &ClaimRef, since: Cursor, store: &StoreId) -> WaitingClaim {
        let (resource, key) = fields::write_resource(&claim.resource);
        WaitingClaim {
            resource,
            key,
            owner: OwnerText(claim.owner),
            cursor: fields::write_cursor(since, store),
        }
    }

    /// The claim, and the cursor if this store gave it.
    ///
    /// # Errors
    /// `Invalid` if the resource cannot be read.
    pub fn claim(&self, store: &StoreId) -> Result<(ClaimRef, Option<Cursor>)> {
        let claim = read_claim(self.resource.as_deref(), self.key.as_deref(), self.owner.0)?;
        Ok((claim, fields::read_cursor(&self.cursor, store)))
    }
}

/// The answer to a wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct WaitReply {
    /// The positions, in the request, of the claims that should ask again. Empty if nothing happened.
    pub ask: Vec<usize>,
}
