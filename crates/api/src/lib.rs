//! The HTTP API of leasehold: its requests, replies and problem documents.
//!
//! The API is the contract of [`Backend`](leasehold_core::Backend) in JSON. Both directions are here: what a server reads and
//! writes, and what a client writes and reads. So the two cannot differ.
//!
//! | module | what it holds |
//! |---|---|
//! | [`acquire`], [`renew`], [`release`], [`wait`], [`orders`] | the request, the reply, and their conversions, of one `POST` route each |
//! | [`inspect`] | the `GET` routes: resource, resources, audit, leaks |
//! | [`overview`], [`events`], [`timeline`] | what a server has sampled, and the changes that it saw |
//! | [`deadlocks`], [`jobs`], [`store`] | processes that wait for each other; schedules and elections; the health of the store |
//! | [`login`] | the token of a person, kept by their browser |
//! | [`info`] | what the server and its store are and promise |
//! | [`terraform`] | locks of Terraform and OpenTofu |
//! | [`problem`] | every refusal, as an RFC 9457 document |
//! | [`list`] | one request or many in one body, and one outcome for each |
//! | `openapi` | the OpenAPI document, made from these types, with the feature `openapi` |
//! | [`fields`] | how resources, owners, tokens, notes, cursors and durations are written |
//!
//! Rules of the form:
//!
//! - Times are durations, in whole milliseconds, in fields that end in `_ms`. What remains is rounded down, what to wait for is
//!   rounded up.
//! - Tokens are decimal strings. Owner tokens are 32 hex digits, and stand in requests only: a reply has the hash.
//! - A resource is written as people do (`resource`), or as its key (`key`): one whose id is hashed has only the latter.
//! - A request with an unknown field is refused. A reader of replies ignores fields that it does not know.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use leasehold_api::{acquire, fields::StoreId};
//! use leasehold_core::{Claim, FencingToken, Grant, Holder, OwnerToken, Resource, Share, Verdict};
//!
//! // The client writes a claim, the server reads it.
//! let (owner, holder) = (OwnerToken::from_bytes([7; 16]), Arc::new(Holder::new("host", 1, "")));
//! let claim = Claim::new(Resource::new("report", "42")?, owner, Share::WHOLE, Duration::from_secs(30), holder);
//! let body = serde_json::to_vec(&acquire::ClaimBody::from(&claim)).unwrap();
//! let read = acquire::ClaimBody::read(&body).unwrap().into_one().unwrap().claim()?;
//! assert_eq!(read.reference(), claim.reference());
//!
//! // The server writes the verdict, the client reads it.
//! let store = StoreId::of("sqlite:/var/lib/leases.db");
//! let verdict = Ok(Verdict::Granted(Grant::new(FencingToken::new(34)?, Duration::from_secs(30))));
//! let entry = acquire::reply(&read, verdict, Duration::ZERO, &store);
//! assert_eq!(entry.status(), 200);
//! assert!(matches!(acquire::outcome(&claim, entry)?, Verdict::Granted(_)));
//! # Ok::<(), leasehold_core::Error>(())
//! ```

pub mod acquire;
pub mod deadlocks;
pub mod events;
pub mod fields;
pub mod info;
pub mod inspect;
pub mod jobs;
pub mod list;
pub mod login;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod orders;
pub mod overview;
pub mod problem;
pub mod release;
pub mod renew;
pub mod store;
pub mod terraform;
pub mod timeline;
pub mod wait;

pub use problem::{Problem, ProblemKind};

/// The version of the API, as the header [`API_HEADER`] has it.
pub const VERSION: &str = "1.0";
/// The header with the version of the API.
pub const API_HEADER: &str = "leasehold-api";
/// The header with the [id of the store](fields::StoreId). A client remembers the one of its first answer.
pub const STORE_HEADER: &str = "leasehold-store";
/// The header with the guarantee of the store.
pub const LEVEL_HEADER: &str = "leasehold-level";
/// The header with an id of the request, chosen by the client. The server repeats it in the answer, so that a client notices an
/// answer to another request: a proxy may mix them up.
pub const REQUEST_HEADER: &str = "leasehold-request";
/// The longest id of a request, in bytes. A longer one is not repeated.
pub const REQUEST_ID_MAX: usize = 64;
/// The header that a server adds to every answer while it drains.
pub const DRAINING_HEADER: &str = "leasehold-draining";
/// The content type of requests and replies.
pub const JSON: &str = "application/json";
/// The content type of refusals.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The OpenAPI 3.1 document of this API, as `GET /openapi.json` gives it. `cargo xtask openapi` writes it.
pub const OPENAPI: &[u8] = include_bytes!("../openapi.json");

