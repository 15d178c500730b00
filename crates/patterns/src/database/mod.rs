//! Means of PostgreSQL itself, for work in one database. Often they are all that is needed.
//!
//! | you want | use | what it lacks |
//! |---|---|---|
//! | to change a row that others seldom change | [`Versioned::update`]: read, change, write if it is unchanged | waiting: it only tries a few times |
//! | to change a row that others often change | [`Table::lock_row`] in a transaction | waiting: it returns "busy" at once |
//! | one at a time, for the length of a transaction | [`advisory::try_transaction`] | a row that shows the holder; a token |
//! | one at a time, for the length of a session | [`advisory::try_session`] | a ttl, a token, and a session of your own behind a pool |
//!
//! None of them has a ttl: a program that hangs keeps its lock. For work that lasts longer than a
//! transaction, or changes anything outside of the database, take a lease.

pub mod advisory;
mod row_lock;
mod versioned;

use leasehold::{Effect, Error, ErrorKind, Result};
use tokio_postgres::types::WrongType;

pub use self::{
    row_lock::RowLock,
    versioned::{NewValues, Versioned},
};

/// The most bytes of a name. PostgreSQL cuts longer names, which could then be the name of another table.
const NAME_MAX: usize = 63;

/// The name of a table. It is quoted, so it may contain any character but NUL.
///
/// ```
/// use leasehold_patterns::database::Table;
///
/// let table = Table::new("accounts")?.in_schema("shop")?;
/// assert!(Table::new("").is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Table {
    pub(crate) quoted: String,
}

impl Table {
    /// A table in the search path.
    ///
    /// # Errors
    /// `Invalid` if it cannot be the name of a table.
    pub fn new(name: &str) -> Result<Table> {
        Ok(Table { quoted: quote(name)? })
    }

    /// The table of this name in a schema, instead of the search path.
    ///
    /// # Errors
    /// `Invalid` if it cannot be the name of a schema.
    pub fn in_schema(self, schema: &str) -> Result<Table> {
        Ok(Table { quoted: format!("{}.{}", quote(schema)?, self.quoted) })
    }
}

/// A name, quoted for a statement.
fn quote(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
        let message =
            format!("a name in PostgreSQL has 1 to {NAME_MAX} bytes, without NUL: {name:.70?} is not one");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// The SQLSTATE for a missing permission.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// The error of leasehold for an error of the database. It keeps the message, because a statement of the
/// caller failed.
fn interpret(error: tokio_postgres::Error) -> Error {
    let cause = std::error::Error::source(&error);
    if let Some(wrong) = cause.and_then(|cause| cause.downcast_ref::<WrongType>()) {
        // The driver compares the types before it sends the statement.
        let message = format!("a parameter has another type than its column: {wrong}");
        return Error::new(ErrorKind::Invalid, message).because(error);
    }
    let Some(refusal) = error.as_db_error() else {
        let message = "the connection to PostgreSQL was lost before the reply";
        return Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown).because(error);
    };
    // The classes of SQLSTATE: syntax or access rule, data, constraint, schema name.
    let kind = match &refusal.code().code()[..2] {
        "42" | "22" | "23" | "3F" => ErrorKind::Invalid,
        "28" => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    let kind = if refusal.code().code() == INSUFFICIENT_PRIVILEGE { ErrorKind::Denied } else { kind };
    Error::new(kind, format!("{} ({})", refusal.message(), refusal.code().code())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_whatever_they_contain() {
        assert_eq!(quote("accounts").unwrap(), "\"accounts\"");
        assert_eq!(quote("a\"; DROP TABLE b; --").unwrap(), "\"a\"\"; DROP TABLE b; --\"");
        assert_eq!(Table::new("t").unwrap().in_schema("s").unwrap().quoted, "\"s\".\"t\"");
        for bad in ["", "a\0b", &"x".repeat(64)] {
            assert_eq!(quote(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }
}
