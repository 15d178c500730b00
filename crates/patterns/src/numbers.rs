//! Numbers as stores have them.

use std::time::Duration;

use leasehold::{FencingToken, Result};

/// The token that a store has minted.
pub(crate) fn token(number: i64) -> Result<FencingToken> {
    FencingToken::new(u64::try_from(number).unwrap_or(0))
}

/// Whole milliseconds, few enough to be added to a time.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}