/// The paths of the routes. A new one also needs a description: `openapi/operations.rs`.
pub mod routes {
    /// `POST`: [`acquire`](crate::acquire)
    pub const ACQUIRE: &str = "/v1/acquire";
    /// `POST`: [`renew`](crate::renew)
    pub const RENEW: &str = "/v1/renew";
    /// `POST`: [`release`](crate::release)
    pub const RELEASE: &str = "/v1/release";
    /// `POST`: [`wait`](crate::wait)
    pub const WAIT: &str = "/v1/wait";
    /// `GET`: [`ResourceQuery`](crate::inspect::ResourceQuery)
    pub const RESOURCE: &str = "/v1/resource";
    /// `GET`: [`ResourcesQuery`](crate::inspect::ResourcesQuery)
    pub const RESOURCES: &str = "/v1/resources";
    /// `GET`: [`AuditQuery`](crate::inspect::AuditQuery)
    pub const AUDIT: &str = "/v1/audit";
    /// `GET`: [`LeaksQuery`](crate::inspect::LeaksQuery)
    pub const LEAKS: &str = "/v1/leaks";
    /// `POST`: [`orders`](crate::orders)
    pub const ORDERS: &str = "/v1/orders";
    /// `GET`: [`info`](crate::info)
    pub const INFO: &str = "/v1/info";
    /// `GET`: [`overview`](crate::overview)
    pub const OVERVIEW: &str = "/v1/overview";
    /// `GET`: [`events`](crate::events)
    pub const EVENTS: &str = "/v1/events";
    /// `GET`: [`timeline`](crate::timeline)
    pub const TIMELINE: &str = "/v1/timeline";
    /// `GET`: [`deadlocks`](crate::deadlocks)
    pub const DEADLOCKS: &str = "/v1/deadlocks";
    /// `GET`: [`jobs`](crate::jobs)
    pub const JOBS: &str = "/v1/jobs";
    /// `GET`: [`store`](crate::store)
    pub const STORE: &str = "/v1/store";
    /// `POST`: [`login`](crate::login)
    pub const LOGIN: &str = "/v1/login";
    /// `POST`: [`login`](crate::login)
    pub const LOGOUT: &str = "/v1/logout";
    /// `LOCK` or `POST`, `UNLOCK` or `DELETE`: [`terraform`](crate::terraform)
    pub const TERRAFORM: &str = "/v1/terraform";
    /// `GET`: the process is alive.
    pub const HEALTHZ: &str = "/healthz";
    /// `GET`: the server takes new claims.
    pub const READYZ: &str = "/readyz";
    /// `GET`: [`OPENAPI`](crate::OPENAPI)
    pub const OPENAPI: &str = "/openapi.json";
    /// `GET`: metrics, in the text format of Prometheus.
    pub const METRICS: &str = "/metrics";
}

/// Bounds on the numbers of a request. A request beyond them is refused.
pub mod bounds {
    /// The longest `wait_ms`: proxies cut requests that are silent for longer.
    pub const WAIT_MS: u64 = 60_000;
    /// The longest `place_ttl_ms`: where silent waiters are not passed over, a dead one blocks the queue for this long.
    pub const PLACE_TTL_MS: u64 = 120_000;
    /// The longest `bury_ms`: twice the longest ttl of most stores.
    pub const BURY_MS: u64 = 48 * 3_600_000;
    /// The longest `timeout_ms` of a list.
    pub const TIMEOUT_MS: u64 = 60_000;
    /// The most entries of a list.
    pub const ENTRIES: usize = 1000;
    /// The largest body, in bytes.
    pub const BODY: usize = 8 << 20;
    /// How far a `floor` may be ahead of the clock, or of the last token of the resource, in microseconds: an hour.
    pub const FLOOR_LEAD: u64 = 3_600_000_000;
}
