//! How a reply proves which request it belongs to. ADR 0033.
//!
//! Redis and its driver match replies to requests by their order on a connection. A pool or a proxy in
//! between can break that order: it can deliver an old reply again, every reply twice, or the reply of
//! another client.
//!
//! - **Scripts**: every call has a [`RequestId`] as its last argument, and every script returns it after the
//!   fields of its reply. Errors that our scripts return (`LIMIT`, `FLOOR`, `CORRUPT`) are such a field.
//! - **Errors of the server itself** (`-LOADING`, `-MOVED`, `-NOSCRIPT`, …) cannot carry an id. They are
//!   believed, because none of them is a grant, a renewal or a release, and a wrong one breaks no promise:
//!   - a grant that its client does not know of ends with its ttl, or is found again by asking with the same
//!     owner token;
//!   - a renewal that failed leaves the deadline where it was;
//!   - a release that failed is repeated;
//!   - following `-MOVED` or repeating after `-NOSCRIPT` repeats a verb that may be repeated. (An operator's
//!     command without a token may then be carried out twice.)
//! - **Plain commands** cannot return an id. They are sent between two `PING id` in one pipeline
//!   ([`PingBracket`]). If both ids come back in their places, so do the replies between them. This proves
//!   the order, not each reply, so no grant depends on it alone.

use std::fmt;

use leasehold_core::{Environment, RequestId, RequestIds};
use redis::{Cmd, Pipeline, RedisWrite as _, Value};

use crate::error::StoreError;

/// Request ids with a random start.
///
/// The start is from the secure source of randomness: several clients may use the same seed for jitter, and
/// must not get the same ids.
pub(crate) fn new_request_ids(environment: &dyn Environment) -> RequestIds {
    let mut start = [0; 8];
    environment.fill(&mut start);
    RequestIds::starting_at(u64::from_be_bytes(start))
}

/// The fields of the reply of a script, without the id, if the reply carries the id of this request.
pub(crate) fn check_reply(
    id: RequestId,
    reply: Value,
    server: &dyn fmt::Display,
) -> Result<Value, StoreError> {
    match reply {
        Value::Array(mut fields) => {
            check(id, &fields.pop().unwrap_or(Value::Nil), server)?;
            Value::Array(fields).extract_error().map_err(StoreError::Command)
        }
        Value::ServerError(error) if !is_error_of_our_scripts(error.code()) => {
            Err(StoreError::Command(error.into()))
        }
        _ => Err(misdelivered(id, server)),
    }
}

/// Checks the outcome of a call that was sent with the source of its script. The server knows that script, so
/// a `NOSCRIPT` is the reply to another request.
pub(crate) fn expect_known_script<T>(
    id: RequestId,
    outcome: Result<T, StoreError>,
    server: &dyn fmt::Display,
) -> Result<T, StoreError> {
    outcome.map_err(|error| if error.is_no_script() { misdelivered(id, server) } else { error })
}

/// Whether our scripts return this error. They return it beside an id, so without an id it belongs to another
/// request.
fn is_error_of_our_scripts(code: &str) -> bool {
    matches!(code, "LIMIT" | "FLOOR" | "CORRUPT")
}

fn check(id: RequestId, found: &Value, server: &dyn fmt::Display) -> Result<(), StoreError> {
    // A missing id, or one that is no text, never matches.
    let found: &[u8] = if let Value::BulkString(found) = found { found } else { b"" };
    id.check_text(found, server).map_err(StoreError::Misdelivered)
}

/// The error for a reply that does not carry the id of this request.
pub(crate) fn misdelivered(id: RequestId, server: &dyn fmt::Display) -> StoreError {
    let error = check(id, &Value::Nil, server).err();
    error.unwrap_or_else(|| StoreError::unexpected_reply("a reply without a request id".to_owned()))
}

/// Adds a new id to a call, as its last argument.
pub(crate) fn add_id(call: &mut Cmd, ids: &RequestIds) -> RequestId {
    let id = ids.next();
    call.write_arg_fmt(id);
    id
}

/// Two `PING id`, before and after plain commands.
pub(crate) struct PingBracket {
    before: RequestId,
    after: RequestId,
}

impl PingBracket {
    pub(crate) fn new(ids: &RequestIds) -> PingBracket {
        PingBracket { before: ids.next(), after: ids.next() }
    }

    /// A pipeline with the commands between the two.
    pub(crate) fn wrap<'a>(&self, commands: impl IntoIterator<Item = &'a Cmd>) -> Pipeline {
        let mut pipeline = Pipeline::new();
        pipeline.add_command(ping(self.before));
        commands.into_iter().for_each(|command| {
            pipeline.add_command(command.clone());
        });
        pipeline.add_command(ping(self.after));
        pipeline
    }

    /// The replies between the two, if both ids are in their places.
    ///
    /// A server that refuses the `PING` (it is loading, or the user may not) refuses every command: its error
    /// is returned.
    pub(crate) fn unwrap(
        &self,
        mut replies: Vec<Value>,
        server: &dyn fmt::Display,
    ) -> Result<Vec<Value>, StoreError> {
        check_ping(self.after, replies.pop(), server)?;
        if replies.is_empty() {
            return Err(misdelivered(self.before, server));
        }
        check_ping(self.before, Some(replies.remove(0)), server)?;
        Ok(replies)
    }
}

