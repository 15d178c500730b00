//! The rule, pure and once. What the databases do in their own languages is compared with this.

use leasehold_core::{Error, ErrorKind, FencingToken, OwnerHash, Pass};

/// What a fence remembers of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The highest token that was admitted.
    pub highest: FencingToken,
    /// Whose that was, if it said so.
    pub owner: Option<OwnerHash>,
    /// Since the resource was moved to a backend with smaller numbers: tokens from here on are the former backend's.
    pub ceiling: Option<FencingToken>,
}

/// How a pass was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is the highest so far, and was remembered.
    Raised,
    /// It was shown before, by the same owner.
    Again,
}

/// Why a pass was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A higher token has been seen, or this one from someone else.
    Stale {
        /// The token shown.
        presented: FencingToken,
        /// The highest seen.
        highest: FencingToken,
    },
    /// It was given out by the backend that the resource had before it was rebased.
    Former {
        /// The token shown.
        presented: FencingToken,
        /// Tokens from here on are the former backend's.
        ceiling: FencingToken,
    },
}

/// Admits a token above the highest seen for its resource, or the same one from the same owner; refuses the others.
///
/// An owner that is not known is never the same: without it each token is taken once. `mark` is what was remembered of
/// the pass's resource; if the answer is [`Admission::Raised`], remember [`Mark::raised`] in the same atomic step.
///
/// # Errors
/// The refusal.
///
/// ```
/// use leasehold_core::{FencingToken, Pass, Resource};
/// use leasehold_fence::rule::{Admission, Mark, Refusal, judge};
///
/// let report = Resource::new("report", "42")?;
/// let [a, b] = [33, 34].map(|n| Pass::new(report.clone(), FencingToken::new(n).expect("small")));
/// assert_eq!(judge(None, &b), Ok(Admission::Raised));
/// let mark = Mark::raised(None, &b);
/// assert_eq!(judge(Some(&mark), &a), Err(Refusal::Stale { presented: a.token, highest: b.token }));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
pub fn judge(mark: Option<&Mark>, pass: &Pass) -> Result<Admission, Refusal> {
    let presented = pass.token;
    let Some(&Mark { highest, owner, ceiling }) = mark else { return Ok(Admission::Raised) };
    if let Some(ceiling) = ceiling.filter(|&ceiling| presented >= ceiling) {
        return Err(Refusal::Former { presented, ceiling });
    }
    if presented > highest {
        return Ok(Admission::Raised);
    }
    let same_owner = owner.is_some() && owner == pass.owner;
    if presented == highest && same_owner {
        return Ok(Admission::Again);
    }
    Err(Refusal::Stale { presented, highest })
}

impl Mark {
    /// The mark after this pass has raised it. A ceiling stays.
    #[must_use]
    pub fn raised(before: Option<&Mark>, pass: &Pass) -> Mark {
        Mark { highest: pass.token, owner: pass.owner, ceiling: before.and_then(|mark| mark.ceiling) }
    }
}

