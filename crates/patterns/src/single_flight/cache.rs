//! Where values are kept, and refused to whoever comes too late.

use std::{fmt, sync::Arc, time::Duration};

use leasehold::{Error, ErrorKind, Pass, Resource, Result, async_trait};

use super::{Answer, Failure};

/// Where values are kept, each under the resource whose lease its computation holds: so tenants do not share them.
#[async_trait]
pub trait Cache: fmt::Debug + Send + Sync {
    /// What is there, if it is still good.
    async fn get(&self, resource: &Resource) -> Result<Option<Entry>>;

    /// Keeps it for so long, unless a newer one has been kept: then `StaleToken`, and nothing is changed. The token is
    /// checked and remembered in the same step, and remembered for longer than the value.
    async fn put(&self, entry: &Entry, keep: Duration, pass: &Pass) -> Result<()>;
}

/// A value, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// It was computed.
    Value(Arc<[u8]>),
    /// Computing it failed.
    Failed(String),
}

impl From<Entry> for Answer {
    fn from(entry: Entry) -> Answer {
        match entry {
            Entry::Value(value) => Ok(value),
            Entry::Failed(why) => Err(Failure::Computing(why)),
        }
    }
}

impl Entry {
    /// As bytes: the first one says what the others are.
    pub fn write(&self) -> Vec<u8> {
        let (tag, bytes) = match self {
            Entry::Value(value) => (b'v', &value[..]),
            Entry::Failed(why) => (b'e', why.as_bytes()),
        };
        [&[tag], bytes].concat()
    }

    /// Reads what was written.
    ///
    /// # Errors
    /// `Corrupt` for anything else.
    pub fn read(bytes: &[u8]) -> Result<Entry> {
        match bytes.split_first() {
            Some((b'v', value)) => Ok(Entry::Value(value.into())),
            Some((b'e', why)) => Ok(Entry::Failed(String::from_utf8_lossy(why).into_owned())),
            _ => {
                Err(Error::new(ErrorKind::Corrupt, "what is in the cache was not written by a single-flight"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_and_nothing_else_does() {
        for entry in [
            Entry::Value(Arc::from(&b""[..])),
            Entry::Value(Arc::from(&b"ve\0"[..])),
            Entry::Failed("é".into()),
        ] {
            assert_eq!(Entry::read(&entry.write()).unwrap(), entry);
        }
        for wrong in [&b""[..], b"x", b"\0"] {
            assert_eq!(Entry::read(wrong).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }
}
