//! Reads the replies of scripts, field by field.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Cursor, Error, ErrorKind, FencingToken, FinishRequest, ForeignLock, HeldBy, QueueEntry, Resource,
    StoredHolder, ValueHash, WallTime,
};
use redis::Value;

use crate::{error::StoreError, keys::Keys};

/// The fields of a reply. Each method reads the next one.
pub(crate) struct Fields(std::vec::IntoIter<Value>);

pub(crate) type Read<T> = Result<T, StoreError>;

fn unexpected(expected: &str, found: &Value) -> StoreError {
    let found = match found {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "a text",
        Value::Array(_) => "a list",
        _ => "something else",
    };
    StoreError::unexpected_reply(format!("a script returned {found} instead of {expected}"))
}

impl Fields {
    pub(crate) fn of(value: Value) -> Read<Fields> {
        match value {
            Value::Array(fields) => Ok(Fields(fields.into_iter())),
            other => Err(unexpected("a list", &other)),
        }
    }

    fn next(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    /// The fields that were not read yet, if there are this many.
    pub(crate) fn rest(self, count: usize) -> Read<Vec<Value>> {
        let rest: Vec<Value> = self.0.collect();
        if rest.len() == count {
            return Ok(rest);
        }
        Err(StoreError::unexpected_reply(format!("{} results for {count} requests", rest.len())))
    }

    /// Whether all fields were read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    pub(crate) fn int(&mut self) -> Read<i64> {
        let value = self.next();
        number(&value).ok_or_else(|| unexpected("a number", &value))
    }

    pub(crate) fn count(&mut self) -> Read<u32> {
        Ok(u32::try_from(self.int()?.max(0)).unwrap_or(u32::MAX))
    }

    /// Milliseconds; `None` if the number is negative.
    pub(crate) fn millis(&mut self) -> Read<Option<Duration>> {
        Ok(u64::try_from(self.int()?).ok().map(Duration::from_millis))
    }

    pub(crate) fn micros(&mut self) -> Read<Duration> {
        Ok(Duration::from_micros(self.int()?.max(0).unsigned_abs()))
    }

    pub(crate) fn token(&mut self) -> Read<FencingToken> {
        FencingToken::try_from(self.int()?).map_err(|error| StoreError::unexpected_reply(error.to_string()))
    }

    /// A token; `None` if it is zero or missing.
    pub(crate) fn maybe_token(&mut self) -> Read<Option<FencingToken>> {
        match self.next() {
            Value::Nil | Value::Int(0) => Ok(None),
            value => {
                let number = number(&value).ok_or_else(|| unexpected("a token", &value))?;
                FencingToken::try_from(number)
                    .map(Some)
                    .map_err(|error| StoreError::unexpected_reply(error.to_string()))
            }
        }
    }

    /// The value of the fence key of a resource: a token; `None` if it is missing.
    pub(crate) fn fence(&mut self, resource: &Resource) -> Read<Option<FencingToken>> {
        let value = self.next();
        if matches!(value, Value::Nil | Value::Int(0)) {
            return Ok(None);
        }
        let token = number(&value).and_then(|number| FencingToken::try_from(number).ok());
        token.map(Some).ok_or_else(|| {
            let found = match &value {
                Value::BulkString(bytes) => String::from_utf8_lossy(bytes).escape_debug().to_string(),
                other => number(other).map_or_else(|| "no number".to_owned(), |number| number.to_string()),
            };
            let expected = if number(&value).is_some() { "a number below 2^53" } else { "a number" };
            let mut keys = Keys::of(resource);
            let message =
                format!("key {} is corrupt: expected {expected}, found '{found:.40}'", keys.fence());
            StoreError::Translated(Error::new(ErrorKind::Corrupt, message))
        })
    }

