//! Idempotency keys: a repeated request gets the response of the first one, and is not carried out again.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! # let directory = tempfile::tempdir().unwrap(); let path = directory.path().join("keys.db");
//! use leasehold_patterns::idempotency::{BeginOutcome, Fingerprint, KeyLifetimes, Keys, SqliteKeys};
//!
//! let keys = SqliteKeys::open(&path).await?;
//! let (payload, lifetimes) = (Fingerprint::of([&b"pay 10"[..]]), KeyLifetimes::default());
//! let outcome = keys.begin("customer-7/8e03978e", &payload, &lifetimes).await?;
//! let BeginOutcome::Claimed(claim) = outcome else { panic!("the key is new") };
//! // … charge the card …
//! assert!(keys.finish(&claim, b"charged", &lifetimes).await?, "false: another request took the key over");
//! // The client repeats its request:
//! let outcome = keys.begin("customer-7/8e03978e", &payload, &lifetimes).await?;
//! let BeginOutcome::Done(response) = outcome else { panic!("the request is done") };
//! assert_eq!(response, b"charged");
//! # Ok(()) }
//! ```
//!
//! `IdempotencyLayer` does the same for the handlers of an HTTP service, as described in the IETF draft *The
//! Idempotency-Key HTTP Header Field*.
//!
//! # Guarantees
//!
//! - Of all requests with a key, one runs. While it runs, the others get `Running`. When it has ended, they
//!   get its response.
//! - A key with another payload is refused: it is a mistake of the client, or someone guesses keys.
//! - If a request was not renewed for [`KeyLifetimes::hold`], because its process died, the next request with
//!   its key takes it over. That is fenced: if the first one is only late, its response is not stored, and
//!   `finish` returns false.
//! - Responses are stored for [`KeyLifetimes::keep`]. A request that comes later is a new one.
//!
//! It cannot guarantee that the *effect* of a request that was taken over happened only once: the first
//! request may have caused it before it died. Put the effect and the key into one transaction, or give the
//! effect a key of its own.
//!
//! # When not to use it
//!
//! - The request can be repeated without harm: `PUT` a state, `DELETE` a thing.
//! - The effect has a natural key in your own database: a unique constraint does the same with less.

#[cfg(feature = "http")]
mod header;
#[cfg(feature = "http")]
mod layer;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "http")]
mod stored_response;

use std::{fmt, time::Duration};

use leasehold::{Error, ErrorKind, FencingToken, Result, async_trait};
use sha2::{Digest as _, Sha256};

#[cfg(feature = "http")]
pub use self::layer::{IdempotencyLayer, Idempotent, REPLAYED};
#[cfg(feature = "postgres")]
pub use self::postgres::PostgresKeys;
#[cfg(feature = "redis")]
pub use self::redis::RedisKeys;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteKeys;

/// A store of idempotency keys.
#[async_trait]
pub trait Keys: fmt::Debug + Send + Sync {
    /// Claims the key for a request with this payload, and says what to do with the request.
    async fn begin(&self, key: &str, payload: &Fingerprint, lifetimes: &KeyLifetimes)
    -> Result<BeginOutcome>;

    /// Extends the claim by [`KeyLifetimes::hold`] from now, because the request still runs. False if another
    /// request has taken the key over.
    async fn renew(&self, claim: &KeyClaim, lifetimes: &KeyLifetimes) -> Result<bool>;

    /// Stores the response of the request. False if another request has taken the key over: then nothing is
    /// stored.
    async fn finish(&self, claim: &KeyClaim, response: &[u8], lifetimes: &KeyLifetimes) -> Result<bool>;

    /// Gives up the claim, because the request had no effect: the next request with this key runs. False as
    /// for [`finish`](Keys::finish).
    async fn abandon(&self, claim: &KeyClaim) -> Result<bool>;
}

/// How long a claim and a response last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyLifetimes {
    /// How long a claim lasts without [`Keys::renew`]. After that, another request with the key takes it
    /// over. `IdempotencyLayer` renews the claim while the handler runs. Without the layer, call
    /// [`Keys::renew`] yourself, or choose a time that is longer than the request can take.
    pub hold: Duration,
    /// How long a response is stored.
    pub keep: Duration,
}

impl Default for KeyLifetimes {
    /// A claim lasts a minute, a response is stored for a day.
    fn default() -> KeyLifetimes {
        KeyLifetimes { hold: Duration::from_secs(60), keep: Duration::from_secs(86_400) }
    }
}

impl KeyLifetimes {
    /// How long a claim lasts without being renewed. Default: a minute.
    #[must_use]
    pub fn hold(self, hold: Duration) -> KeyLifetimes {
        KeyLifetimes { hold, ..self }
    }

    /// How long a response is stored. Default: a day.
    #[must_use]
    pub fn keep(self, keep: Duration) -> KeyLifetimes {
        KeyLifetimes { keep, ..self }
    }
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BeginOutcome {
    /// Carry the request out: its key is claimed.
    Claimed(KeyClaim),
    /// The first request with this key still runs.
    Running {
        /// How long until its claim runs out and can be taken over.
        retry_in: Duration,
    },
    /// The request was carried out, with this response.
    Done(Vec<u8>),
    /// The key was used for a request with another payload.
    OtherPayload,
}

/// The right to carry out the request of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyClaim {
    /// The key.
    pub key: String,
    /// The fencing token. It grows each time the key is claimed. Pass it to what the request writes.
    pub token: FencingToken,
}

/// A hash of a request, to tell it from another one. The request itself is not stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of the parts of a request, in order: its method, its path, its body.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Fingerprint {
        let mut hash = Sha256::new();
        for part in parts {
            // The length comes first, so that ["ab", "c"] and ["a", "bc"] differ.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        Fingerprint(hash.finalize().into())
    }

    /// The bytes of the hash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// The most bytes of a response.
const RESPONSE_MAX: usize = 1 << 20;
/// The most bytes of a key, with its scope.
const KEY_MAX: usize = 1024;

fn check_key(key: &str) -> Result<()> {
    if key.is_empty() || key.len() > KEY_MAX || key.contains('\0') {
        let message = format!(
            "an idempotency key with its scope has 1 to {KEY_MAX} bytes, without NUL; this one has {}",
            key.len()
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

fn check_response(response: &[u8]) -> Result<()> {
    if response.len() > RESPONSE_MAX {
        let message = format!("a response has at most {RESPONSE_MAX} bytes, this one has {}", response.len());
        return Err(Error::new(ErrorKind::Limit, message));
    }
    Ok(())
}

/// The row of a key that this request could not claim.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
struct KeyRow {
    payload: Vec<u8>,
    response: Option<Vec<u8>>,
    /// How long until the claim of the row runs out.
    left: Duration,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl KeyRow {
    /// What to do with the request.
    fn outcome_for(self, payload: &Fingerprint) -> BeginOutcome {
        match self.response {
            _ if self.payload != payload.as_bytes() => BeginOutcome::OtherPayload,
            Some(response) => BeginOutcome::Done(response),
            None => BeginOutcome::Running { retry_in: self.left },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundaries_of_parts_matter() {
        let of = |parts: &[&str]| Fingerprint::of(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["POST", "/a"]), of(&["POST", "/a"]));
        for other in [&["POST/", "a"][..], &["POST", "/a", ""], &["POST"], &[]] {
            assert_ne!(of(&["POST", "/a"]), of(other));
        }
    }
}
