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
/// A mark that has a ceiling was moved before. Up to that ceiling it may be raised, and the ceiling stays unless a lower
/// one is said. Below its highest token, the ceiling has to be said: it may be another move, which must keep the tokens of
/// the second backend out, or the first one done again, which must not.
///
/// # Errors
/// `Invalid` if the ceiling is not above the new mark, or so high that it would let former tokens in; or if it is not said
/// where it must be.
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
    let Mark { highest, ceiling: standing, .. } = *mark;
    let top = standing.unwrap_or(highest);
    if to >= top {
        return match ceiling {
            None => Ok(Mark { highest: to, owner: None, ceiling: None }),
            Some(_) => invalid(format!("{to} is not below {top}: moving up needs no ceiling")),
        };
    }
    // From there on tokens are of a former backend.
    let former = if to < highest { highest } else { top };
    let ceiling = match (ceiling, standing) {
        (Some(ceiling), _) => ceiling,
        // Above `to` and at most `former`, so it is a token.
        (None, None) => FencingToken::new(to.get() + (former.get() - to.get()).div_ceil(2))?,
        (None, Some(standing)) if to >= highest => standing,
        (None, Some(_)) => {
            return invalid(format!(
                "it was moved before, and tokens up to {highest} have come since: if those are to be refused now, \
                 name a ceiling"
            ));
        }
    };
    if ceiling <= to || ceiling > former {
        return invalid(format!(
            "a ceiling lies above {to}, the new mark, and not above {former}, the old one"
        ));
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
    }

    #[test]
    fn a_mark_that_was_moved_is_moved_again_without_letting_anyone_back_in() {
        let mark = Mark { highest: token(1_000_000), owner: None, ceiling: None };
        let moved = rebase(&mark, token(1000), Some(token(500_000))).unwrap();
        let answer = |mark: &Mark, to, ceiling: Option<u64>| {
            rebase(mark, token(to), ceiling.map(token))
                .map(|mark| (mark.highest.get(), mark.ceiling.map(FencingToken::get)))
        };
        assert_eq!(rebase(&moved, token(1000), None).unwrap(), moved, "done again, it changes nothing");
        assert_eq!(answer(&moved, 2000, None).unwrap(), (2000, Some(500_000)), "the first backend stays out");
        assert_eq!(answer(&moved, 2000, Some(3000)).unwrap(), (2000, Some(3000)), "a ceiling may come down");
        assert_eq!(answer(&moved, 600_000, None).unwrap(), (600_000, None), "back up, above the ceiling");
        // The second backend has gone on to 1005. Half-way to the ceiling would let its tokens in.
        let going_on = Mark { highest: token(1005), ..moved };
        assert_eq!(answer(&going_on, 10, Some(1005)).unwrap(), (10, Some(1005)));
        // Done again late, it must not shut out the one that it was done for: so half-way to 1005 will not do either.
        let late = rebase(&going_on, token(1000), None).unwrap_err();
        assert!(late.kind() == ErrorKind::Invalid && late.to_string().contains("moved before"), "{late}");
        for (to, ceiling) in [(10, 1006), (10, 10), (2000, 2000), (2000, 500_001), (600_000, 700_000)] {
            let error = answer(&going_on, to, Some(ceiling)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{to} {ceiling}");
        }
    }
}
