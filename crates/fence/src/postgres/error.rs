//! What PostgreSQL says, in our words.

use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Pass};
use tokio_postgres::{
    error::{DbError, Severity},
    types::WrongType,
};

use super::DOWNSTREAM;
use crate::{observe, rule::Refusal};

/// What a statement of yours that failed on a fenced table means: a refusal is counted, logged, and turned into
/// `StaleToken`; the rest is put in our words. `pass` is the one that you showed.
///
/// ```no_run
/// # use leasehold_fence::{Pass, postgres};
/// # async fn example(transaction: &tokio_postgres::Transaction<'_>, pass: &Pass) -> Result<(), leasehold_core::Error> {
/// let update = transaction.execute("UPDATE orders SET state = 'paid' WHERE id = 42", &[]).await;
/// update.map_err(|error| postgres::explain(error, pass))?;
/// # Ok(()) }
/// ```
pub fn explain(error: tokio_postgres::Error, pass: &Pass) -> Error {
    refused(error, pass, Effect::Unknown)
}

/// `unanswered` is the effect of a statement whose answer did not come.
pub(super) fn refused(error: tokio_postgres::Error, pass: &Pass, unanswered: Effect) -> Error {
    match refusal_in(&error) {
        Some(refusal) => observe::refused(pass, refusal, DOWNSTREAM).because(error),
        None => interpret(error, unanswered).on(&pass.resource),
    }
}

/// The refusal that an error tells of, if it does.
pub(super) fn refusal_in(error: &tokio_postgres::Error) -> Option<Refusal> {
    error.as_db_error().and_then(|said| refusal(said.code().code(), said.detail()?))
}

fn refusal(code: &str, detail: &str) -> Option<Refusal> {
    let number = |name: &str| -> Option<FencingToken> {
        let words = &mut detail.split(' ');
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let presented = number("presented")?;
    match code {
        "LH001" => Some(Refusal::Stale { presented, highest: number("highest")? }),
        "LH002" => Some(Refusal::Former { presented, ceiling: number("ceiling")? }),
        _ => None,
    }
}

pub(super) fn interpret(error: tokio_postgres::Error, unanswered: Effect) -> Error {
    let (kind, text, effect) = match (error.as_db_error(), wrong_type(&error)) {
        (Some(said), _) => {
            let (kind, text) = meaning(said.code().code(), said.message());
            // What the server answered with an error did nothing; but with its last words it may have been committed.
            (kind, text, if is_last_word(said) { unanswered } else { Effect::None })
        }
        (None, Some(wrong)) => {
            let text = format!("a value is of another type than its column: {wrong}");
            (ErrorKind::Invalid, text, Effect::None)
        }
        (None, None) if error.is_closed() => {
            (ErrorKind::Unavailable, "the connection is closed".to_owned(), unanswered)
        }
        (None, None) => (ErrorKind::Unavailable, format!("the server did not answer: {error}"), unanswered),
    };
    Error::new(kind, text).with_effect(effect).because(error)
}

/// What the driver found before anything was sent.
fn wrong_type(error: &tokio_postgres::Error) -> Option<&WrongType> {
    std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
}

/// Whether the server ends the connection with this, or a pool says that it lost its own.
fn is_last_word(said: &DbError) -> bool {
    // Without a severity that can be read: the worse.
    !matches!(said.parsed_severity(), Some(Severity::Error)) || said.code().code().starts_with("08")
}

/// Whether the connection is of no more use: it is over, or the server is about to end, or takes no writes any more.
pub(super) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        None => wrong_type(error).is_none(),
        Some(said) => said.code().code() == "25006" || is_last_word(said),
    }
}

/// Why there is no connection. Nothing was sent.
pub(super) fn no_connection(error: tokio_postgres::Error) -> Error {
    let (kind, why) = match (error.as_db_error(), std::error::Error::source(&error)) {
        (Some(said), _) => meaning(said.code().code(), said.message()),
        (None, Some(cause)) => (ErrorKind::Unavailable, format!("{error}: {cause}")),
        (None, None) => (ErrorKind::Unavailable, error.to_string()),
    };
    Error::new(kind, format!("cannot connect to the database: {why}")).because(error)
}

fn meaning(code: &str, message: &str) -> (ErrorKind, String) {
    let ours = || message.to_owned();
    match code {
        "LH003" | "LH004" | "LH005" => (ErrorKind::Invalid, ours()),
        // Schema, function or table are not there.
        "3F000" | "42883" | "42P01" if message.contains("leasehold_fence") => {
            (ErrorKind::Unsupported, "the database has no fence yet: set it up first".to_owned())
        }
        "42501" | "28000" | "28P01" => (ErrorKind::Denied, ours()),
        "40001" | "40P01" | "55P03" | "57014" => {
            (ErrorKind::Unavailable, format!("another transaction was in the way: {message}"))
        }
        "25006" => (ErrorKind::Unavailable, "the server is a read-only standby".to_owned()),
        _ => match code.get(..2) {
            Some("08" | "53" | "57" | "58" | "XX") => (ErrorKind::Unavailable, ours()),
            _ => (ErrorKind::Invalid, ours()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_carry_their_numbers() {
        let token = |number| FencingToken::new(number).unwrap();
        let stale = Refusal::Stale { presented: token(33), highest: token(34) };
        assert_eq!(refusal("LH001", "presented=33 highest=34"), Some(stale));
        let former = Refusal::Former { presented: token(99), ceiling: token(50) };
        assert_eq!(refusal("LH002", "presented=99 ceiling=50"), Some(former));
        assert_eq!(refusal("LH001", "presented=33"), None);
        assert_eq!(refusal("23505", "presented=33 highest=34"), None);
    }

    #[test]
    fn every_answer_has_its_kind() {
        use ErrorKind::*;
        let table = [
            ("LH003", "orders: a write to order/1 needs its pass", Invalid),
            ("42883", "function leasehold_fence.admit(text, bigint, text) does not exist", Unsupported),
            ("42883", "function mine() does not exist", Invalid),
            ("3F000", "schema \"leasehold_fence\" does not exist", Unsupported),
            ("42501", "permission denied for function admit", Denied),
            ("40001", "could not serialize access", Unavailable),
            ("40P01", "deadlock detected", Unavailable),
            ("25006", "cannot execute UPDATE in a read-only transaction", Unavailable),
            ("57P01", "terminating connection", Unavailable),
            ("53300", "too many connections", Unavailable),
            ("23505", "duplicate key", Invalid),
        ];
        for (code, message, kind) in table {
            assert_eq!(meaning(code, message).0, kind, "{code} {message}");
        }
    }
}
