//! The request ids of this process: the last parameter of a statement, and the last column of each row of its reply.
//! ADR 0033.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::LazyLock,
};

use leasehold_core::{RequestId, RequestIds};

/// The next request id.
pub(super) fn next() -> RequestId {
    // There is no engine here, so the start comes from the random state of the standard library.
    static IDS: LazyLock<RequestIds> =
        LazyLock::new(|| RequestIds::starting_at(RandomState::new().hash_one("request")));
    IDS.next()
}
