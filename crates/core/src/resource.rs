//! What is contended: `report/42`, or `acme:report/42` with a namespace.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};

/// The longest namespace and the longest kind, in bytes.
pub const NAME_MAX: usize = 64;
/// The longest id, in bytes of UTF-8 before encoding.
pub const ID_MAX: usize = 256;

/// What is contended, as `[namespace:]kind/id`.
///
/// Namespace and kind are `[a-z0-9._-]{1,64}`. The id is 1 to 256 bytes of UTF-8 without control characters; it
/// is compared byte for byte, never folded or normalised. In a [key](Resource::key) the id is percent-encoded,
/// so that no id can be mistaken for a part of another resource's key, and that encoding never changes.
///
/// Cloning is cheap: one shared allocation.
///
/// ```
/// use leasehold_core::Resource;
///
/// let report = Resource::new("report", "42 of {x}")?.in_namespace("acme")?;
/// assert_eq!(report.to_string(), "acme:report/42 of {x}");
/// assert_eq!(report.key(), "acme:report/42%20of%20%7Bx%7D");
/// assert_eq!(Resource::from_key(report.key())?, report);
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Resource {
    key: Arc<str>,
    kind_at: u8,
    id_at: u8,
}

impl Resource {
    /// A resource without a namespace.
    ///
    /// # Errors
    /// `Invalid` if the kind or the id does not follow the grammar; the message says where.
    pub fn new(kind: &str, id: &str) -> Result<Resource> {
        check_name("kind", kind)?;
        check_id(id)?;
        Ok(Resource::assemble("", kind, &encode(id)))
    }

    /// The same resource in a namespace (a tenant), replacing the one it had.
    ///
    /// # Errors
    /// `Invalid` if the namespace does not follow the grammar.
    pub fn in_namespace(&self, namespace: &str) -> Result<Resource> {
        check_name("namespace", namespace)?;
        Ok(Resource::assemble(namespace, self.kind(), self.encoded_id()))
    }

    /// The same resource with its id replaced by a keyed hash (HMAC-SHA-256 of the whole key, 128 bits).
    ///
    /// For ids that must not be seen in keys, logs or labels: an e-mail address, an account number. Everyone who
    /// contends for the resource needs the same secret; the id cannot be had back. Hashing twice changes nothing.
    #[must_use]
    pub fn hashed(&self, secret: &[u8]) -> Resource {
        if self.is_hashed() {
            return self.clone();
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
        mac.update(self.key.as_bytes());
        let digest = mac.finalize().into_bytes();
        let id = format!("{HASHED}{}", hex(&digest[..16]));
        Resource::assemble(self.namespace().unwrap_or(""), self.kind(), &id)
    }

    /// Reads a key as [`Resource::key`] wrote it. Only that exact form is taken: a key has one spelling.
    ///
    /// # Errors
    /// `Invalid` if it is not a key.
    pub fn from_key(key: &str) -> Result<Resource> {
        let (names, encoded) = key.split_once('/').ok_or_else(|| no_slash(key))?;
        let (namespace, kind) = split_names(names)?;
        let hashed = encoded.strip_prefix(HASHED);
        let is_hash =
            |hash: &str| hash.len() == 32 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !hashed.is_some_and(is_hash) {
            let id = decode(encoded)
                .ok_or_else(|| invalid(format!("{} is not an encoded resource", excerpt(key))))?;
            check_id(&id)?;
            if encode(&id) != encoded {
                return Err(invalid(format!("{} is not how this resource is encoded", excerpt(key))));
            }
        }
        Ok(Resource::assemble(namespace, kind, encoded))
    }

    fn assemble(namespace: &str, kind: &str, encoded_id: &str) -> Resource {
        let kind_at = if namespace.is_empty() { 0 } else { namespace.len() + 1 };
        let id_at = kind_at + kind.len() + 1;
        let mut key = String::with_capacity(id_at + encoded_id.len());
        if !namespace.is_empty() {
            key.push_str(namespace);
            key.push(':');
        }
        key.push_str(kind);
        key.push('/');
        key.push_str(encoded_id);
        let small = |at: usize| u8::try_from(at).expect("names are at most 64 bytes each");
        Resource { key: key.into(), kind_at: small(kind_at), id_at: small(id_at) }
    }

    /// The namespace, if it has one.
    pub fn namespace(&self) -> Option<&str> {
        (self.kind_at > 0).then(|| &self.key[..usize::from(self.kind_at) - 1])
    }

    /// The kind: what sort of thing this is. Few and chosen by developers, so it may be a metric label.
    pub fn kind(&self) -> &str {
        &self.key[usize::from(self.kind_at)..usize::from(self.id_at) - 1]
    }

    /// The id as the caller gave it; of a [hashed](Resource::hashed) one, the hash.
    pub fn id(&self) -> Cow<'_, str> {
        match self.encoded_id() {
            plain if !plain.contains('%') => Cow::Borrowed(plain),
            encoded => Cow::Owned(decode(encoded).expect("a resource holds an id that was encoded here")),
        }
    }

