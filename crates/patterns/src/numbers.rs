//! Conversion of numbers from and to the stores.

use std::time::Duration;

use leasehold::{FencingToken, Result};

/// A fencing token as a store returns it.
pub(crate) fn read_token(number: i64) -> Result<FencingToken> {
    FencingToken::new(u64::try_from(number).unwrap_or(0))
}

/// Whole milliseconds, limited so that adding them to a time cannot overflow.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}
