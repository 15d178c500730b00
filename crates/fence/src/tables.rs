//! Types and helpers that the fences of the databases share.

use leasehold_core::FencingToken;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
use leasehold_core::{Error, ErrorKind, Resource};

/// A table that is fenced for every client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fenced {
    /// The name of the table; in PostgreSQL with its schema, quoted where necessary.
    pub table: String,
    /// The template for the resource of a row.
    pub template: String,
    /// Whether every write fires the triggers. It is false if triggers are disabled in PostgreSQL, also on one partition only;
    /// if one of the three triggers in SQLite was dropped; or if a trigger of your own is not for all kinds of writes.
    pub active: bool,
    /// The tables, among the table and its partitions, that TRUNCATE can empty: partitions in PostgreSQL that were added after
    /// the fence. Install the fence again to cover them.
    pub truncatable: Vec<String>,
}

/// A request to move the mark of a resource to the numbers of another backend. See [`rebase`](crate::rule::rebase).
#[derive(Clone, Debug)]
pub struct Rebase {
    /// The new mark: the highest token that the new backend has issued, or 1.
    pub to: FencingToken,
    /// Tokens from this one on are refused, as tokens of the former backend. Half-way between the marks by default.
    pub ceiling: Option<FencingToken>,
    /// The operator.
    pub by: String,
    /// The reason.
    pub why: String,
}

/// The audit record of a rebase.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebased {
    /// The time, in RFC 3339.
    pub at: String,
    /// The operator.
    pub by: String,
    /// The reason.
    pub why: String,
    /// The mark before.
    pub was: u64,
    /// The mark after.
    pub now: u64,
    /// The ceiling: tokens from this one on are refused. `None` if the mark was moved up.
    pub ceiling: Option<u64>,
}

/// The error for a resource without a mark.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
pub(crate) fn no_mark(resource: &Resource) -> Error {
    Error::new(ErrorKind::Invalid, "the fence has no mark for it: there is nothing to move").on(resource)
}

/// Reads a mark from the columns of its table.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn mark_of(
    token: i64,
    owner: Option<&str>,
    ceiling: Option<i64>,
) -> leasehold_core::Result<crate::rule::Mark> {
    let corrupt = |_| {
        let message = format!(
            "corrupt mark in the table of the fence: expected tokens from 1 to 2^53 - 1, found token {token} and \
             ceiling {ceiling:?}"
        );
        Error::new(ErrorKind::Corrupt, message)
    };
    Ok(crate::rule::Mark {
        highest: FencingToken::try_from(token).map_err(corrupt)?,
        // For a pass without an owner, the column holds an id of the transaction instead of a hash.
        owner: owner.and_then(|owner| owner.parse().ok()),
        ceiling: ceiling.map(FencingToken::try_from).transpose().map_err(corrupt)?,
    })
}

/// A name as a quoted identifier of SQL.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A script with its placeholders replaced. The values are not searched for placeholders: a column may be called `{table}`.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn filled(script: &str, placeholders: &[(&str, &str)]) -> String {
    let (mut filled, mut rest) = (String::with_capacity(script.len()), script);
    let next = |rest: &str| {
        let found = placeholders.iter().filter_map(|entry| rest.find(entry.0).map(|at| (at, *entry)));
        found.min_by_key(|(at, _)| *at)
    };
    while let Some((at, (placeholder, value))) = next(rest) {
        filled.push_str(&rest[..at]);
        filled.push_str(value);
        rest = &rest[at + placeholder.len()..];
    }
    filled + rest
}

#[cfg(all(test, any(feature = "sqlite", feature = "postgres")))]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_searched_for_placeholders() {
        let placeholders = [("{a}", "{b}"), ("{b}", "{a}{b}")];
        assert_eq!(filled("x{a}y{b}z{a}{c}", &placeholders), "x{b}y{a}{b}z{b}{c}");
    }
}
