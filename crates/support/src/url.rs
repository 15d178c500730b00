//! The parts that the URLs of all backends have in common.
//!
//! No error repeats a part of a URL: it may hold a password.

use std::{borrow::Cow, time::Duration};

use leasehold_core::{Error, ErrorKind, Result};

/// An error about a URL.
pub fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// The bytes of a percent-encoded text, none of them zero.
///
/// # Errors
/// `Invalid` if a `%` is not followed by two hex digits, or a byte is zero.
pub fn decode_bytes(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        match digit().zip(digit()).and_then(|(high, low)| u8::try_from(high * 16 + low).ok()) {
            Some(byte) => bytes.push(byte),
            None => return Err(invalid("a % is followed by two hex digits: write %25 for the sign itself")),
        }
    }
    if bytes.contains(&0) { Err(invalid("there are no zero bytes in a URL")) } else { Ok(bytes) }
}

/// A percent-encoded text.
///
/// # Errors
/// As [`decode_bytes`]; `Invalid` if it is not UTF-8.
pub fn decode(text: &str) -> Result<String> {
    String::from_utf8(decode_bytes(text)?).map_err(|_| invalid("what is percent-encoded is not UTF-8"))
}

/// Takes one option out of a URL: the URL without it, and the decoded value.
///
/// # Errors
/// `Invalid` if the option is there twice, or its value cannot be decoded.
pub fn take_option(url: &str, name: &str) -> Result<(String, Option<String>)> {
    let Some((start, options)) = url.split_once('?') else { return Ok((url.to_owned(), None)) };
    let is_named = |option: &&str| option.split_once('=').map_or(*option, |(name, _)| name) == name;
    let (taken, kept): (Vec<_>, Vec<_>) = options.split('&').partition(is_named);
    let value = match taken.as_slice() {
        [] => return Ok((url.to_owned(), None)),
        [one] => decode(one.split_once('=').map_or("", |(_, value)| value))?,
        _ => return Err(invalid(format!("the option {name} is there twice: write it once"))),
    };
    let kept: Vec<_> = kept.into_iter().filter(|option| !option.is_empty()).collect();
    let rest = if kept.is_empty() { start.to_owned() } else { format!("{start}?{}", kept.join("&")) };
    Ok((rest, Some(value)))
}

/// The duration that an option has: `500ms`, `2s`, `10m`, `1h`.
///
/// # Errors
/// `Invalid`, with the name of the option.
pub fn duration(name: &str, text: &str) -> Result<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<u32>().ok().map(u64::from);
    match (number, unit) {
        (Some(number), "ms") => Ok(Duration::from_millis(number)),
        (Some(number), "s") => Ok(Duration::from_secs(number)),
        (Some(number), "m") => Ok(Duration::from_secs(number * 60)),
        (Some(number), "h") => Ok(Duration::from_secs(number * 3600)),
        _ => Err(invalid(format!("{name}={text:.40} is not a duration: write 500ms, 5s, 10m or 1h"))),
    }
}

/// A host and its port, as in `host`, `host:6379` and `[::1]:6379`. `None` if there is no host.
///
/// # Errors
/// `Invalid` if the port is no port.
pub fn host(text: &str, default_port: u16) -> Result<Option<(&str, u16)>> {
    // An address of IPv6 stands in brackets.
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(default_port), str::parse);
    let port = port.map_err(|_| invalid("the port is a number up to 65535"))?;
    Ok(Some((host, port)).filter(|(host, _)| !host.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_reads_back() {
        assert_eq!(decode("p%40ss%3Aw%25rd").unwrap(), "p@ss:w%rd");
        assert_eq!(decode_bytes("%ff%FE").unwrap(), [0xff, 0xfe]);
        for wrong in ["%", "%4", "%4g", "%00", "a\0b", "%ff", "%+1", "%zz"] {
            let error = decode(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}");
        }
    }

    #[test]
    fn an_option_is_taken_out_of_a_url() {
        let table = [
            ("sqlite:/a", "sqlite:/a", None),
            ("sqlite:/a?namespace=acme", "sqlite:/a", Some("acme")),
            ("redis://h/?timeout=1s&namespace=a%2Eb&tls=true", "redis://h/?timeout=1s&tls=true", Some("a.b")),
            ("redis://h/?my_namespace=x", "redis://h/?my_namespace=x", None),
            ("redis://h/?namespace", "redis://h/", Some("")),
        ];
        for (url, rest, value) in table {
            assert_eq!(take_option(url, "namespace").unwrap(), (rest.into(), value.map(Into::into)), "{url}");
        }
        assert!(take_option("x:?namespace=a&namespace=b", "namespace").is_err());
    }

    #[test]
    fn a_duration_has_a_unit() {
        let table = [("0ms", 0), ("500ms", 500), ("2s", 2000), ("10m", 600_000), ("1h", 3_600_000)];
        for (text, millis) in table {
            assert_eq!(duration("timeout", text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for wrong in ["", "5", "s", "-1s", "1d", "1.5s", "99999999999s", "5 s"] {
            assert!(duration("timeout", wrong).unwrap_err().to_string().contains("timeout="), "{wrong}");
        }
        assert_eq!(duration("gate", "4294967295h").unwrap(), Duration::from_secs(4_294_967_295 * 3600));
    }

    #[test]
    fn a_host_may_have_a_port_and_brackets() {
        let table = [("a", ("a", 7)), ("a:1", ("a", 1)), ("[::1]", ("::1", 7)), ("[::1]:2", ("::1", 2))];
        for (text, expected) in table {
            assert_eq!(host(text, 7).unwrap(), Some(expected), "{text}");
        }
        assert_eq!((host("", 7).unwrap(), host(":1", 7).unwrap()), (None, None));
        for wrong in ["a:", "a:x", "a:65536", "[::1]:x"] {
            assert!(host(wrong, 7).is_err(), "{wrong}");
        }
    }
}
