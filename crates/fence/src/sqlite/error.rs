//! What SQLite says, in our words.

use leasehold_core::{Error, ErrorKind};
use rusqlite::ErrorCode;

/// What the triggers' words begin with.
const OURS: &str = "leasehold: ";

/// Whether a trigger refused a pass, as stale or of the former backend.
pub(super) fn is_refusal(error: &rusqlite::Error) -> bool {
    let refused = |text: &str| text.starts_with("stale token") || text.starts_with("former token");
    our_words(error).is_some_and(refused)
}

fn our_words(error: &rusqlite::Error) -> Option<&str> {
    let rusqlite::Error::SqliteFailure(_, Some(text)) = error else { return None };
    text.strip_prefix(OURS)
}

/// A statement in a transaction that fails has no effect, and neither has a transaction that is not committed.
pub(super) fn interpret(error: rusqlite::Error) -> Error {
    let (kind, text) = meaning(&error);
    Error::new(kind, text).because(error)
}

fn meaning(error: &rusqlite::Error) -> (ErrorKind, String) {
    if let Some(words) = our_words(error) {
        return (ErrorKind::Invalid, words.to_owned());
    }
    let text = match error {
        rusqlite::Error::SqliteFailure(_, Some(text)) => text.clone(),
        other => other.to_string(),
    };
    if text.contains("no such table") && text.contains("leasehold_fence") {
        return (ErrorKind::Unsupported, "the database has no fence yet: set it up first".to_owned());
    }
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            return (ErrorKind::Unavailable, "another connection writes to the database".to_owned());
        }
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => ErrorKind::Denied,
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::TypeMismatch) => {
            ErrorKind::Corrupt
        }
        // Unknown is what SQLite calls an error in the statement itself.
        Some(ErrorCode::ConstraintViolation | ErrorCode::Unknown) => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    (kind, text)
}
