//! Turns errors of SQLite into errors of leasehold.

use leasehold_core::{Error, ErrorKind};
use rusqlite::ErrorCode;

/// What the error texts of the triggers in `schema.sql` and `guard.sql` begin with.
const TRIGGER_PREFIX: &str = "leasehold: ";

/// Whether a trigger refused a pass, as stale or as a token of the former backend. The texts are those of `schema.sql`.
pub(super) fn is_refusal(error: &rusqlite::Error) -> bool {
    let refused = |text: &str| text.starts_with("stale token") || text.starts_with("former token");
    trigger_text(error).is_some_and(refused)
}

fn trigger_text(error: &rusqlite::Error) -> Option<&str> {
    let rusqlite::Error::SqliteFailure(_, Some(text)) = error else { return None };
    text.strip_prefix(TRIGGER_PREFIX)
}

/// The effect is always none: a statement that fails changes nothing, and neither does a transaction without a commit.
pub(super) fn interpret(error: rusqlite::Error) -> Error {
    let (kind, text) = kind_and_text(&error);
    Error::new(kind, text).because(error)
}

fn kind_and_text(error: &rusqlite::Error) -> (ErrorKind, String) {
    if let Some(text) = trigger_text(error) {
        return (ErrorKind::Invalid, text.to_owned());
    }
    let text = match error {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => other.to_string(),
    };
    if text.contains("no such table") && text.contains("leasehold_fence") {
        return (ErrorKind::Unsupported, "the database has no fence yet: call setup first".to_owned());
    }
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return (
                ErrorKind::Unavailable,
                "another connection is writing to the database: raise the busy timeout, or try again"
                    .to_owned(),
            );
        }
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => ErrorKind::Denied,
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::TypeMismatch) => {
            ErrorKind::Corrupt
        }
        // SQLite reports an error in the statement itself as unknown.
        Some(ErrorCode::ConstraintViolation | ErrorCode::Unknown) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    (kind, text)
}
