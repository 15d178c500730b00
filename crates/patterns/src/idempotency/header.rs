//! The header `Idempotency-Key`: a string in quotes, as in structured fields (RFC 8941). A bare word is
//! accepted too, because most clients send that.

use http::{HeaderMap, HeaderName};

pub(super) const NAME: HeaderName = HeaderName::from_static("idempotency-key");

/// The most characters of a key.
const LENGTH_MAX: usize = 255;

/// Reads the key; `None` if there is no such header.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut values = headers.get_all(NAME).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("the request has more than one Idempotency-Key");
    }
    let text = value.to_str().map_err(|_| "the Idempotency-Key has characters other than printable ASCII")?;
    let key = match text.strip_prefix('"') {
        Some(rest) => unquoted(rest).ok_or("the Idempotency-Key is not a string in quotes")?,
        None if text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte)) => {
            text.to_owned()
        }
        None => return Err("the Idempotency-Key is neither a string in quotes nor a single word"),
    };
    match key.len() {
        0 => Err("the Idempotency-Key is empty"),
        1..=LENGTH_MAX => Ok(Some(key)),
        _ => Err("the Idempotency-Key has more than 255 characters"),
    }
}

/// The text before the closing quote. None if there is no closing quote, or if anything follows it.
fn unquoted(text: &str) -> Option<String> {
    let (mut key, mut letters) = (String::new(), text.chars());
    loop {
        match letters.next()? {
            '"' => return letters.next().is_none().then_some(key),
            '\\' => key.push(letters.next().filter(|letter| matches!(letter, '"' | '\\'))?),
            letter => key.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read(values: &[&[u8]]) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(NAME, HeaderValue::from_bytes(value).unwrap());
        }
        key(&headers)
    }

    #[test]
    fn a_key_is_a_string_in_quotes_or_a_word() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"\"8e03978e-40d5\""]), Ok(Some("8e03978e-40d5".into())));
        assert_eq!(read(&[b"8e03978e-40d5"]), Ok(Some("8e03978e-40d5".into())));
        assert_eq!(read(&[br#""a \"b\" \\ c""#]), Ok(Some(r#"a "b" \ c"#.into())));
        let long = [b'x'; 256];
        let wrong: [&[&[u8]]; 10] = [
            &[b""],
            &[b"\"\""],
            &[b"\"open"],
            &[b"\"a\" b"],
            &[b"\"a\";p=1"],
            &[br#""a\n""#],
            &[b"two words"],
            &[b"a", b"b"],
            &[&long],
            &["é".as_bytes()],
        ];
        for wrong in wrong {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