/// Moves a mark to where another backend counts.
///
/// To a higher number, the mark is raised, and a ceiling that stood below it is gone. To a lower one, tokens that the
/// former backend gave out would be above the mark and pass; so they get a ceiling, from which on tokens are refused.
/// Unless it is said, it lies half-way between the two: backends count in different orders of magnitude.
///
/// # Errors
/// `Invalid` if the ceiling is not above the new mark, or is above the old one, where it would let the old tokens in.
///
/// ```
/// use leasehold_core::FencingToken;
/// use leasehold_fence::rule::{Mark, rebase};
///
/// // From Redis, which counts microseconds, to a young etcd, which counts revisions.
/// let token = |n| FencingToken::new(n).expect("small");
/// let mark = Mark { highest: token(1_790_000_000_000_000), owner: None, ceiling: None };
/// let moved = rebase(&mark, token(2_000), None)?;
/// assert_eq!((moved.highest, moved.ceiling), (token(2_000), Some(token(895_000_000_001_000))));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
pub fn rebase(mark: &Mark, to: FencingToken, ceiling: Option<FencingToken>) -> Result<Mark, Error> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    let old = mark.ceiling.unwrap_or(mark.highest).max(mark.highest);
    if to >= old {
        return match ceiling {
            None => Ok(Mark { highest: to, owner: None, ceiling: None }),
            Some(_) => invalid(format!("{to} is not below {old}: moving up needs no ceiling")),
        };
    }
    // Above `to` and at most `old`, so it is a token.
    let half_way = to.get() + (old.get() - to.get()).div_ceil(2);
    let ceiling = ceiling.map_or_else(|| FencingToken::new(half_way), Ok)?;
    if ceiling <= to || ceiling > old {
        return invalid(format!("a ceiling lies above {to}, the new mark, and not above {old}, the old one"));
    }
    Ok(Mark { highest: to, owner: None, ceiling: Some(ceiling) })
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Stale { presented, highest } => Error::stale(presented, highest),
            Refusal::Former { presented, ceiling } => {
                let message = format!(
                    "token {presented} is of the backend before the rebase: tokens from {ceiling} on are refused"
                );
                Error::new(ErrorKind::StaleToken, message)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{OwnerToken, Resource};

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn pass(number: u64, owner: Option<u8>) -> Pass {
        let pass = Pass::new(Resource::new("report", "42").unwrap(), token(number));
        match owner {
            Some(owner) => pass.owned_by(OwnerToken::from_bytes([owner; 16])),
            None => pass,
        }
    }

    #[test]
    fn the_rule_as_a_table() {
        let (a, b) = (Some(1), Some(2));
        let stale =
            |presented, highest| Err(Refusal::Stale { presented: token(presented), highest: token(highest) });
        let table = [
            ((34, a), (35, b), Ok(Admission::Raised)),
            ((34, a), (35, None), Ok(Admission::Raised)),
            ((34, a), (34, a), Ok(Admission::Again)),
            ((34, a), (34, b), stale(34, 34)),
            ((34, a), (34, None), stale(34, 34)),
            ((34, None), (34, a), stale(34, 34)),
            ((34, None), (34, None), stale(34, 34)),
            ((34, a), (33, a), stale(33, 34)),
            ((34, None), (1, None), stale(1, 34)),
        ];
        for ((highest, owner), (shown, by), answer) in table {
            let mark = Mark::raised(None, &pass(highest, owner));
            assert_eq!(judge(Some(&mark), &pass(shown, by)), answer, "{mark:?}, {shown} by {by:?}");
        }
        assert_eq!(judge(None, &pass(1, None)), Ok(Admission::Raised));
    }

    #[test]
    fn after_a_rebase_the_former_backends_tokens_are_refused_for_ever() {
        let mark = Mark { highest: token(10), owner: None, ceiling: Some(token(500)) };
        let next = pass(11, Some(1));
        assert_eq!(judge(Some(&mark), &next), Ok(Admission::Raised));
        let mark = Mark::raised(Some(&mark), &next);
        for former in [500, 501, 1_000_000] {
            let refusal = Refusal::Former { presented: token(former), ceiling: token(500) };
            assert_eq!(judge(Some(&mark), &pass(former, Some(1))), Err(refusal));
            let error = Error::from(refusal);
            assert!(error.kind() == ErrorKind::StaleToken && error.to_string().contains("before the rebase"));
        }
        assert_eq!(judge(Some(&mark), &pass(499, Some(2))), Ok(Admission::Raised));
    }

    #[test]
    fn a_rebase_goes_down_with_a_ceiling_and_up_without() {
        let mark = Mark { highest: token(1000), owner: None, ceiling: None };
        let answer = |mark: &Mark, to, ceiling: Option<u64>| {
            rebase(mark, token(to), ceiling.map(token))
                .map(|mark| (mark.highest.get(), mark.ceiling.map(FencingToken::get)))
        };
        assert_eq!(answer(&mark, 10, None).unwrap(), (10, Some(505)));
        assert_eq!(answer(&mark, 999, None).unwrap(), (999, Some(1000)));
        assert_eq!(answer(&mark, 10, Some(1000)).unwrap(), (10, Some(1000)));
        for (to, ceiling) in [(10, 10), (10, 1001), (1000, 2000)] {
            assert_eq!(
                answer(&mark, to, Some(ceiling)).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{to} {ceiling}"
            );
        }
        assert_eq!(answer(&mark, 1000, None).unwrap(), (1000, None));
        let moved = rebase(&mark, token(10), None).unwrap();
        assert_eq!(answer(&moved, 600, None).unwrap(), (600, None), "back up, above the ceiling");
        assert_eq!(answer(&moved, 20, None).unwrap(), (20, Some(263)), "the ceiling only comes down");
    }
}
