//! What scripts answer, read field by field.

use std::{sync::Arc, time::Duration};

use leasehold_core::{Cursor, FencingToken, FinishRequest, HeldBy, Holder, QueueEntry};
use redis::Value;

use crate::error::Fault;

/// The fields of an answer, in order.
pub(crate) struct Fields(std::vec::IntoIter<Value>);

type Read<T> = Result<T, Fault>;

fn strange(what: &str, value: &Value) -> Fault {
    let kind = match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "a text",
        Value::Array(_) => "a list",
        _ => "something else",
    };
    Fault::Strange(format!("a script answered {kind} instead of {what}"))
}

impl Fields {
    pub(crate) fn of(value: Value) -> Read<Fields> {
        match value {
            Value::Array(fields) => Ok(Fields(fields.into_iter())),
            other => Err(strange("a list", &other)),
        }
    }

    fn next(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    /// Whether all were read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    pub(crate) fn int(&mut self) -> Read<i64> {
        let value = self.next();
        number(&value).ok_or_else(|| strange("a number", &value))
    }

    pub(crate) fn count(&mut self) -> Read<u32> {
        Ok(u32::try_from(self.int()?.max(0)).unwrap_or(u32::MAX))
    }

    /// Milliseconds; none if it is negative.
    pub(crate) fn millis(&mut self) -> Read<Option<Duration>> {
        Ok(u64::try_from(self.int()?).ok().map(Duration::from_millis))
    }

    pub(crate) fn micros(&mut self) -> Read<Duration> {
        Ok(Duration::from_micros(self.int()?.max(0).unsigned_abs()))
    }

    pub(crate) fn token(&mut self) -> Read<FencingToken> {
        FencingToken::try_from(self.int()?).map_err(|error| Fault::Strange(error.to_string()))
    }

    /// A token; none if it is zero or missing.
    pub(crate) fn maybe_token(&mut self) -> Read<Option<FencingToken>> {
        match self.next() {
            Value::Nil | Value::Int(0) => Ok(None),
            value => {
                let number = number(&value).ok_or_else(|| strange("a token", &value))?;
                FencingToken::try_from(number).map(Some).map_err(|error| Fault::Strange(error.to_string()))
            }
        }
    }

    pub(crate) fn bytes(&mut self) -> Read<Option<Vec<u8>>> {
        match self.next() {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::SimpleString(text) => Ok(Some(text.into_bytes())),
            other => Err(strange("a text", &other)),
        }
    }

    pub(crate) fn text(&mut self) -> Read<String> {
        Ok(String::from_utf8_lossy(&self.bytes()?.unwrap_or_default()).into_owned())
    }

    pub(crate) fn list(&mut self) -> Read<Fields> {
        Fields::of(self.next())
    }

    pub(crate) fn cursor(&mut self) -> Read<Cursor> {
        let text = self.text()?;
        u64::from_str_radix(&text, 16)
            .map(Cursor)
            .map_err(|_| Fault::Strange(format!("{text:.20?} is no cursor")))
    }

    /// The lists in a list, each read by `read`.
    pub(crate) fn each<T>(&mut self, read: impl Fn(&mut Fields) -> Read<T>) -> Read<Vec<T>> {
        self.list()?.0.map(|item| read(&mut Fields::of(item)?)).collect()
    }

    /// A holder, as `seen` in `resource.lua` tells it.
    pub(crate) fn holder(&mut self) -> Read<HeldBy> {
        let who = self.who()?;
        let mut by = HeldBy::new(who, self.token()?, self.count()?);
        by.held_for = self.micros()?;
        // A stranger's key may have no end.
        by.remaining = self.millis()?.unwrap_or(Duration::from_secs(365 * 86400));
        by.note = self.bytes()?.map(Arc::from);
        by.handovers = self.count()?;
        let marks = self.text()?;
        (by.evicting, by.kept) = (marks.contains('e'), marks.contains('k'));
        by.asked = self.asked()?;
        Ok(by)
    }

    pub(crate) fn asked(&mut self) -> Read<Option<FinishRequest>> {
        let within = self.millis()?;
        let (by, why) = (self.text()?, self.text()?);
        Ok(within.map(|within| FinishRequest::new(within, by, why)))
    }

    pub(crate) fn place(&mut self) -> Read<QueueEntry> {
        let who = self.who()?;
        let (weight, waited) = (self.count()?, self.micros()?);
        Ok(QueueEntry::new(who, weight, waited, self.millis()?.unwrap_or_default()))
    }

    fn who(&mut self) -> Read<Arc<Holder>> {
        let Ok(holder) = self.text()?.parse::<Holder>();
        Ok(Arc::new(holder))
    }
}

/// A number, however it is spelled.
pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}
