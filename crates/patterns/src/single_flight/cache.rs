//! The store of values. It refuses a value whose fencing token is older than the stored one.

use std::{fmt, sync::Arc, time::Duration};

use leasehold::{Error, ErrorKind, Pass, Resource, Result, async_trait};

use super::{FlightError, FlightResult};

/// A store of values. The key of a value is the resource of its lease, with the client's namespace, so
/// tenants do not share values.
#[async_trait]
pub trait Cache: fmt::Debug + Send + Sync {
    /// The entry of a resource, if it has not ended.
    async fn get(&self, resource: &Resource) -> Result<Option<CacheEntry>>;

    /// Stores an entry for `keep`. If an entry with a newer token was stored, it returns `StaleToken` and
    /// changes nothing.
    ///
    /// An implementation checks and stores the token in the same step, and keeps the token for longer than
    /// the entry.
    async fn put(&self, entry: &CacheEntry, keep: Duration, pass: &Pass) -> Result<()>;
}

/// A value, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEntry {
    /// The value.
    Value(Arc<[u8]>),
    /// The computation failed with this error.
    Failed(String),
}

impl From<CacheEntry> for FlightResult {
    fn from(entry: CacheEntry) -> FlightResult {
        match entry {
            CacheEntry::Value(value) => Ok(value),
            CacheEntry::Failed(why) => Err(FlightError::Computing(why)),
        }
    }
}

impl CacheEntry {
    /// The entry as bytes. The first byte is a tag: `v` for a value, `e` for an error.
    pub fn write(&self) -> Vec<u8> {
        let (tag, bytes) = match self {
            CacheEntry::Value(value) => (b'v', &value[..]),
            CacheEntry::Failed(why) => (b'e', why.as_bytes()),
        };
        [&[tag], bytes].concat()
    }

    /// Reads the bytes of an entry.
    ///
    /// # Errors
    /// `Corrupt` for anything else.
    pub fn read(bytes: &[u8]) -> Result<CacheEntry> {
        match bytes.split_first() {
            Some((b'v', value)) => Ok(CacheEntry::Value(value.into())),
            Some((b'e', why)) => Ok(CacheEntry::Failed(String::from_utf8_lossy(why).into_owned())),
            _ => {
                let message = "an entry of the cache is corrupt: expected the tag v or e in its first byte";
                Err(Error::new(ErrorKind::Corrupt, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_entry_can_be_read_and_nothing_else_can() {
        for entry in [
            CacheEntry::Value(Arc::from(&b""[..])),
            CacheEntry::Value(Arc::from(&b"ve\0"[..])),
            CacheEntry::Failed("é".into()),
        ] {
            assert_eq!(CacheEntry::read(&entry.write()).unwrap(), entry);
        }
        for wrong in [&b""[..], b"x", b"\0"] {
            assert_eq!(CacheEntry::read(wrong).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
