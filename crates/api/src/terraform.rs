//! `/v1/terraform`: locks of Terraform and OpenTofu, as their `http` backend asks for them.
//!
//! Their protocol has one lock request, one unlock request, and no renewal. So a lock is one lease for a stated time.

use std::time::Duration;

use leasehold_core::{OwnerToken, Resource};
use serde::{Deserialize, Serialize};

use crate::fields::{self, ClaimName, TokenText};

/// How long a lock lasts without `ttl`.
pub const TTL_DEFAULT: Duration = Duration::from_secs(4 * 3600);
/// How long an id cannot be locked again after its unlock. A lock request that was delayed on its way would otherwise hold the
/// state for hours. Terraform draws a new id for each lock.
pub const TOMBSTONE: Duration = Duration::from_secs(180);
/// The longest id of a lock, in bytes.
pub const ID_MAX: usize = 256;

/// The query of `/v1/terraform`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TerraformQuery {
    /// The resource that stands for the state, as people write it.
    #[cfg_attr(feature = "openapi", schemars(with = "crate::openapi::ResourceName"))]
    pub resource: String,
    /// How long the lock lasts: nobody renews it. As in `30m`, `4h`, which is the default. Not used by an unlock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("examples" = ["4h"])))]
    pub ttl: Option<String>,
}

impl TerraformQuery {
    /// How long the lock lasts.
    ///
    /// # Errors
    /// `Invalid` if `ttl` is not a duration.
    pub fn ttl(&self) -> leasehold_core::Result<Duration> {
        let Some(text) = &self.ttl else { return Ok(TTL_DEFAULT) };
        let ttl = humantime::parse_duration(text).ok().filter(|ttl| ttl.as_millis() > 0);
        ttl.ok_or_else(|| fields::invalid("`ttl` is no duration: write it as in ttl=4h or ttl=30m"))
    }
}

/// What Terraform says of a lock. It is the note of the lease, and the whole body of 423.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "PascalCase", default)]
pub struct LockInfo {
    /// Names the lock: chosen by the client, new for each lock. A caller who shows it may unlock.
    #[serde(rename = "ID")]
    pub id: String,
    /// What is done under the lock.
    pub operation: String,
    /// More of it, in words.
    pub info: String,
    /// The user and the host.
    pub who: String,
    /// The version of the client.
    pub version: String,
    /// When the lock was made: RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// The path of the state.
    pub path: String,
}

impl LockInfo {
    /// The owner token of the lease: a hash of the resource and the id, so that the same lock sent again finds its own lease.
    pub fn owner(&self, resource: &Resource) -> OwnerToken {
        use sha2::{Digest as _, Sha256};
        let digest = Sha256::new()
            .chain_update("leasehold terraform lock\0")
            .chain_update(resource.key())
            .chain_update("\0")
            .chain_update(&self.id)
            .finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        OwnerToken::from_bytes(bytes)
    }

    /// The text for the note, with `info` cut so that it has at most this many bytes. `None` if it has more without `info`.
    pub fn note(&self, bytes_max: usize) -> Option<String> {
        let mut cut = self.clone();
        // Terraform reads `Created` as a time, and refuses the whole text if it is none.
        cut.created = cut.created.filter(|text| humantime::parse_rfc3339(text).is_ok());
        // A byte takes at least one byte of JSON, and at most six.
        truncate(&mut cut.info, bytes_max);
        loop {
            let text = serde_json::to_string(&cut).ok()?;
            let Some(excess) = text.len().checked_sub(bytes_max).filter(|excess| *excess > 0) else {
                return Some(text);
            };
            if cut.info.is_empty() {
                return None;
            }
            let keep = cut.info.len().saturating_sub(excess.div_ceil(6));
            truncate(&mut cut.info, keep);
        }
    }
}

/// Cuts the text before the character that does not fit.
fn truncate(text: &mut String, bytes_max: usize) {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}

/// The answer to a lock: 200.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct LockReply {
    /// The claim.
    #[serde(flatten)]
    pub claim: ClaimName,
    /// The fencing token.
    pub token: TokenText,
    /// How long the lock lasts. Nobody renews it.
    pub remaining_ms: u64,
}

/// The answer to an unlock: 200.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UnlockReply {
    /// The claim.
    #[serde(flatten)]
    pub claim: ClaimName,
    /// `released`, or `already_gone`: nobody holds the resource, because the lock had expired or was unlocked before.
    pub verdict: UnlockVerdict,
}

/// What an unlock did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnlockVerdict {
    /// It ended the lock.
    Released,
    /// Nobody held the resource.
    AlreadyGone,
}
