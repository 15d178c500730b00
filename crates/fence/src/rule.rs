//! The rule of the fence as pure functions. Tests compare what the databases do in their own languages with this.

use leasehold_core::{Error, ErrorKind, FencingToken, OwnerHash, Pass};

/// What a fence stores about a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The highest token that was admitted.
    pub highest: FencingToken,
    /// The hash of the owner of that token, if the pass had one.
    pub owner: Option<OwnerHash>,
    /// Set when the resource was moved to a backend with smaller numbers: tokens from this one on were issued by the former
    /// backend and are refused.
    pub ceiling: Option<FencingToken>,
}

/// How a pass was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Admission {
    /// Its token is the highest so far, and was stored.
    Raised,
    /// The same owner has shown it before.
    Again,
}

/// Why a pass was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A higher token was admitted, or the same token from another owner.
    Stale {
        /// The token shown.
        presented: FencingToken,
        /// The highest token that was admitted.
        highest: FencingToken,
    },
    /// The token was issued by the backend that the resource had before a rebase.
    Former {
        /// The token shown.
        presented: FencingToken,
        /// Tokens from this one on are refused.
        ceiling: FencingToken,
    },
}

/// Admits a token above the highest one of its resource, or the same token from the same owner; refuses the others.
///
/// A pass without an owner never counts as the same owner, so its token is admitted only once. `mark` is the stored mark of
/// the resource. If the result is [`Admission::Raised`], store [`Mark::raised`] in the same atomic step.
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
    // Before the comparison with the highest token: tokens of the former backend are above it.
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

/// Moves a mark to the numbers of another backend. ADR 0028.
///
/// - To a number at or above the mark (or above its ceiling): the mark is raised, and it has no ceiling.
/// - To a lower number: tokens of the former backend would be above the new mark and would be admitted. So the mark gets a
///   ceiling: tokens from there on are refused. By default it is half-way between the two marks, because backends count in
///   different orders of magnitude.
/// - A mark with a ceiling was moved before. It can be raised up to that ceiling, and the ceiling stays unless you give a
///   lower one.
/// - To a number below the highest token of a mark with a ceiling: you must give the ceiling. It may be another move, which
///   must refuse the tokens of the second backend, or a repetition of the first move, which must not.
///
/// # Errors
/// `Invalid` if the ceiling is not above the new mark, or so high that former tokens would be admitted, or if it is missing
/// where it must be given.
///
/// ```
/// use leasehold_core::FencingToken;
/// use leasehold_fence::rule::{Mark, rebase};
///
/// // From Redis, which counts microseconds, to a new etcd, which counts revisions.
/// let token = |n| FencingToken::new(n).expect("small");
/// let mark = Mark { highest: token(1_790_000_000_000_000), owner: None, ceiling: None };
/// let moved = rebase(&mark, token(2_000), None)?;
/// assert_eq!((moved.highest, moved.ceiling), (token(2_000), Some(token(895_000_000_001_000))));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
pub fn rebase(mark: &Mark, to: FencingToken, ceiling: Option<FencingToken>) -> Result<Mark, Error> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    let Mark { highest, ceiling: existing, .. } = *mark;
    let top = existing.unwrap_or(highest);
    if to >= top {
        return match ceiling {
            // Without an owner, so that only tokens above the new mark are admitted.
            None => Ok(Mark { highest: to, owner: None, ceiling: None }),
            Some(_) => invalid(format!("{to} is not below {top}: moving up needs no ceiling")),
        };
    }
    // Tokens from this one on were issued by a former backend.
    let former = if to < highest { highest } else { top };
    let ceiling = match (ceiling, existing) {
        (Some(ceiling), _) => ceiling,
        // Above `to` and at most `former`, so it is a token.
        (None, None) => FencingToken::new(to.get() + (former.get() - to.get()).div_ceil(2))?,
        (None, Some(existing)) if to >= highest => existing,
        (None, Some(_)) => {
            return invalid(format!(
                "the mark was moved before, and tokens up to {highest} were admitted since: give the ceiling \
                 explicitly"
            ));
        }
    };
    if ceiling <= to || ceiling > former {
        return invalid(format!(
            "the ceiling must be above {to}, the new mark, and at most {former}, the old one"
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
                    "token {presented} was issued by the backend before the rebase: tokens from {ceiling} on are refused"
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
    fn the_rule_admits_higher_tokens_and_the_same_owner() {
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
        for ((highest, owner), (shown, by), expected) in table {
            let mark = Mark::raised(None, &pass(highest, owner));
            assert_eq!(judge(Some(&mark), &pass(shown, by)), expected, "{mark:?}, {shown} by {by:?}");
        }
        assert_eq!(judge(None, &pass(1, None)), Ok(Admission::Raised));
    }

    #[test]
    fn after_a_rebase_tokens_of_the_former_backend_are_refused() {
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
    fn a_mark_that_was_moved_can_be_moved_again_and_admits_no_old_token() {
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
        // The second backend has issued tokens up to 1005. A ceiling half-way to the old one would admit them.
        let going_on = Mark { highest: token(1005), ..moved };
        assert_eq!(answer(&going_on, 10, Some(1005)).unwrap(), (10, Some(1005)));
        // A late repetition of the first move must not refuse the tokens of the second backend, so a ceiling half-way to
        // 1005 is wrong, too.
        let late = rebase(&going_on, token(1000), None).unwrap_err();
        assert!(late.kind() == ErrorKind::Invalid && late.to_string().contains("moved before"), "{late}");
        for (to, ceiling) in [(10, 1006), (10, 10), (2000, 2000), (2000, 500_001), (600_000, 700_000)] {
            let error = answer(&going_on, to, Some(ceiling)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{to} {ceiling}");
        }
    }
}
