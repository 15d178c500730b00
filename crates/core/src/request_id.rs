//! Request ids: how an answer proves which request it belongs to.
//!
//! A pool or a proxy between a client and its server can deliver an answer to the wrong client, or an old answer a second
//! time. A driver that matches answers to requests by their order alone cannot see that, and would take another client's
//! grant for its own. So every request to such a server carries an id, the server returns the id with the answer, and the
//! client compares the two before it reads anything else. ADR 0033.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::error::{Effect, Error, ErrorKind, Result};

/// The id of one request. The server returns it with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// The number, for protocols that carry numbers. It uses all 64 bits.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Compares with the id that came with an answer.
    ///
    /// # Errors
    /// `Unavailable` with effect `Unknown` if they differ: the answer belongs to another request, and what became of this one
    /// is not known. The caller must close the connection, because every later answer on it may be the wrong one too.
    pub fn check(self, answered: RequestId, server: &dyn fmt::Display) -> Result<()> {
        if self == answered { Ok(()) } else { Err(Error::misdelivered(server)) }
    }

    /// The same for an id that came as text; see [`Display`](fmt::Display).
    ///
    /// # Errors
    /// As [`RequestId::check`].
    pub fn check_text(self, answered: &[u8], server: &dyn fmt::Display) -> Result<()> {
        let answered = std::str::from_utf8(answered).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        answered.map_or_else(
            || Err(Error::misdelivered(server)),
            |answered| self.check(RequestId(answered), server),
        )
    }
}

impl Error {
    /// An answer from this server did not name the request that it was taken for. `Unavailable`, and the effect is
    /// `Unknown`: what became of the request is not known. The connection must be closed.
    pub fn misdelivered(server: &dyn fmt::Display) -> Error {
        let message = format!(
            "the answer from {server} belongs to another request, so the connection was closed; \
             a pool or proxy on the way mixes up answers"
        );
        Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
    }
}

impl From<u64> for RequestId {
    fn from(number: u64) -> RequestId {
        RequestId(number)
    }
}

impl fmt::Display for RequestId {
    /// Hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Gives out request ids. Each client of a server has one.
///
/// The ids count up from a random start, so that they differ within a client for ever, and between clients with a
/// probability that leaves nothing to worry about.
#[derive(Debug)]
pub struct RequestIds(AtomicU64);

impl RequestIds {
    /// Counts from `start`, which must be random.
    pub const fn starting_at(start: u64) -> RequestIds {
        RequestIds(AtomicU64::new(start))
    }

    /// A new id.
    pub fn next(&self) -> RequestId {
        RequestId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_only_the_same_id_passes() {
        let ids = RequestIds::starting_at(u64::MAX);
        let (first, second) = (ids.next(), ids.next());
        assert_ne!(first, second);
        assert!(first.check(RequestId::from(first.get()), &"redis").is_ok());
        assert!(first.check_text(first.to_string().as_bytes(), &"redis").is_ok());
        for wrong in [second.to_string().into_bytes(), b"".to_vec(), b"granted".to_vec(), vec![0xff; 16]] {
            let error = first.check_text(&wrong, &"redis").expect_err("another id");
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        }
    }
}
