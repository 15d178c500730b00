//! Request ids: the last parameter of a statement, and the last column of each row of its answer. ADR 0033.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::LazyLock,
};

use leasehold_core::{Error, RequestId, RequestIds, Result};
use tokio_postgres::Row;

/// How errors name the other side.
const SERVER: &str = "PostgreSQL";

/// A new id.
pub(super) fn next() -> RequestId {
    // There is no engine here, and so no source of chance but that of the standard library.
    static IDS: LazyLock<RequestIds> =
        LazyLock::new(|| RequestIds::starting_at(RandomState::new().hash_one("request")));
    IDS.next()
}

/// Whether every row carries the id of the request. No row at all proves nothing.
pub(super) fn check(rows: &[Row], request: RequestId) -> Result<()> {
    let id_of = |row: &Row| row.len().checked_sub(1).and_then(|last| row.try_get::<_, i64>(last).ok());
    if rows.is_empty() {
        return Err(Error::misdelivered(&SERVER));
    }
    rows.iter().try_for_each(|row| match id_of(row) {
        Some(id) => request.check(RequestId::from(id.cast_unsigned()), &SERVER),
        None => Err(Error::misdelivered(&SERVER)),
    })
}
