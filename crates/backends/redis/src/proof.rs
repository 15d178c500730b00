//! How an answer proves which request it belongs to. ADR 0033.
//!
//! Redis and its driver match answers to requests by their order on a connection. A pool or a proxy in between can break
//! that order: deliver an old answer again, every answer twice, or the answer of another client.
//!
//! - **Scripts**: every call has a [`RequestId`] as its last argument, and every script returns it after the fields of its
//!   reply. Errors that our scripts return (`LIMIT`, `FLOOR`, `CORRUPT`) are such a field.
//! - **Errors of the server itself** (`-LOADING`, `-MOVED`, `-NOSCRIPT`, …) cannot name a request. They are believed, because
//!   none of them is a grant, a renewal or a release, and believing a wrong one breaks no promise: a grant that nobody knows
//!   of ends with its ttl, or is found again by asking with the same owner token; a renewal that failed leaves the deadline
//!   where it was; a release that failed is repeated; sending a call on after `-MOVED` or `-NOSCRIPT` repeats a verb that
//!   may be repeated. (An operator's command that names no token may then be carried out twice.)
//! - **Plain commands** cannot return an id. They travel between two `PING id` in one pipeline: if both ids come back in
//!   their places, so do the answers between them. This proves the order, not each answer; no grant rests on it alone.

use std::fmt;

use leasehold_core::{Environment, RequestId, RequestIds};
use redis::{Cmd, Pipeline, RedisWrite as _, Value};

use crate::error::Fault;

/// Ids that no other client uses: from the secure source, because other clients may draw from the same seed for jitter.
pub(crate) fn ids(environment: &dyn Environment) -> RequestIds {
    let mut start = [0; 8];
    environment.fill(&mut start);
    RequestIds::starting_at(u64::from_be_bytes(start))
}

/// The fields that a script replied, if the answer names this request.
pub(crate) fn reply_to(id: RequestId, answer: Value, server: &dyn fmt::Display) -> Result<Value, Fault> {
    match answer {
        Value::Array(mut fields) => {
            check(id, &fields.pop().unwrap_or(Value::Nil), server)?;
            Value::Array(fields).extract_error().map_err(Fault::Command)
        }
        Value::ServerError(error) if !is_ours(error.code()) => Err(Fault::Command(error.into())),
        _ => Err(mixed_up(id, server)),
    }
}

/// The answer to a script that was sent with its text. Such a script is known, so an error that it is not is of another
/// request.
pub(crate) fn sent_with_text<T>(
    id: RequestId,
    outcome: Result<T, Fault>,
    server: &dyn fmt::Display,
) -> Result<T, Fault> {
    outcome.map_err(|fault| if fault.is_no_script() { mixed_up(id, server) } else { fault })
}

/// An error that our scripts return comes with an id, or it is not of this request.
fn is_ours(code: &str) -> bool {
    matches!(code, "LIMIT" | "FLOOR" | "CORRUPT")
}

fn check(id: RequestId, named: &Value, server: &dyn fmt::Display) -> Result<(), Fault> {
    let named: &[u8] = if let Value::BulkString(named) = named { named } else { b"" };
    id.check_text(named, server).map_err(Fault::MixedUp)
}

/// The fault of an answer that does not name this request.
pub(crate) fn mixed_up(id: RequestId, server: &dyn fmt::Display) -> Fault {
    check(id, &Value::Nil, server).err().unwrap_or_else(|| Fault::Strange("no id is no answer".to_owned()))
}

/// Adds a new id to a call, as its last argument.
pub(crate) fn number(call: &mut Cmd, ids: &RequestIds) -> RequestId {
    let id = ids.next();
    call.write_arg_fmt(id);
    id
}

/// Two `PING id` around plain commands.
pub(crate) struct Bracket {
    before: RequestId,
    after: RequestId,
}

impl Bracket {
    pub(crate) fn new(ids: &RequestIds) -> Bracket {
        Bracket { before: ids.next(), after: ids.next() }
    }

    /// The commands between the two, ready to be sent.
    pub(crate) fn around<'a>(&self, commands: impl IntoIterator<Item = &'a Cmd>) -> Pipeline {
        let mut pipeline = Pipeline::new();
        pipeline.add_command(ping(self.before));
        commands.into_iter().for_each(|command| {
            pipeline.add_command(command.clone());
        });
        pipeline.add_command(ping(self.after));
        pipeline
    }

    /// The answers between the two, if both ids are where they must be.
    ///
    /// A server that refuses the `PING` (it is loading, or the user may not) refuses all: its error is returned.
    pub(crate) fn open(
        &self,
        mut answers: Vec<Value>,
        server: &dyn fmt::Display,
    ) -> Result<Vec<Value>, Fault> {
        check_ping(self.after, answers.pop(), server)?;
        if answers.is_empty() {
            return Err(mixed_up(self.before, server));
        }
        check_ping(self.before, Some(answers.remove(0)), server)?;
        Ok(answers)
    }
}

