//! Idempotency keys: a request that is repeated is answered as the first time.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! # let directory = tempfile::tempdir().unwrap(); let path = directory.path().join("keys.db");
//! use leasehold_patterns::idempotency::{Begun, Fingerprint, Keys, SqliteKeys, Terms};
//!
//! let keys = SqliteKeys::open(&path).await?;
//! let (payload, terms) = (Fingerprint::of([&b"pay 10"[..]]), Terms::default());
//! let Begun::Run(run) = keys.begin("customer-7/8e03978e", &payload, &terms).await? else { panic!("it is new") };
//! // … charge the card …
//! assert!(keys.finish(&run, b"charged", &terms).await?, "false: another one took it over meanwhile");
//! // The client repeats its request:
//! let Begun::Done(answer) = keys.begin("customer-7/8e03978e", &payload, &terms).await? else { panic!("it is done") };
//! assert_eq!(answer, b"charged");
//! # Ok(()) }
//! ```
//!
//! `IdempotencyLayer` is the same before the handlers of an HTTP service, as the IETF draft *The Idempotency-Key HTTP Header
//! Field* has it.
//!
//! # What it promises
//!
//! - Of all requests with a key, one runs. While it runs, the others are told so; when it has ended, they get its answer.
//! - A key that comes with another payload is refused: it is a mistake of the client, or somebody guesses keys.
//! - A request of which nothing was heard for [`Terms::hold`], because its process died, is taken over by the next one with
//!   its key. That is fenced: if the first one is not dead but late, its answer is not stored, and it is told.
//! - Answers are kept for [`Terms::keep`], and then forgotten: a request that comes later is a new one.
//!
//! What it cannot promise is that the *effect* of a request that was taken over happened once: the first one may have got as
//! far as the effect. Put the effect and the key into one transaction, or give the effect a key of its own.
//!
//! # When not to use it
//!
//! - The request is a change that can be repeated: `PUT` the state, `DELETE` the thing.
//! - The effect has a natural key in your own database: a unique constraint there says the same, with less.

#[cfg(feature = "http")]
mod answer;
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

/// Where keys are kept.
#[async_trait]
pub trait Keys: fmt::Debug + Send + Sync {
    /// A request with this key and payload has come: what to do about it.
    async fn begin(&self, key: &str, payload: &Fingerprint, terms: &Terms) -> Result<Begun>;

    /// It still runs: nobody takes it over for another [`Terms::hold`]. False: somebody has.
    async fn renew(&self, run: &Run, terms: &Terms) -> Result<bool>;

    /// It has ended, with this answer. False: another one took it over, and nothing is stored.
    async fn finish(&self, run: &Run, answer: &[u8], terms: &Terms) -> Result<bool>;

    /// It had no effect: the next one with this key runs as if it were the first. False as above.
    async fn abandon(&self, run: &Run) -> Result<bool>;
}

/// How long keys are good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Terms {
    /// How long nothing may be heard of a request before another one with its key takes it over. `IdempotencyLayer`
    /// renews it while the handler runs; whoever has no layer calls [`Keys::renew`], or takes longer than the request can.
    pub hold: Duration,
    /// How long an answer is kept.
    pub keep: Duration,
}

impl Default for Terms {
    /// A minute without news, and a day to be kept.
    fn default() -> Terms {
        Terms { hold: Duration::from_secs(60), keep: Duration::from_secs(86_400) }
    }
}

impl Terms {
    /// How long nothing may be heard of a request before another one takes it over. Default: a minute.
    #[must_use]
    pub fn hold(self, hold: Duration) -> Terms {
        Terms { hold, ..self }
    }

    /// How long an answer is kept. Default: a day.
    #[must_use]
    pub fn keep(self, keep: Duration) -> Terms {
        Terms { keep, ..self }
    }
}

/// What to do about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Begun {
    /// Carry it out.
    Run(Run),
    /// Somebody does; ask again after this long at the latest.
    Running {
        /// Until it may be taken over.
        again_in: Duration,
    },
    /// It was carried out, with this answer.
    Done(Vec<u8>),
    /// The key was used for something else.
    OtherPayload,
}

/// A request that is yours to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The key.
    pub key: String,
    /// Grows with every take-over: for what the request writes.
    pub token: FencingToken,
}

/// What a request was, as far as it must be known to tell it from another: a hash, never the request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of the parts of a request, in order: its method, its path, its body.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Fingerprint {
        let mut hash = Sha256::new();
        for part in parts {
            // The length first: no part can pose as the end of another.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        Fingerprint(hash.finalize().into())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// Bytes of an answer.
const ANSWER_MAX: usize = 1 << 20;
/// Bytes of a key, with what stands before it.
const KEY_MAX: usize = 1024;

fn check_key(key: &str) -> Result<()> {
    if key.is_empty() || key.len() > KEY_MAX || key.contains('\0') {
        let message = format!("an idempotency key has 1 to {KEY_MAX} bytes, without NUL");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

fn check_answer(answer: &[u8]) -> Result<()> {
    if answer.len() > ANSWER_MAX {
        let message = format!("an answer has at most {ANSWER_MAX} bytes, this one has {}", answer.len());
        return Err(Error::new(ErrorKind::Limit, message));
    }
    Ok(())
}

/// What a row says, and how long ago its time was over.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
struct Seen {
    payload: Vec<u8>,
    answer: Option<Vec<u8>>,
    left: Duration,
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl Seen {
    /// What to do about a request that did not get the row.
    fn judge(self, payload: &Fingerprint) -> Begun {
        match self.answer {
            _ if self.payload != payload.as_bytes() => Begun::OtherPayload,
            Some(answer) => Begun::Done(answer),
            None => Begun::Running { again_in: self.left },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart() {
        let of = |parts: &[&str]| Fingerprint::of(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["POST", "/a"]), of(&["POST", "/a"]));
        for other in [&["POST/", "a"][..], &["POST", "/a", ""], &["POST"], &[]] {
            assert_ne!(of(&["POST", "/a"]), of(other));
        }
    }
}
