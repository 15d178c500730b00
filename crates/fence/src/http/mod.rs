//! The fence for HTTP requests: a tower layer that checks them before the handler, and the headers that a client sends.
//! ADR 0028.
//!
//! | header | value | |
//! |---|---|---|
//! | `Fencing-Token` | the token, in decimal digits | required for every request that changes something |
//! | `Fencing-Owner` | the hash of the owner, 32 lower-case hex digits | without it each token is admitted once |
//! | `Fencing-Resource` | the key of the resource, percent-encoded | optional; must be the resource that the request is for |
//!
//! | status | when |
//! |---|---|
//! | 412 Precondition Failed | the token is stale: another client was granted the resource since. Do not retry with this token |
//! | 428 Precondition Required | the request has no token |
//! | 400 Bad Request | a header is malformed, repeated or for another resource; or the request is for no valid resource |
//! | 503 Service Unavailable | the marks cannot be read: every request with a token is refused |
//!
//! The body is a problem (`application/problem+json`) that says what is wrong. A request that changes nothing (GET, HEAD,
//! OPTIONS, TRACE) needs no token. If it has one, the token is checked all the same and raises the mark: a client does so
//! before the first read of a read-modify-write.

mod headers;
mod layer;
mod marks;
mod problem;
mod resource_locks;

pub use headers::{FENCING_OWNER, FENCING_RESOURCE, FENCING_TOKEN, show};
pub use layer::{FenceLayer, Fenced};
#[cfg(feature = "postgres")]
pub use marks::PostgresMarks;
#[cfg(feature = "sqlite")]
pub use marks::SqliteMarks;
pub use marks::{Marks, Verdict};

/// The name of this downstream in metrics and logs.
pub const DOWNSTREAM: &str = "http";

/// Decodes a percent-encoded part of a path, as a router does: `%37` becomes `7`.
///
/// ```
/// assert_eq!(leasehold_fence::http::percent_decode("a%2Fb")?, "a/b");
/// # Ok::<(), leasehold_core::Error>(())
/// ```
///
/// # Errors
/// `Invalid` if a `%` is not followed by two hex digits, a byte is zero, or the result is not UTF-8.
pub fn percent_decode(text: &str) -> leasehold_core::Result<String> {
    leasehold_support::url::decode(text)
}
