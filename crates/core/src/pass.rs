//! The pass: what a holder presents to a fence.

use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};

use crate::{
    error::{Error, ErrorKind, Result},
    resource::{Resource, hex},
    token::{FencingToken, OwnerToken},
};

/// What a holder presents to a fence, where the effect happens: the resource, the fencing token, and a hash of its owner.
///
/// It contains no secret. The owner is named by a hash, so that a fence can tell the same holder from another one with the
/// same number, and a reader of the fence's table can neither renew nor release anything.
///
/// As text it is `TOKEN OWNER RESOURCE`, with `-` for an unknown owner, and the resource as people write it. `leasehold run`
/// gives it to its command as `LEASEHOLD_PASS`; the triggers of `leasehold fence install` read it.
///
/// ```
/// use leasehold_core::{FencingToken, OwnerToken, Pass, Resource};
///
/// let pass = Pass::new(Resource::new("order", "4 2")?, FencingToken::new(34)?).owned_by(OwnerToken::from_bytes([7; 16]));
/// assert_eq!(pass.to_string(), "34 c121d3ba5db191d1e907811f256e934f order/4 2");
/// assert_eq!(pass.to_string().parse::<Pass>()?, pass);
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Pass {
    /// The resource.
    pub resource: Resource,
    /// The token of an exclusive grant of it.
    pub token: FencingToken,
    /// A hash of the owner token. Without it, a fence accepts each token only once.
    pub owner: Option<OwnerHash>,
}

impl Pass {
    /// A pass without an owner.
    pub fn new(resource: Resource, token: FencingToken) -> Pass {
        Pass { resource, token, owner: None }
    }

    /// Adds the owner. With it, the same holder may present the pass again and again.
    #[must_use]
    pub fn owned_by(self, owner: impl Into<OwnerHash>) -> Pass {
        Pass { owner: Some(owner.into()), ..self }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner {
            Some(owner) => write!(f, "{} {owner} {}", self.token, self.resource),
            None => write!(f, "{} - {}", self.token, self.resource),
        }
    }
}
impl FromStr for Pass {
    type Err = Error;
    fn from_str(text: &str) -> Result<Pass> {
        let wrong =
            || Error::new(ErrorKind::Invalid, "a pass is TOKEN OWNER RESOURCE, with one space between");
        // The id of a resource may have spaces, so it comes last.
        let mut words = text.splitn(3, ' ');
        let (token, owner) = words.next().zip(words.next()).ok_or_else(wrong)?;
        let pass = Pass::new(read_resource(words.next().ok_or_else(wrong)?)?, token.parse()?);
        if owner == "-" { Ok(pass) } else { Ok(pass.owned_by(owner.parse::<OwnerHash>()?)) }
    }
}

/// Reads a resource. A hashed id is written as in the key: read as people type, it would be an ordinary id.
pub(crate) fn read_resource(text: &str) -> Result<Resource> {
    match Resource::from_key(text) {
        Ok(resource) if resource.is_hashed() => Ok(resource),
        _ => text.parse(),
    }
}

/// Names an owner token without revealing it: the first 128 bits of the SHA-256 of its 32 hex digits.
///
/// The same in a shell: `printf %s "$LEASEHOLD_OWNER" | sha256sum | cut -c1-32`. An owner token is 128 random bits,
/// so it cannot be found from its hash.
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
        // An owner token has the same form. If a caller passes one by mistake, its text must not end up in a log.
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
        let resource: Resource = "acme:report/a b;%20".parse().unwrap();
        let pass = Pass::new(resource, FencingToken::new(7).unwrap());
        assert_eq!(pass.to_string(), "7 - acme:report/a b;%20");
        let hashed = Pass::new(pass.resource.hashed(b"sesame"), pass.token);
        for pass in [pass.clone().owned_by(owner), pass, hashed] {
            assert_eq!(pass.to_string().parse::<Pass>().unwrap(), pass);
            assert!(!format!("{pass} {pass:?}").contains(&owner.reveal()));
        }
    }

    #[test]
    fn what_is_no_pass_is_refused_and_an_owner_is_not_repeated() {
        let long = format!("7 {} report/1", "ab".repeat(17));
        for text in
            ["", "7", "7 -", "7 - ", "0 - report/1", "7 report/1", "7 - report", "7 x report/1", &long]
        {
            let error = text.parse::<Pass>().expect_err(text);
            assert!(!error.to_string().contains("abab"), "{text}: {error}");
        }
    }
}
