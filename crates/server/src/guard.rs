//! Checks on every request before its route: the host that it is for, and the page that sent it.

use std::net::IpAddr;

use hyper::{
    HeaderMap, Uri,
    header::{HOST, ORIGIN},
};
use leasehold_api::{Problem, ProblemKind};

/// Refuses a request for a host that is not this server's. A page on the web can have its own name point to this address (DNS
/// rebinding): then its scripts count as "same origin", and only the name tells.
pub(crate) fn check_host(uri: &Uri, headers: &HeaderMap, hosts: &[String]) -> Result<(), Problem> {
    let wrong = |host: &str| {
        let shown: String = host.chars().take(80).collect();
        Problem::new(ProblemKind::WrongHost, format!("the request is for the host {shown:?}"))
    };
    // HTTP/2 has the host in the URI, HTTP/1.1 in a header.
    let mut given = headers.get_all(HOST).iter();
    let authority = match (uri.authority(), given.next()) {
        (Some(authority), _) => authority.as_str(),
        (None, Some(host)) => host.to_str().map_err(|_| wrong("?"))?,
        (None, None) => return Err(wrong("")),
    };
    if given.next().is_some() {
        return Err(wrong("several"));
    }
    let host = without_port(authority);
    let is_ours = is_loopback(host) || hosts.iter().any(|ours| ours.eq_ignore_ascii_case(host));
    if is_ours { Ok(()) } else { Err(wrong(host)) }
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        // `[::1]:7420`, `localhost:7420`; not `[::1]`.
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Whether this `host` or `host:port` names this machine.
pub(crate) fn is_loopback_host(authority: &str) -> bool {
    is_loopback(without_port(authority))
}

fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Refuses a request that a page of another site has sent. For callers that prove themselves by what a browser adds on its own, or
/// not at all.
pub(crate) fn check_browser(uri: &Uri, headers: &HeaderMap, hosts: &[String]) -> Result<(), Problem> {
    let refused = |what: String| {
        Err(Problem::new(ProblemKind::Denied, what).with_hint("open the page of this server itself"))
    };
    let fetch_site = headers.get("sec-fetch-site").map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = fetch_site.filter(|site| !matches!(*site, "same-origin" | "none")) {
        return refused(format!(
            "a page of another site sent this (Sec-Fetch-Site: {})",
            site.chars().take(20).collect::<String>()
        ));
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or("?");
    let host = origin.split_once("://").map_or("", |(_, authority)| authority);
    let own =
        uri.authority().map(|authority| authority.as_str()).or_else(|| headers.get(HOST)?.to_str().ok());
    // The port counts: another server on the same host is another origin. Behind a proxy the public name is ours, too.
    let is_own = own.is_some_and(|own| own.eq_ignore_ascii_case(host));
    let is_public = hosts.iter().any(|ours| ours.eq_ignore_ascii_case(without_port(host)));
    if is_own || is_public { Ok(()) } else { refused("a page of another origin sent this".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (hyper::header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn loopback_names_and_the_public_name_are_ours() {
        let (uri, ours) = (Uri::from_static("/v1/info"), ["leases.example.org".to_owned()]);
        for host in [
            "localhost",
            "LOCALHOST:7420",
            "127.0.0.1:7420",
            "127.9.9.9",
            "[::1]",
            "[::1]:7420",
            "leases.example.ORG:443",
        ] {
            assert!(check_host(&uri, &headers(&[("host", host)]), &ours).is_ok(), "{host}");
        }
        for host in [
            "evil.example.org",
            "localhost.evil.example",
            "10.0.0.1:7420",
            "",
            "leases.example.org.evil:1",
            "[::2]:1",
        ] {
            let problem = check_host(&uri, &headers(&[("host", host)]), &ours).expect_err(host);
            assert_eq!(problem.status, 421);
        }
        assert!(check_host(&uri, &headers(&[]), &ours).is_err());
        assert!(check_host(&uri, &headers(&[("host", "localhost"), ("host", "evil")]), &ours).is_err());
        let http2 = Uri::from_static("http://localhost:1/v1/info");
        assert!(check_host(&http2, &headers(&[]), &[]).is_ok());
        assert!(
            check_host(&Uri::from_static("http://evil/v1/info"), &headers(&[("host", "localhost")]), &[])
                .is_err()
        );
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let (uri, host) = (Uri::from_static("/v1/info"), ("host", "localhost:7420"));
        for good in [
            vec![host],
            vec![host, ("sec-fetch-site", "same-origin"), ("origin", "http://localhost:7420")],
            vec![host, ("sec-fetch-site", "none")],
            vec![host, ("origin", "https://leases.example.org")],
        ] {
            assert!(
                check_browser(&uri, &headers(&good), &["leases.example.org".to_owned()]).is_ok(),
                "{good:?}"
            );
        }
        for bad in [
            vec![host, ("sec-fetch-site", "cross-site")],
            vec![host, ("sec-fetch-site", "same-site")],
            vec![host, ("origin", "https://evil.example")],
            vec![host, ("origin", "null")],
            vec![host, ("origin", "http://localhost:8080")],
        ] {
            let problem = check_browser(&uri, &headers(&bad), &[]).unwrap_err();
            assert_eq!((problem.status, problem.kind.as_str()), (403, "denied"), "{bad:?}");
        }
    }
}
