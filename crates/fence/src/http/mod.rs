//! Requests: a layer that checks them before the handler, and the headers that a client sends.
//!
//! | header | holds | |
//! |---|---|---|
//! | `Fencing-Token` | the token, in decimal digits | required of every request that changes something |
//! | `Fencing-Owner` | the hash of the owner, 32 lower-case hex digits | without it each token is taken once |
//! | `Fencing-Resource` | the resource, as its key is encoded | if it is there, it must be the one that the request is for |
//!
//! | answer | when |
//! |---|---|
//! | 412 Precondition Failed | the token is stale: someone else was granted since. Never to be retried with this token |
//! | 428 Precondition Required | there is no token |
//! | 400 Bad Request | a header is malformed, or there twice, or is for another resource; or the request names none |
//! | 503 Service Unavailable | the marks cannot be read: nothing passes |
//!
//! The body is a problem (`application/problem+json`) that says what is wrong. A request that changes nothing (GET, HEAD,
//! OPTIONS, TRACE) needs no token. With one it is checked all the same, and raises the mark: that is how a client enters
//! before the first read of a read-modify-write.

mod headers;
mod layer;
mod marks;
mod problem;
mod turns;

pub use headers::{FENCING_OWNER, FENCING_RESOURCE, FENCING_TOKEN, show};
pub use layer::{FenceLayer, Fenced};
#[cfg(feature = "postgres")]
pub use marks::PostgresMarks;
#[cfg(feature = "sqlite")]
pub use marks::SqliteMarks;
pub use marks::{Marks, Verdict};

/// As it stands in metrics and logs.
pub const DOWNSTREAM: &str = "http";
