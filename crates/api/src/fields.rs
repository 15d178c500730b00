//! How single values are written.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use leasehold_core::{
    ClaimRef, Cursor, Error, ErrorKind, FencingToken, OwnerHash, OwnerToken, Resource, Result,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Whole milliseconds, rounded down: for what remains, so that nobody counts on more than there is.
pub fn ms_down(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up: for what to wait for, so that nobody asks too early.
pub fn ms_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A ttl in milliseconds: rounded down, but not to zero.
pub fn ttl_ms(duration: Duration) -> u64 {
    ms_down(duration).max(1)
}

/// A fencing token, or the number of a shared grant: a decimal string.
///
/// Not a number, because programs in many languages read numbers of JSON as floating point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenText(pub FencingToken);

impl Serialize for TokenText {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}
impl<'de> Deserialize<'de> for TokenText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<TokenText, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        text.parse().map(TokenText).map_err(D::Error::custom)
    }
}

/// An owner token, 32 hex digits: in requests only. `Debug` shows its first digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerText(pub OwnerToken);

impl Serialize for OwnerText {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_str(&self.0.reveal())
    }
}
impl<'de> Deserialize<'de> for OwnerText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<OwnerText, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        // The message of core does not repeat the text: it may be most of a secret.
        text.parse().map(OwnerText).map_err(D::Error::custom)
    }
}

/// The resource of a request: as people write it (`resource`), or as its key (`key`).
///
/// # Errors
/// `Invalid` unless exactly one of them is given and it names a resource.
pub fn read_resource(resource: Option<&str>, key: Option<&str>) -> Result<Resource> {
    match (resource, key) {
        (Some(text), None) => text.parse(),
        (None, Some(key)) => Resource::from_key(key),
        (None, None) => Err(invalid("`resource` is missing: write \"resource\":\"kind/id\"")),
        (Some(_), Some(_)) => Err(invalid("both `resource` and `key` are given: send one of them")),
    }
}

/// The fields `resource` and `key` of a request for this resource: exactly one of them is given.
pub fn write_resource(resource: &Resource) -> (Option<String>, Option<String>) {
    // Read as people write it, a hashed id would be an ordinary id.
    if resource.is_hashed() {
        (None, Some(resource.key().to_owned()))
    } else {
        (Some(resource.to_string()), None)
    }
}

/// The note of a request: text (`note`), or any bytes (`note_base64`).
///
/// # Errors
/// `Invalid` if both are given, or if the second is not base64.
pub fn read_note(text: Option<&str>, base64: Option<&str>) -> Result<Option<Arc<[u8]>>> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.as_bytes().into())),
        (None, Some(base64)) => {
            let bytes =
                STANDARD.decode(base64).map_err(|_| invalid("`note_base64` is not base64, with padding"))?;
            Ok(Some(bytes.into()))
        }
        (Some(_), Some(_)) => Err(invalid("both `note` and `note_base64` are given: send one of them")),
    }
}

/// The fields `note` and `note_base64` for these bytes.
pub fn write_note(note: Option<&[u8]>) -> (Option<String>, Option<String>) {
    match note.map(std::str::from_utf8) {
        None => (None, None),
        Some(Ok(text)) => (Some(text.to_owned()), None),
        Some(Err(_)) => (None, note.map(|bytes| STANDARD.encode(bytes))),
    }
}

pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Names the claim that an answer is about. Every verdict has it, so that an answer to another request is noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ClaimName {
    /// The resource, as people write it.
    pub resource: String,
    /// Its key. Claims on several resources are made in the byte order of this.
    pub key: String,
    /// The hash of the owner token.
    pub owner_hash: String,
}

impl ClaimName {
    /// The name of this claim.
    pub fn of(resource: &Resource, owner: OwnerToken) -> ClaimName {
        let owner_hash = OwnerHash::from(owner).to_string();
        ClaimName { resource: resource.to_string(), key: resource.key().to_owned(), owner_hash }
    }

    /// Whether this is the name of that claim.
    pub fn names(&self, claim: &ClaimRef) -> bool {
        self.key == claim.resource.key() && self.owner_hash == OwnerHash::from(claim.owner).to_string()
    }
}

/// Tells stores apart: the header `Leasehold-Store`. 16 hex digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(String);

impl StoreId {
    /// The id of the store with this address. The same address gives the same id at every server.
    pub fn of(address: &str) -> StoreId {
        StoreId(leasehold_core::ValueHash::of(address.as_bytes()).to_string())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for StoreId {
    type Err = Error;
    fn from_str(text: &str) -> Result<StoreId> {
        let is_id = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if is_id {
            Ok(StoreId(text.to_owned()))
        } else {
            Err(invalid("the id of a store has 16 lower-case hex digits"))
        }
    }
}

/// The cursor as text: opaque to everyone but this crate. It names its store and no resource.
pub fn write_cursor(cursor: Cursor, store: &StoreId) -> String {
    format!("{store}.{:x}", cursor.0)
}

/// The cursor in this text, if this store gave it. A server answers a wait on any other cursor at once.
pub fn read_cursor(text: &str, store: &StoreId) -> Option<Cursor> {
    let (given_by, cursor) = split_cursor(text)?;
    (given_by == store.as_str()).then_some(cursor)
}

/// The cursor in this text, whichever store gave it: for a client, which has checked the store of the answer.
pub fn cursor_of_answer(text: &str) -> Cursor {
    split_cursor(text).map_or_else(Cursor::default, |(_, cursor)| cursor)
}

fn split_cursor(text: &str) -> Option<(&str, Cursor)> {
    let (store, number) = text.split_once('.')?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(number, 16).ok()).flatten().map(|number| (store, Cursor(number)))
}

/// The name of a backend as the static text that core wants. `http` for one that is not known here.
pub fn backend_name(name: &str) -> &'static str {
    const KNOWN: [&str; 8] =
        ["memory", "sqlite", "redis", "redlock", "postgres", "etcd", "zookeeper", "quorum"];
    KNOWN.into_iter().find(|known| *known == name).unwrap_or("http")
}
