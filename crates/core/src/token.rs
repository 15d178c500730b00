//! Fencing tokens, owner tokens, and how a token is minted.

use std::{fmt, num::NonZeroU64, str::FromStr};

use crate::{
    clock::Environment,
    error::{Error, ErrorKind, Result},
    resource::excerpt,
};

/// Grows with every exclusive grant of a resource: show it where the effect happens, and refuse lower ones there.
///
/// Non-zero and below 2^53, so it fits an `i64`, a `BIGINT` and the numbers of JavaScript and Lua.
///
/// ```
/// use leasehold_core::FencingToken;
///
/// let token: FencingToken = "34".parse()?;
/// assert!(token > FencingToken::new(33)?);
/// assert_eq!((token.get(), token.as_i64(), token.to_string()), (34, 34, "34".to_owned()));
/// assert!(FencingToken::new(0).is_err() && FencingToken::new(1 << 53).is_err());
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// One past the greatest token.
    pub const LIMIT: u64 = 1 << 53;
    /// How far a claimant's floor may be ahead of the backend's clock, in microseconds: a year. There is room for 229 of them.
    pub const FLOOR_LEAD_MAX: u64 = 366 * 86_400 * 1_000_000;

    /// # Errors
    /// `Invalid` if it is zero or not below 2^53.
    pub fn new(number: u64) -> Result<FencingToken> {
        NonZeroU64::new(number)
            .filter(|n| n.get() < FencingToken::LIMIT)
            .map(FencingToken)
            .ok_or_else(|| not_a_token(number))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The number as SQL wants it.
    pub fn as_i64(self) -> i64 {
        self.0.get().cast_signed()
    }

    /// The next token of a resource: above the last one given out, at least what the clock says, above the floor.
    ///
    /// `clock` is the backend's wall clock in microseconds where it has one (so that a resource whose last token
    /// was forgotten goes on above it), or any counter; `floor` is the highest token that the claimant has seen.
    ///
    /// # Errors
    /// `Invalid` if the floor is above `last` and more than [`FLOOR_LEAD_MAX`](FencingToken::FLOOR_LEAD_MAX) ahead of the
    /// clock: no honest client has seen such a token, and granting above it would use up the tokens of the resource.
    /// `Corrupt` if there is no such token below 2^53: no clock has such a time, so the last token was not granted by a clock.
    pub fn mint(last: Option<FencingToken>, clock: u64, floor: Option<FencingToken>) -> Result<FencingToken> {
        let highest = clock.saturating_add(FencingToken::FLOOR_LEAD_MAX);
        if let Some(floor) = floor.filter(|floor| Some(*floor) > last && floor.get() > highest) {
            return Err(Error::floor_too_high(floor));
        }
        FencingToken::propose(last.max(floor), clock)
    }

    /// The lowest token that is above `seen` and at least what the clock says. Does not judge how far `seen` is ahead of the
    /// clock: a client that proposes a token to a quorum leaves that to the nodes, which have clocks of their own.
    ///
    /// # Errors
    /// `Corrupt` if there is no such token below 2^53: no clock has such a time, so the last token was not granted by a clock.
    pub fn propose(seen: Option<FencingToken>, clock: u64) -> Result<FencingToken> {
        let number = seen.map_or(1, |token| token.get() + 1).max(clock);
        FencingToken::new(number)
            .map_err(|_| Error::new(ErrorKind::Corrupt, "no fencing token is left: they end below 2^53"))
    }
}

fn not_a_token(shown: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("{shown} is not a fencing token: 1 to 2^53 - 1"))
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}", self.0)
    }
}
impl FromStr for FencingToken {
    type Err = Error;
    fn from_str(text: &str) -> Result<FencingToken> {
        // `u64::from_str` takes a leading '+': a token has one spelling.
        let digits = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        let number = digits.then(|| text.parse().ok()).flatten();
        number.and_then(|n| FencingToken::new(n).ok()).ok_or_else(|| not_a_token(excerpt(text)))
    }
}
impl TryFrom<i64> for FencingToken {
    type Error = Error;
    fn try_from(number: i64) -> Result<FencingToken> {
        u64::try_from(number).map_err(|_| not_a_token(number)).and_then(FencingToken::new)
    }
}
impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> i64 {
        token.as_i64()
    }
}

/// The number of a shared grant: a read, or some permits of several.
///
/// It names the grant and nothing more. It is a type of its own because shared holders are there together:
/// ordering them by this number would refuse valid ones, so nothing that checks a [`FencingToken`] takes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShareNumber(FencingToken);

impl ShareNumber {
    /// The number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}
impl From<FencingToken> for ShareNumber {
    fn from(token: FencingToken) -> ShareNumber {
        ShareNumber(token)
    }
}
impl fmt::Display for ShareNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Debug for ShareNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "share {}", self.0)
    }
}

/// Random 128-bit id of one claim, chosen by the client before it sends: the capability to renew and release.
///
/// Its `Debug` shows a prefix only; the whole is a secret. [`OwnerToken::reveal`] spells it out, for a backend's
/// storage or to hand a lease to another process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerToken(u128);

impl OwnerToken {
    /// A fresh one, from the environment's secure random source.
    pub fn fresh(environment: &dyn Environment) -> OwnerToken {
        let mut bytes = [0; 16];
        environment.fill(&mut bytes);
        OwnerToken(u128::from_be_bytes(bytes))
    }

    /// From its 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> OwnerToken {
        OwnerToken(u128::from_be_bytes(bytes))
    }

    /// Its 16 bytes: a secret.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// All 32 hex digits: a secret.
    pub fn reveal(self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = String::with_capacity(32);
        // Every request of most backends carries one: this takes a tenth of what the formatter takes.
        for byte in self.to_bytes() {
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        text
    }

    /// Eight hex digits, enough to tell owners apart in a log.
    pub fn prefix(self) -> String {
        format!("{:08x}", self.0 >> 96)
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", self.0 >> 96)
    }
}
impl FromStr for OwnerToken {
    type Err = Error;
    fn from_str(text: &str) -> Result<OwnerToken> {
        let lower_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        let whole = text.len() == 32 && text.bytes().all(lower_hex);
        // The text is not repeated in the error: it may be most of a secret.
        let wrong = || Error::new(ErrorKind::Invalid, "an owner token has 32 lower-case hex digits");
        whole.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(OwnerToken).ok_or_else(wrong)
    }
}
