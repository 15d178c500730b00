//! What a holder shows at a fence.

use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};

use crate::{
    error::{Error, ErrorKind, Result},
    resource::{Resource, hex},
    token::{FencingToken, OwnerToken},
};

/// What a holder shows where the effect happens: for which resource, with which token, and as whose.
///
/// It holds no secret: the owner is named by a hash, so a fence can tell the same holder from another one with the same
/// number, and whoever reads the fence's marks can neither renew nor release anything.
///
/// As text it is `KEY TOKEN OWNER`, parted by spaces, the owner left out if it is not known: what `leasehold run` gives
/// its command as `LEASEHOLD_PASS`, and what the triggers of `leasehold fence install` read.
///
/// ```
/// use leasehold_core::{FencingToken, OwnerToken, Pass, Resource};
///
/// let pass = Pass::new(Resource::new("order", "4 2")?, FencingToken::new(34)?).owned_by(OwnerToken::from_bytes([7; 16]));
/// assert_eq!(pass.to_string(), "order/4%202 34 c121d3ba5db191d1e907811f256e934f");
/// assert_eq!(pass.to_string().parse::<Pass>()?, pass);
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Pass {
    /// For what.
    pub resource: Resource,
    /// The token of an exclusive grant of it.
    pub token: FencingToken,
    /// Whose it is. Without it a fence takes each token once.
    pub owner: Option<OwnerHash>,
}

impl Pass {
    /// A pass whose owner is not known.
    pub fn new(resource: Resource, token: FencingToken) -> Pass {
        Pass { resource, token, owner: None }
    }

    /// Says whose it is. With that, the same holder may show it again and again.
    #[must_use]
    pub fn owned_by(self, owner: impl Into<OwnerHash>) -> Pass {
        Pass { owner: Some(owner.into()), ..self }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.resource.key(), self.token)?;
        self.owner.map_or(Ok(()), |owner| write!(f, " {owner}"))
    }
}
impl FromStr for Pass {
    type Err = Error;
    fn from_str(text: &str) -> Result<Pass> {
        let wrong = || Error::new(ErrorKind::Invalid, "a pass is KEY TOKEN OWNER, parted by spaces");
        let mut words = text.split_ascii_whitespace();
        let (key, token) = words.next().zip(words.next()).ok_or_else(wrong)?;
        let pass = Pass::new(Resource::from_key(key)?, token.parse()?);
        match (words.next(), words.next()) {
            (None, _) => Ok(pass),
            (Some(owner), None) => Ok(pass.owned_by(owner.parse::<OwnerHash>()?)),
            (Some(_), Some(_)) => Err(wrong()),
        }
    }
}

/// Stands for an owner token and is no secret: the first 128 bits of the SHA-256 of its 32 hex digits.
///
/// A shell makes the same: `printf %s "$LEASEHOLD_OWNER" | sha256sum | cut -c1-32`. An owner token is 128 random bits,
/// so nobody finds it from its hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerHash([u8; 16]);

impl From<OwnerToken> for OwnerHash {
    fn from(owner: OwnerToken) -> OwnerHash {
        let digest = Sha256::digest(owner.reveal().as_bytes());
        let mut half = [0; 16];
        half.copy_from_slice(&digest[..16]);
        OwnerHash(half)
    }
}
impl fmt::Display for OwnerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}
impl fmt::Debug for OwnerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hash {self}")
    }
}
impl FromStr for OwnerHash {
    type Err = Error;
    fn from_str(text: &str) -> Result<OwnerHash> {
        // An owner token looks the same. Whoever shows that by mistake is not to find it in a log.
        let wrong = || Error::new(ErrorKind::Invalid, "the hash of an owner has 32 lower-case hex digits");
        let lower_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        let whole = text.len() == 32 && text.bytes().all(lower_hex);
        let number = whole.then(|| u128::from_str_radix(text, 16).ok()).flatten().ok_or_else(wrong)?;
        Ok(OwnerHash(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_has_one_spelling_and_no_secret() {
        let owner = OwnerToken::from_bytes([0xab; 16]);
        let pass = Pass::new("acme:report/a b;c".parse().unwrap(), FencingToken::new(7).unwrap());
        assert_eq!(pass.to_string(), "acme:report/a%20b%3Bc 7");
        let owned = pass.clone().owned_by(owner);
        for pass in [pass, owned] {
            assert_eq!(pass.to_string().parse::<Pass>().unwrap(), pass);
            assert!(!format!("{pass} {pass:?}").contains(&owner.reveal()));
        }
    }

    #[test]
    fn what_is_no_pass_is_refused_and_an_owner_is_not_repeated() {
        let long = format!("report/1 7 {}", "ab".repeat(17));
        for text in ["", "report/1", "report/1 0", "report 7", "report/1 7 x", "report/a%zz 7", &long] {
            assert!(text.parse::<Pass>().is_err(), "{text}");
        }
        let two = format!("report/1 7 {0} {0}", "ab".repeat(16));
        for text in [long.as_str(), two.as_str()] {
            assert!(!text.parse::<Pass>().unwrap_err().to_string().contains("abab"), "{text}");
        }
    }
}