/// `PING id`, which is answered with the id.
pub(crate) fn ping(id: RequestId) -> Cmd {
    let mut ping = Cmd::new();
    ping.arg("PING").write_arg_fmt(id);
    ping
}

pub(crate) fn check_ping(
    id: RequestId,
    answer: Option<Value>,
    server: &dyn fmt::Display,
) -> Result<(), Fault> {
    match answer {
        Some(Value::ServerError(error)) if refuses_all(error.code()) => Err(Fault::Command(error.into())),
        answer => check(id, &answer.unwrap_or(Value::Nil), server),
    }
}

/// Whether a server can answer this to a `PING`. Any other error is the answer to another request.
fn refuses_all(code: &str) -> bool {
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

    fn is_mixed_up<T: fmt::Debug>(outcome: Result<T, Fault>) -> bool {
        let fault = outcome.expect_err("it is another's answer");
        let breaks = fault.breaks_connection();
        let error = fault.into_error();
        breaks && (error.kind(), error.effect()) == (ErrorKind::Unavailable, Effect::Unknown)
    }

    #[test]
    fn only_an_answer_that_names_the_request_is_read() {
        let (id, other) = (RequestId::from(0xabc), RequestId::from(0xabd));
        let grant = |id: RequestId| Value::Array(vec![text("granted"), Value::Int(7), text(&id.to_string())]);
        let reply = reply_to(id, grant(id), &"redis").unwrap();
        assert_eq!(reply, Value::Array(vec![text("granted"), Value::Int(7)]));
        assert!(is_mixed_up(reply_to(other, grant(id), &"redis")));
        let strange = [
            Value::Nil,
            Value::Int(1),
            text("abc"),
            Value::Array(vec![]),
            Value::Array(vec![text("granted"), Value::Int(7)]),
            Value::Array(vec![text("granted"), Value::Int(0xabc)]),
            Value::Array(vec![text("abc"), Value::Int(7)]),
        ];
        for answer in strange {
            assert!(is_mixed_up(reply_to(id, answer.clone(), &"redis")), "{answer:?}");
        }
    }

    #[test]
    fn our_own_errors_name_the_request_and_the_servers_cannot() {
        let id = RequestId::from(0xabc);
        let fault = reply_to(id, read("*2\r\n-LIMIT too many\r\n$3\r\nabc\r\n"), &"redis").unwrap_err();
        assert_eq!(fault.into_error().kind(), ErrorKind::Limit);
        for line in
            ["*2\r\n-LIMIT too many\r\n$3\r\nabd\r\n", "-LIMIT too many\r\n", "-FLOOR\r\n", "-CORRUPT a\r\n"]
        {
            assert!(is_mixed_up(reply_to(id, read(line), &"redis")), "{line:?}");
        }
        let fault = reply_to(id, read("-NOSCRIPT No matching script.\r\n"), &"redis").unwrap_err();
        assert!(fault.is_no_script());
        assert!(is_mixed_up(sent_with_text(id, Err::<(), _>(fault), &"redis")), "it was sent with its text");
        let fault = reply_to(id, read("-LOADING soon\r\n"), &"redis").unwrap_err();
        assert_eq!(fault.into_error().effect(), Effect::None);
    }

    #[test]
    fn plain_answers_count_only_between_both_ids() {
        let ids = RequestIds::starting_at(0xab);
        let bracket = Bracket::new(&ids);
        assert_eq!(bracket.around([&redis::cmd("TIME")]).len(), 3);
        let (one, two) = (text("ab"), text("ac"));
        let open = |answers: &[&Value]| bracket.open(answers.iter().copied().cloned().collect(), &"redis");
        assert_eq!(open(&[&one, &Value::Int(7), &two]).unwrap(), [Value::Int(7)]);
        assert_eq!(open(&[&one, &two]).unwrap(), []);
        let seven = Value::Int(7);
        for shifted in
            [&[&seven, &one, &seven][..], &[&one, &one, &seven], &[&one, &seven, &one], &[&two], &[]]
        {
            assert!(is_mixed_up(open(shifted)), "{shifted:?}");
        }
        let loading = read("-LOADING soon\r\n");
        let fault = open(&[&loading, &loading, &loading]).unwrap_err();
        assert_eq!(fault.into_error().effect(), Effect::None);
        // No server answers a PING so: this was the answer to a script.
        assert!(is_mixed_up(open(&[&one, &seven, &read("-NOSCRIPT No matching script.\r\n")])));
    }
}