/// `PING id`. The server replies with the id.
pub(crate) fn ping(id: RequestId) -> Cmd {
    let mut ping = Cmd::new();
    ping.arg("PING").write_arg_fmt(id);
    ping
}

pub(crate) fn check_ping(
    id: RequestId,
    reply: Option<Value>,
    server: &dyn fmt::Display,
) -> Result<(), StoreError> {
    match reply {
        Some(Value::ServerError(error)) if can_refuse_ping(error.code()) => {
            Err(StoreError::Command(error.into()))
        }
        reply => check(id, &reply.unwrap_or(Value::Nil), server),
    }
}

/// Whether a server can reply to a `PING` with this error. Any other error is the reply to another request.
fn can_refuse_ping(code: &str) -> bool {
    matches!(code, "LOADING" | "NOAUTH" | "NOPERM" | "MASTERDOWN" | "BUSY" | "DENIED" | "ERR")
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Effect, ErrorKind};

    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn read(text: &str) -> Value {
        redis::parse_redis_value(text.as_bytes()).unwrap()
    }

    fn is_misdelivered<T: fmt::Debug>(outcome: Result<T, StoreError>) -> bool {
        let error = outcome.expect_err("the reply belongs to another request");
        let breaks = error.breaks_connection();
        let error = error.into_error();
        breaks && (error.kind(), error.effect()) == (ErrorKind::Unavailable, Effect::Unknown)
    }

    #[test]
    fn a_reply_is_read_only_if_it_carries_the_id_of_the_request() {
        let (id, other) = (RequestId::from(0xabc), RequestId::from(0xabd));
        let grant = |id: RequestId| Value::Array(vec![text("granted"), Value::Int(7), text(&id.to_string())]);
        let reply = check_reply(id, grant(id), &"redis").unwrap();
        assert_eq!(reply, Value::Array(vec![text("granted"), Value::Int(7)]));
        assert!(is_misdelivered(check_reply(other, grant(id), &"redis")));
        let without_id = [
            Value::Nil,
            Value::Int(1),
            text("abc"),
            Value::Array(vec![]),
            Value::Array(vec![text("granted"), Value::Int(7)]),
            Value::Array(vec![text("granted"), Value::Int(0xabc)]),
            Value::Array(vec![text("abc"), Value::Int(7)]),
        ];
        for reply in without_id {
            assert!(is_misdelivered(check_reply(id, reply.clone(), &"redis")), "{reply:?}");
        }
    }

    #[test]
    fn errors_of_our_scripts_carry_an_id_and_errors_of_the_server_do_not() {
        let id = RequestId::from(0xabc);
        let error = check_reply(id, read("*2\r\n-LIMIT too many\r\n$3\r\nabc\r\n"), &"redis").unwrap_err();
        assert_eq!(error.into_error().kind(), ErrorKind::Limit);
        for line in
            ["*2\r\n-LIMIT too many\r\n$3\r\nabd\r\n", "-LIMIT too many\r\n", "-FLOOR\r\n", "-CORRUPT a\r\n"]
        {
            assert!(is_misdelivered(check_reply(id, read(line), &"redis")), "{line:?}");
        }
        let error = check_reply(id, read("-NOSCRIPT No matching script.\r\n"), &"redis").unwrap_err();
        assert!(error.is_no_script());
        assert!(
            is_misdelivered(expect_known_script(id, Err::<(), _>(error), &"redis")),
            "it was sent with its source"
        );
        let error = check_reply(id, read("-LOADING soon\r\n"), &"redis").unwrap_err();
        assert_eq!(error.into_error().effect(), Effect::None);
    }

    #[test]
    fn plain_replies_count_only_between_both_ids() {
        let ids = RequestIds::starting_at(0xab);
        let bracket = PingBracket::new(&ids);
        assert_eq!(bracket.wrap([&redis::cmd("TIME")]).len(), 3);
        let (one, two) = (text("ab"), text("ac"));
        let unwrap =
            |replies: &[&Value]| bracket.unwrap(replies.iter().copied().cloned().collect(), &"redis");
        assert_eq!(unwrap(&[&one, &Value::Int(7), &two]).unwrap(), [Value::Int(7)]);
        assert_eq!(unwrap(&[&one, &two]).unwrap(), []);
        let seven = Value::Int(7);
        for shifted in
            [&[&seven, &one, &seven][..], &[&one, &one, &seven], &[&one, &seven, &one], &[&two], &[]]
        {
            assert!(is_misdelivered(unwrap(shifted)), "{shifted:?}");
        }
        let loading = read("-LOADING soon\r\n");
        let error = unwrap(&[&loading, &loading, &loading]).unwrap_err();
        assert_eq!(error.into_error().effect(), Effect::None);
        // No server replies so to a PING: this was the reply to a script.
        assert!(is_misdelivered(unwrap(&[&one, &seven, &read("-NOSCRIPT No matching script.\r\n")])));
    }
}
