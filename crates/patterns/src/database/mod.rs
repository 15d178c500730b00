//! What PostgreSQL itself offers, for work that lives in one database: often all that is needed.
//!
//! | you want | use | it lacks |
//! |---|---|---|
//! | to change a row that seldom changes under you | [`Versioned::update`]: read, change, write if nobody else wrote | waiting: it tries again, a few times |
//! | to change a row that often does | [`Table::lock_row`] in a transaction | more than one statement's patience: it says "busy" at once |
//! | one at a time, for the length of a transaction | [`advisory::try_transaction`] | a row to look at; a token |
//! | one at a time, for the length of a session | [`advisory::try_session`] | a ttl, a token, and a session of your own behind a pool |
//!
//! None of them knows about time: whoever hangs, holds. For work that outlives a transaction, or touches anything outside
//! of the database, take a lease.

pub mod advisory;
mod row;
mod versioned;

use leasehold::{Effect, Error, ErrorKind, Result};

pub use self::{
    row::Locked,
    versioned::{Change, Versioned},
};

/// The longest name that PostgreSQL keeps; it would cut longer ones, and mean another table.
const NAME_MAX: usize = 63;

/// A table, named by whoever calls: its name is quoted, whatever is in it.
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
    /// A table that is found by the search path.
    ///
    /// # Errors
    /// `Invalid` if it is not the name of a table.
    pub fn new(name: &str) -> Result<Table> {
        Ok(Table { quoted: quote(name)? })
    }

    /// The same table in this schema, replacing the search path.
    ///
    /// # Errors
    /// `Invalid` if it is not the name of a schema.
    pub fn in_schema(self, schema: &str) -> Result<Table> {
        Ok(Table { quoted: format!("{}.{}", quote(schema)?, self.quoted) })
    }
}

/// A name as it stands in a statement, whatever is in it.
fn quote(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
        let message =
            format!("a name in PostgreSQL has 1 to {NAME_MAX} bytes, none of them zero: {name:.70?}");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// What the database says, in the words of leasehold. The caller's own statement failed, so its words are kept.
fn interpret(error: tokio_postgres::Error) -> Error {
    let Some(said) = error.as_db_error() else {
        let message = "the connection to PostgreSQL was lost";
        return Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown).because(error);
    };
    let kind = match &said.code().code()[..2] {
        "42" | "22" | "23" | "3F" => ErrorKind::Invalid,
        "28" => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    let kind = if said.code().code() == "42501" { ErrorKind::Denied } else { kind };
    Error::new(kind, format!("{} ({})", said.message(), said.code().code())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_whatever_is_in_them() {
        assert_eq!(quote("accounts").unwrap(), "\"accounts\"");
        assert_eq!(quote("a\"; DROP TABLE b; --").unwrap(), "\"a\"\"; DROP TABLE b; --\"");
        assert_eq!(Table::new("t").unwrap().in_schema("s").unwrap().quoted, "\"s\".\"t\"");
        for bad in ["", "a\0b", &"x".repeat(64)] {
            assert_eq!(quote(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }
}