    pub(crate) fn bytes(&mut self) -> Read<Option<Vec<u8>>> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::SimpleString(text) => Ok(Some(text.into_bytes())),
            other => Err(unexpected("a text", &other)),
        }
    }

    pub(crate) fn text(&mut self) -> Read<String> {
        // Lossy, because another program may have written it.
        Ok(String::from_utf8_lossy(&self.bytes()?.unwrap_or_default()).into_owned())
    }

    pub(crate) fn list(&mut self) -> Read<Fields> {
        Fields::of(self.next())
    }

    pub(crate) fn cursor(&mut self) -> Read<Cursor> {
        let text = self.text()?;
        u64::from_str_radix(&text, 16)
            .map(Cursor)
            .map_err(|_| StoreError::unexpected_reply(format!("{text:.20?} is not a cursor")))
    }

    /// A list of lists. `read` reads each of them.
    pub(crate) fn each<T>(&mut self, read: impl Fn(&mut Fields) -> Read<T>) -> Read<Vec<T>> {
        self.list()?.0.map(|item| read(&mut Fields::of(item)?)).collect()
    }

    /// A holder, as `describe` in `resource.lua` returns it.
    pub(crate) fn holder(&mut self) -> Read<HeldBy> {
        let StoredHolder { holder, ttl } = self.stored_holder()?;
        let mut by = HeldBy::new(holder, self.token()?, self.count()?);
        by.ttl = ttl;
        by.held_for = self.micros()?;
        by.remaining = self.millis()?.unwrap_or_default();
        by.note = self.bytes()?.map(Arc::from);
        by.handovers = self.count()?;
        let marks = self.text()?;
        (by.evicting, by.kept) = (marks.contains('e'), marks.contains('k'));
        by.asked = self.finish_request()?;
        Ok(by)
    }

    /// The lock of another program in the owner key: type, hash, milliseconds left or -1; or an empty list.
    pub(crate) fn foreign(&mut self, resource: &Resource) -> Read<Option<ForeignLock>> {
        let mut fields = self.list()?;
        if fields.is_empty() { Ok(None) } else { fields.foreign_lock(resource).map(Some) }
    }

    /// The lock of another program: type, hash, milliseconds left or -1.
    pub(crate) fn foreign_lock(&mut self, resource: &Resource) -> Read<ForeignLock> {
        let (form, hash) = (self.text()?, self.text()?);
        let hash: ValueHash =
            hash.parse().map_err(|_| StoreError::unexpected_reply(format!("{hash:.20?} is not a hash")))?;
        let lock = ForeignLock::new(Keys::of(resource).owner(), form, hash);
        Ok(lock.expiring(self.millis()?))
    }

    /// An operator's request that the holder finish: milliseconds left or -1, by, why.
    pub(crate) fn finish_request(&mut self) -> Read<Option<FinishRequest>> {
        let within = self.millis()?;
        let (by, why) = (self.text()?, self.text()?);
        Ok(within.map(|within| FinishRequest::new(within, by, why)))
    }

    pub(crate) fn queue_entry(&mut self) -> Read<QueueEntry> {
        let holder = self.stored_holder()?.holder;
        let (weight, waited) = (self.count()?, self.micros()?);
        let remaining = self.millis()?.unwrap_or_default();
        Ok(QueueEntry::new(holder, weight, waited, remaining).with_silent(self.int()? == 1))
    }

    fn stored_holder(&mut self) -> Read<StoredHolder> {
        let Ok(stored) = self.text()?.parse::<StoredHolder>();
        Ok(stored)
    }
}

/// A number, as an integer or as digits.
pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// Reads a reply to `TIME`: seconds and microseconds.
pub(crate) fn read_time(value: Value) -> Result<WallTime, StoreError> {
    let mut fields = Fields::of(value)?;
    let (seconds, micros) = (fields.int()?.unsigned_abs(), fields.int()?.unsigned_abs());
    Ok(WallTime::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_of_range_does_not_panic() {
        let at = |seconds| read_time(Value::Array(vec![Value::Int(seconds), Value::Int(7)])).unwrap();
        assert_eq!(at(3), WallTime::from_micros(3_000_007));
        assert_eq!(at(i64::MAX), WallTime::from_micros(u64::MAX));
    }
}
