//! The dashboard: its page and the files that it loads, from the folder `dashboard`. They are the same for everyone and say nothing of the
//! store, so they need no token; the page asks for one.
//!
//! `build.rs` lists the folder. The addresses in the page are relative, because a proxy may serve it below a prefix.

use std::sync::OnceLock;

use bytes::Bytes;
use hyper::{
    HeaderMap, Method,
    header::{CACHE_CONTROL, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH},
    http::request::Parts,
};
use leasehold_api::{Problem, ProblemKind};
use sha2::{Digest as _, Sha256};

use crate::answer::Answer;

/// The name of these paths in metrics and in the log.
pub(crate) const ROUTE: &str = "/assets";
/// The page that `/` answers with.
const PAGE: &str = "index.html";
/// Nothing here is for search engines.
const ROBOTS: &[u8] = b"User-agent: *\nDisallow: /\n";
/// The names of the files and what is in them.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/dashboard.rs"));

/// What a browser lets the page do: load the scripts, the style sheet and pictures of this server, and ask this server. No text becomes
/// HTML or a script, because the labels and notes that it shows are written by others.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; frame-ancestors 'none'; \
                      base-uri 'none'; form-action 'self'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
    (
        "permissions-policy",
        "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), microphone=(), midi=(), \
         payment=(), usb=()",
    ),
];

/// A file of the dashboard.
struct Asset {
    name: &'static str,
    bytes: &'static [u8],
    /// A hash of the bytes, in quotes: another version of the server has another one.
    tag: HeaderValue,
}

fn assets() -> &'static [Asset] {
    static ASSETS: OnceLock<Vec<Asset>> = OnceLock::new();
    ASSETS.get_or_init(|| {
        let robots = ("robots.txt", ROBOTS);
        FILES
            .iter()
            .copied()
            .chain([robots])
            .map(|(name, bytes)| Asset { name, bytes, tag: tag(bytes) })
            .collect()
    })
}

fn tag(bytes: &[u8]) -> HeaderValue {
    let digest = Sha256::digest(bytes);
    let hex: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{hex}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

/// The answer, if the path is one of the dashboard.
pub(crate) fn answer(head: &Parts) -> Option<Answer> {
    let name = match head.uri.path() {
        "/" => PAGE,
        "/robots.txt" => "robots.txt",
        path => path.strip_prefix("/assets/")?,
    };
    let Some(asset) = assets().iter().find(|asset| asset.name == name) else {
        let detail = format!("there is no {:.80}", head.uri.path());
        return Some(Problem::new(ProblemKind::NotFound, detail).into());
    };
    if !matches!(head.method, Method::GET | Method::HEAD) {
        let detail = "the dashboard takes GET and HEAD";
        let mut answer: Answer = Problem::new(ProblemKind::MethodNotAllowed, detail).into();
        answer.allow = Some("GET, HEAD".to_owned());
        return Some(answer);
    }
    let mut answer = match is_known(&head.headers, &asset.tag) {
        true => Answer::empty(304),
        false => Answer::text(200, Bytes::from_static(asset.bytes)).of_type(content_type(asset.name)),
    };
    answer.headers.insert(ETAG, asset.tag.clone());
    // A browser asks each time whether it has the newest version: a server may be replaced by another version at any time.
    answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    for (name, value) in HEADERS {
        answer.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Some(answer)
}

/// Whether the browser has this version.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let given = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = given.flat_map(|list| list.split(',')).map(str::trim);
    // A proxy that compresses makes a tag weak.
    tags.any(|given| given == "*" || given.strip_prefix("W/").unwrap_or(given).as_bytes() == tag.as_bytes())
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_of_the_folder_is_served_and_nothing_else() {
        let mut there: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard"))
            .unwrap()
            .map(Result::unwrap)
            .filter(|entry| entry.file_type().unwrap().is_file())
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        there.sort();
        assert_eq!(FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>(), there);
        assert!(there.iter().any(|name| name == PAGE));
        for (name, _) in FILES {
            assert_ne!(content_type(name), "application/octet-stream", "{name}: which content type has it?");
        }
    }

    #[test]
    fn a_version_is_known_by_its_tag() {
        let tag = tag(b"x");
        let text = tag.to_str().unwrap().to_owned();
        let is_known =
            |given: &str| is_known(&HeaderMap::from_iter([(IF_NONE_MATCH, given.parse().unwrap())]), &tag);
        assert!(is_known(&text) && is_known("*"));
        assert!(is_known(&format!("\"other\", W/{text}")));
        assert!(!is_known("\"other\"") && !is_known(text.trim_matches('"')));
    }
}