    /// The id as it stands in a key.
    pub fn encoded_id(&self) -> &str {
        &self.key[usize::from(self.id_at)..]
    }

    /// The whole name in its stable, printable ASCII encoding: what backends store.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether the id is a keyed hash.
    pub fn is_hashed(&self) -> bool {
        self.encoded_id().starts_with(HASHED)
    }

    /// Twelve hex digits that stand for this resource in logs: the same in every process, and not the id.
    pub fn id_hash(&self) -> String {
        hex(&Sha256::digest(self.key.as_bytes())[..6])
    }
}

/// Marks a hashed id. Not in the alphabet that ids are encoded to, so no id can pose as a hash.
const HASHED: &str = "~";

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn no_slash(text: &str) -> Error {
    invalid(format!("{} is not a resource: write kind/id, as in report/42", excerpt(text)))
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(invalid(format!("a {what} has 1 to {NAME_MAX} characters, this one has {}", name.len())));
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    match name.chars().find(|&c| !allowed(c)) {
        None => Ok(()),
        Some(c) => Err(invalid(format!(
            "the {what} {} has {c:?} in it: only a-z, 0-9, '.', '_' and '-' are allowed",
            excerpt(name)
        ))),
    }
}

fn check_id(id: &str) -> Result<()> {
    if id.is_empty() || id.len() > ID_MAX {
        return Err(invalid(format!("an id has 1 to {ID_MAX} bytes, this one has {}", id.len())));
    }
    match id.chars().find(|c| c.is_control()) {
        None => Ok(()),
        Some(c) => Err(invalid(format!("the id has the control character {c:?} in it"))),
    }
}

fn split_names(names: &str) -> Result<(&str, &str)> {
    let (namespace, kind) = match names.split_once(':') {
        Some((namespace, kind)) => {
            check_name("namespace", namespace)?;
            (namespace, kind)
        }
        None => ("", names),
    };
    check_name("kind", kind)?;
    Ok((namespace, kind))
}

/// Bytes that stand for themselves in a key: harmless in Redis patterns and hash tags, SQL, paths and URLs.
fn plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'@' | b'+' | b'=' | b',')
}

fn encode(id: &str) -> Cow<'_, str> {
    if id.bytes().all(plain) {
        return Cow::Borrowed(id);
    }
    let mut out = String::with_capacity(id.len() + 16);
    for byte in id.bytes() {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX_UPPER[usize::from(byte >> 4)]));
            out.push(char::from(HEX_UPPER[usize::from(byte & 15)]));
        }
    }
    Cow::Owned(out)
}

fn decode(encoded: &str) -> Option<String> {
    let mut out = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(out).ok()
}

const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        text.push(char::from(HEX_UPPER[usize::from(byte >> 4)].to_ascii_lowercase()));
        text.push(char::from(HEX_UPPER[usize::from(byte & 15)].to_ascii_lowercase()));
        text
    })
}

/// Quoted, escaped, and short enough for one line: for error messages about what someone typed.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        None => format!("{text:?}"),
        Some((cut, _)) => format!("{:?}…", &text[..cut]),
    }
}

impl FromStr for Resource {
    type Err = Error;
    /// Reads `[namespace:]kind/id` as a person types it: the id is everything after the first slash, as it is.
    fn from_str(text: &str) -> Result<Resource> {
        let (names, id) = text.split_once('/').ok_or_else(|| no_slash(text))?;
        let (namespace, kind) = split_names(names)?;
        check_id(id)?;
        Ok(Resource::assemble(namespace, kind, &encode(id)))
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", &self.key[..usize::from(self.id_at)], self.id())
    }
}
impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)
    }
}
impl PartialEq for Resource {
    fn eq(&self, other: &Resource) -> bool {
        self.key == other.key
    }
}
impl Eq for Resource {}
impl std::hash::Hash for Resource {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}
impl PartialOrd for Resource {
    fn partial_cmp(&self, other: &Resource) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Resource {
    fn cmp(&self, other: &Resource) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}
