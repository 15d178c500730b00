//! The cookie in which a browser keeps a person's token.
//!
//! With HTTPS, or behind a proxy that adds it, it is `__Host-leasehold`: browsers take a cookie of that name only from this very host,
//! over HTTPS, so no other host of the domain can plant one. Over plain HTTP on a loopback address there is no HTTPS to ask for, and some
//! browsers refuse such a cookie there: it is `leasehold`, and only there it counts (ADR 0087).

use hyper::{
    HeaderMap, Uri,
    header::{COOKIE, HOST, HeaderValue},
};

use crate::guard;

const HOST_COOKIE: &str = "__Host-leasehold";
const LOOPBACK_COOKIE: &str = "leasehold";

/// The form that the cookie has for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionCookie {
    /// Over HTTPS, as the browser sees it.
    Secure,
    /// Over plain HTTP, from this machine.
    Loopback,
}

impl SessionCookie {
    /// The form for this request. `has_tls`: this server itself speaks HTTPS.
    pub(crate) fn of(uri: &Uri, headers: &HeaderMap, has_tls: bool) -> SessionCookie {
        let host = uri.authority().map(|authority| authority.as_str());
        let host = host.or_else(|| headers.get(HOST)?.to_str().ok()).unwrap_or("");
        match !has_tls && guard::is_loopback_host(host) {
            true => SessionCookie::Loopback,
            false => SessionCookie::Secure,
        }
    }

    fn name(self) -> &'static str {
        match self {
            SessionCookie::Secure => HOST_COOKIE,
            SessionCookie::Loopback => LOOPBACK_COOKIE,
        }
    }

    /// The token in the cookies of a request.
    pub(crate) fn read(self, headers: &HeaderMap) -> Option<String> {
        // HTTP/2 may send each cookie in a header of its own.
        let given = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = given.flat_map(|list| list.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.name()).map(|(_, token)| token.to_owned())
    }

    /// The header that gives the browser this token. It keeps it until it is closed. `None` if the token is none.
    pub(crate) fn keep(self, token: &str) -> Option<HeaderValue> {
        let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let mut header = is_plain.then(|| self.header(token, ""))?;
        header.set_sensitive(true);
        Some(header)
    }

    /// The header that takes it away.
    pub(crate) fn remove(self) -> HeaderValue {
        self.header("", "; Max-Age=0")
    }

    fn header(self, value: &str, more: &str) -> HeaderValue {
        let secure = if self == SessionCookie::Secure { "; Secure" } else { "" };
        let text = format!("{}={value}; Path=/{secure}; HttpOnly; SameSite=Strict{more}", self.name());
        HeaderValue::from_str(&text).expect("the value has letters, digits and underscores")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(host: &str, has_tls: bool) -> SessionCookie {
        let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
        SessionCookie::of(&Uri::from_static("/v1/login"), &headers, has_tls)
    }

    #[test]
    fn only_plain_http_on_loopback_has_a_cookie_without_https() {
        assert_eq!(cookie("127.0.0.1:7420", false), SessionCookie::Loopback);
        assert_eq!(cookie("localhost", false), SessionCookie::Loopback);
        assert_eq!(cookie("127.0.0.1:7420", true), SessionCookie::Secure);
        assert_eq!(cookie("leases.example.org", false), SessionCookie::Secure, "a proxy adds HTTPS");
        let text = SessionCookie::Secure.keep("lh_1_2").unwrap();
        assert_eq!(text, "__Host-leasehold=lh_1_2; Path=/; Secure; HttpOnly; SameSite=Strict");
        let text = SessionCookie::Loopback.keep("lh_1_2").unwrap();
        assert_eq!(text, "leasehold=lh_1_2; Path=/; HttpOnly; SameSite=Strict");
        assert_eq!(SessionCookie::Secure.keep("x; Domain=evil"), None);
    }

    #[test]
    fn the_token_is_found_among_other_cookies() {
        let read = |form: SessionCookie, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(COOKIE, line.parse().unwrap());
            }
            form.read(&headers)
        };
        let found = Some("lh_1".to_owned());
        assert_eq!(read(SessionCookie::Secure, &["a=b; __Host-leasehold=lh_1; c=d"]), found);
        assert_eq!(read(SessionCookie::Secure, &["a=b", "__Host-leasehold=lh_1"]), found);
        assert_eq!(
            read(SessionCookie::Secure, &["leasehold=lh_1"]),
            None,
            "another host may have planted it"
        );
        assert_eq!(read(SessionCookie::Loopback, &["leasehold=lh_1"]), found);
        assert_eq!(read(SessionCookie::Loopback, &["", "=", "leasehold", "xleasehold=1"]), None);
    }
}
