//! The format of a stored response: status, a few headers, body. Cookies and other headers that are meant for
//! one client are not stored.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};

/// The headers that are stored, by number. The number is part of the format: only append.
const STORED: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::CONTENT_LANGUAGE,
    header::CONTENT_ENCODING,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LOCATION,
];

/// The version of this format.
const FORMAT: u8 = 1;
/// Stands in place of the number of a header, before the body.
const END_OF_HEADERS: u8 = u8::MAX;

/// Writes a response: format, status, then number, length and value of each header, then the body.
pub(super) fn write(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    bytes.extend(status.as_u16().to_be_bytes());
    for (number, name) in (0_u8..).zip(&STORED) {
        if let Some(value) = headers.get(name).filter(|value| value.len() <= usize::from(u16::MAX)) {
            bytes.push(number);
            bytes.extend(u16::try_from(value.len()).unwrap_or(0).to_be_bytes());
            bytes.extend(value.as_bytes());
        }
    }
    bytes.push(END_OF_HEADERS);
    bytes.extend(body);
    bytes
}

/// Reads a stored response; `None` if it has another format.
pub(super) fn read(stored: Vec<u8>) -> Option<Response<Bytes>> {
    let stored = Bytes::from(stored);
    let (&version, mut rest) = stored.split_first()?;
    let (status, after) = rest.split_first_chunk::<2>()?;
    rest = after;
    let mut response = Response::new(Bytes::new());
    *response.status_mut() =
        StatusCode::from_u16(u16::from_be_bytes(*status)).ok().filter(|_| version == FORMAT)?;
    loop {
        let (&number, after) = rest.split_first()?;
        if number == END_OF_HEADERS {
            *response.body_mut() = stored.slice_ref(after);
            return Some(response);
        }
        let (length, after) = after.split_first_chunk::<2>()?;
        let (value, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let name = STORED.get(usize::from(number))?;
        response.headers_mut().insert(name, HeaderValue::from_bytes(value).ok()?);
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_response_has_no_headers_that_were_for_one_client() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::LOCATION, HeaderValue::from_static("/orders/42"));
        headers.insert(header::SET_COOKIE, HeaderValue::from_static("session=secret"));
        let stored = write(StatusCode::CREATED, &headers, b"{\"id\":42}");
        let read_back = read(stored.clone()).unwrap();
        assert_eq!((read_back.status(), &read_back.body()[..]), (StatusCode::CREATED, &b"{\"id\":42}"[..]));
        assert_eq!(read_back.headers().len(), 2);
        assert_eq!(read_back.headers()[header::LOCATION], "/orders/42");
        assert!(!String::from_utf8_lossy(&stored).contains("secret"));
        for cut in 0..stored.len() - b"{\"id\":42}".len() {
            assert!(read(stored[..cut].to_vec()).is_none(), "{cut}");
        }
        assert!(read(vec![2, 0, 200, 255]).is_none(), "another version");
    }
}
