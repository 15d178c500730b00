//! Refusals of a database as any driver reports them: SQLSTATE, message and detail.

use leasehold_core::{Error, ErrorKind, FencingToken, Pass};

use crate::{observe, rule::Refusal};

/// The name of this downstream in metrics and logs: a database that is used through a driver of your choice.
const DOWNSTREAM: &str = "sql";

/// The SQLSTATE of a stale token: the fence has seen a higher one, or the same one from another owner.
pub const STALE: &str = "LH001";
/// The SQLSTATE of a token that was issued by the backend before a rebase.
pub const FORMER: &str = "LH002";
/// The SQLSTATE of a write for whose row no pass was shown.
pub const NO_PASS: &str = "LH003";
/// The SQLSTATE of a pass, a resource or a row that is not valid.
pub const INVALID: &str = "LH004";
/// The SQLSTATE of a TRUNCATE of a fenced table.
pub const TRUNCATE: &str = "LH005";

/// Turns an error with which PostgreSQL or MariaDB refused a statement into an error of leasehold, for any driver. `None` if
/// the error does not come from the fence.
///
/// `pass` is the pass that you showed. `code` is the SQLSTATE. With a driver that does not tell it, as diesel, give `None`:
/// then a stale token is recognised by its numbers. `detail` is the DETAIL of PostgreSQL; MariaDB has none.
///
/// A stale token becomes [`ErrorKind::StaleToken`], and is counted and logged. Both numbers are in
/// [`Error::stale_token`] if the driver delivers the detail or the message. [`NO_PASS`], [`INVALID`] and [`TRUNCATE`] become
/// [`ErrorKind::Invalid`].
///
/// ```
/// use leasehold_fence::{FencingToken, Pass, Resource, explain_sqlstate};
///
/// let pass = Pass::new(Resource::new("order", "7")?, FencingToken::new(33)?);
/// // With sqlx: error.code(), error.message(), and the detail of its PgDatabaseError.
/// let error = explain_sqlstate(&pass, Some("LH001"), "order/7: token 33 is stale", Some("presented=33 highest=34"));
/// let (presented, highest) = error.and_then(|error| error.stale_token()).expect("it is stale");
/// assert_eq!((presented.get(), highest.get()), (33, 34));
///
/// assert!(explain_sqlstate(&pass, Some("23505"), "duplicate key", None).is_none());
/// # Ok::<(), leasehold_core::Error>(())
/// ```
pub fn explain_sqlstate(
    pass: &Pass,
    code: Option<&str>,
    message: &str,
    detail: Option<&str>,
) -> Option<Error> {
    let numbers =
        detail.and_then(|detail| refusal(code, detail)).or_else(|| refusal_in_message(code, message));
    if let Some(refusal) = numbers {
        return Some(observe::refused(pass, refusal, DOWNSTREAM));
    }
    let kind = match code? {
        STALE | FORMER => ErrorKind::StaleToken,
        NO_PASS | INVALID | TRUNCATE => ErrorKind::Invalid,
        _ => return None,
    };
    Some(Error::new(kind, message.to_owned()).on(&pass.resource))
}

/// Reads the numbers of a refusal: `presented=33 highest=34`, or `presented=99 ceiling=50`. They are the last two words.
pub(crate) fn refusal(code: Option<&str>, text: &str) -> Option<Refusal> {
    let number = |word: &str, name: &str| -> Option<FencingToken> {
        word.trim_matches(['(', ')']).strip_prefix(name)?.strip_prefix('=')?.parse().ok()
    };
    let mut words = text.rsplit(' ');
    let (last, presented) = (words.next()?, number(words.next()?, "presented")?);
    match (number(last, "highest"), number(last, "ceiling")) {
        (Some(highest), _) if matches!(code, None | Some(STALE)) => {
            Some(Refusal::Stale { presented, highest })
        }
        (_, Some(ceiling)) if matches!(code, None | Some(FORMER)) => {
            Some(Refusal::Former { presented, ceiling })
        }
        _ => None,
    }
}

/// The refusal in a message: MariaDB writes the numbers there. The message of PostgreSQL has them in its sentence, for drivers
/// that do not deliver the detail.
fn refusal_in_message(code: Option<&str>, message: &str) -> Option<Refusal> {
    let in_sentence = || {
        let (before, highest) = message.strip_suffix(" has been seen")?.rsplit_once(" is stale: ")?;
        let presented = before.rsplit_once("token ")?.1.parse().ok()?;
        Some(Refusal::Stale { presented, highest: highest.parse().ok()? })
    };
    refusal(code, message).or_else(|| in_sentence().filter(|_| code == Some(STALE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::Resource;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn pass() -> Pass {
        Pass::new(Resource::new("order", "7").unwrap(), token(33))
    }

    #[test]
    fn a_refusal_has_its_numbers() {
        let stale = Some(Refusal::Stale { presented: token(33), highest: token(34) });
        let former = Some(Refusal::Former { presented: token(99), ceiling: token(50) });
        let table = [
            (Some("LH001"), "presented=33 highest=34", stale),
            (Some("LH001"), "order/7: token 33 is stale (presented=33 highest=34)", stale),
            (None, "presented=33 highest=34", stale),
            (Some("LH002"), "presented=99 ceiling=50", former),
            (None, "presented=99 ceiling=50", former),
            (Some("LH001"), "presented=33", None),
            (Some("LH001"), "presented=99 ceiling=50", None),
            (Some("LH001"), "presented=33 highest=x", None),
            (Some("LH001"), "", None),
            (Some("23505"), "presented=33 highest=34", None),
        ];
        for (code, text, expected) in table {
            assert_eq!(refusal(code, text), expected, "{code:?} {text}");
        }
    }

    #[test]
    fn every_sqlstate_of_the_fence_is_explained_and_others_are_not() {
        let table = [
            ("LH001", Some(ErrorKind::StaleToken)),
            ("LH002", Some(ErrorKind::StaleToken)),
            ("LH003", Some(ErrorKind::Invalid)),
            ("LH004", Some(ErrorKind::Invalid)),
            ("LH005", Some(ErrorKind::Invalid)),
            ("LH006", None),
            ("40001", None),
        ];
        for (code, kind) in table {
            let error = explain_sqlstate(&pass(), Some(code), "refused", None);
            assert_eq!(error.as_ref().map(Error::kind), kind, "{code}");
            assert!(
                error.is_none_or(
                    |error| error.stale_token().is_none() && error.to_string().contains("refused")
                )
            );
        }
        assert!(explain_sqlstate(&pass(), None, "refused", None).is_none());
        let with_numbers = [
            (None, "stale", Some("presented=33 highest=34")),
            (Some("LH001"), "order/7: token 33 is stale: 34 has been seen", None),
            (Some("LH001"), "order/7: token 33 is stale (presented=33 highest=34)", None),
        ];
        for (code, message, detail) in with_numbers {
            let stale = explain_sqlstate(&pass(), code, message, detail).unwrap();
            assert_eq!(stale.stale_token(), Some((token(33), token(34))), "{message}");
        }
    }
}
