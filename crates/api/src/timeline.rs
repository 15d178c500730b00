//! `GET /v1/timeline`: what happened to one resource, as far as this server has seen it.
//!
//! The changes are those of `GET /v1/events`, which a server finds by comparing its samples; operators' commands of the audit trail are
//! among them.

use leasehold_core::{Resource, Result};
use serde::{Deserialize, Serialize};

use crate::{events::ChangeBody, inspect::ResourceQuery};

/// The most entries, waits and holds of an answer.
pub const ENTRIES_MAX: usize = 500;

/// The query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TimelineQuery {
    /// The resource, as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceName>"))]
    pub name: Option<String>,
    /// The resource by its key: for hashed ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceKey>"))]
    pub key: Option<String>,
}

impl TimelineQuery {
    /// The resource.
    ///
    /// # Errors
    /// `Invalid` if it cannot be read.
    pub fn resource(&self) -> Result<Resource> {
        let query =
            ResourceQuery { name: self.name.clone(), key: self.key.clone(), ..ResourceQuery::default() };
        query.resource()
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct TimelineReply {
    /// The resource, as people write it.
    pub resource: String,
    /// Its key.
    pub key: String,
    /// Since when this server remembers changes, for people: RFC 3339. Operators' commands may be older.
    pub since: String,
    /// No change since then is missing. Otherwise there were more than the server remembers, or than the answer has.
    pub complete: bool,
    /// Newest first.
    pub entries: Vec<ChangeBody>,
    /// How long grants were waited for, oldest first.
    pub waits: Vec<DurationBody>,
    /// How long it was held, oldest first.
    pub holds: Vec<DurationBody>,
}

/// A wait or a hold that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct DurationBody {
    /// When the server noticed its end: RFC 3339.
    pub at: String,
    /// How long it was, in the sample before its end.
    pub ms: u64,
}
