//! What the databases share.

use leasehold_core::FencingToken;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
use leasehold_core::{Error, ErrorKind, Resource};

/// A table that is fenced for every client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fenced {
    /// Its name; in PostgreSQL with its schema, quoted where it has to be.
    pub table: String,
    /// How the resource of a row is named.
    pub template: String,
    /// Whether every write fires them: PostgreSQL can switch them off, on one partition too, one of SQLite's may have been
    /// dropped, and one of your own may be for inserts alone.
    pub active: bool,
    /// Of the table and its partitions, those that TRUNCATE empties without being refused: partitions of PostgreSQL that came
    /// after the fence. Installed again, it covers them.
    pub truncatable: Vec<String>,
}

/// A resource moves to a backend that counts elsewhere: to what, by whom, and why. See [`rebase`](crate::rule::rebase).
#[derive(Clone, Debug)]
pub struct Rebase {
    /// The new mark: the highest token that the new backend has given out, or 1.
    pub to: FencingToken,
    /// From here on, tokens are the former backend's. Half-way unless it is said.
    pub ceiling: Option<FencingToken>,
    /// By whom.
    pub by: String,
    /// Why.
    pub why: String,
}

/// A rebase that was done, as the audit has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebased {
    /// When, as RFC 3339 has it.
    pub at: String,
    /// By whom.
    pub by: String,
    /// Why.
    pub why: String,
    /// The mark before.
    pub was: u64,
    /// The mark after.
    pub now: u64,
    /// From where on tokens are refused, if it went down.
    pub ceiling: Option<u64>,
}

/// Nothing is remembered of it.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
pub(crate) fn unmarked(resource: &Resource) -> Error {
    Error::new(ErrorKind::Invalid, "the fence has seen no token of it: there is nothing to move").on(resource)
}

/// A stored mark.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn mark_of(
    token: i64,
    owner: Option<&str>,
    ceiling: Option<i64>,
) -> leasehold_core::Result<crate::rule::Mark> {
    let corrupt = |_| Error::new(ErrorKind::Corrupt, "a mark of the fence is no token");
    Ok(crate::rule::Mark {
        highest: FencingToken::try_from(token).map_err(corrupt)?,
        // A transaction that showed no owner stands in for one: it is nobody's hash.
        owner: owner.and_then(|owner| owner.parse().ok()),
        ceiling: ceiling.map(FencingToken::try_from).transpose().map_err(corrupt)?,
    })
}

/// An identifier as SQL wants it, taken as it is.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A script with its places filled in. What is put in is not looked at again: a column may be called `table`.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn filled(script: &str, places: &[(&str, &str)]) -> String {
    let (mut filled, mut rest) = (String::with_capacity(script.len()), script);
    let next = |rest: &str| {
        let found = places.iter().filter_map(|place| rest.find(place.0).map(|at| (at, *place)));
        found.min_by_key(|(at, _)| *at)
    };
    while let Some((at, (place, text))) = next(rest) {
        filled.push_str(&rest[..at]);
        filled.push_str(text);
        rest = &rest[at + place.len()..];
    }
    filled + rest
}

#[cfg(all(test, any(feature = "sqlite", feature = "postgres")))]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_not_looked_at_again() {
        let places = [("{a}", "{b}"), ("{b}", "{a}{b}")];
        assert_eq!(filled("x{a}y{b}z{a}{c}", &places), "x{b}y{a}{b}z{b}{c}");
    }
}
