//! Turns errors of Redis into errors of leasehold.

use ::redis::{ErrorKind as Driver, RedisError};
use leasehold_core::{Effect, Error, ErrorKind};

pub(super) fn interpret(error: RedisError) -> Error {
    let (kind, text, effect) = kind_text_and_effect(&error);
    Error::new(kind, text).with_effect(effect).because(error)
}

fn kind_text_and_effect(error: &RedisError) -> (ErrorKind, String, Effect) {
    use {Effect::*, ErrorKind::*};
    let detail = error.detail().unwrap_or_default();
    let (kind, text) = match error.code() {
        // The mark may have been raised before the write failed.
        Some("WRONGTYPE") => {
            return (Invalid, "the key holds a value of another type: use another key".to_owned(), Unknown);
        }
        Some("NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED") => {
            (Denied, format!("Redis denied the access: {detail:.200}"))
        }
        Some("CROSSSLOT") => {
            (Invalid, "the key of the mark and the data key are in different slots".to_owned())
        }
        Some("OOM") => {
            (Unavailable, "the memory of Redis is full: raise maxmemory or delete keys".to_owned())
        }
        Some("ERR") if detail.contains("unknown command") => (
            Unsupported,
            "the server does not support EVALSHA with flags: Redis 7 or later is needed".to_owned(),
        ),
        Some("ERR") => return (Invalid, format!("Redis answered with an error: {detail:.200}"), Unknown),
        Some(code) => (Unavailable, format!("Redis answered {code:.20}: {detail:.200}")),
        Option::None if error.kind() == Driver::AuthenticationFailed => {
            (Denied, "Redis refused the user or the password".to_owned())
        }
        Option::None => return (Unavailable, format!("Redis did not answer: {error}"), Unknown),
    };
    (kind, text, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_kind_and_an_effect() {
        use {Effect::*, ErrorKind::*};
        let table = [
            ("WRONGTYPE Operation against a key", Invalid, Unknown),
            ("NOPERM this user has no permissions", Denied, None),
            ("CROSSSLOT Keys in request don't hash to the same slot", Invalid, None),
            ("OOM command not allowed", Unavailable, None),
            ("READONLY You can't write against a read only replica.", Unavailable, None),
            ("LOADING Redis is loading the dataset in memory", Unavailable, None),
            ("ERR unknown command 'EVALSHA'", Unsupported, None),
            ("ERR user_script:7: attempt to index a nil value", Invalid, Unknown),
        ];
        for (line, kind, effect) in table {
            let value = ::redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            let error = interpret(value.extract_error().unwrap_err());
            assert_eq!((error.kind(), error.effect()), (kind, effect), "{line}");
        }
        let cut = interpret(RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset)));
        assert_eq!((cut.kind(), cut.effect()), (Unavailable, Unknown));
    }
}
