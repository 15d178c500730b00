//! The page at `/` and its files: for everyone, with headers that keep what others wrote from becoming a script.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, sync::Arc};

use http_body_util::Full;
use hyper::Request;
use leasehold::{Memory, System};
use leasehold_server::{Access, Server, TokenFile};
use support::{Answer, TestServer, config};

async fn send(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.connect().await.send(request.body(Full::default()).unwrap()).await.unwrap()
}

/// The files of the folder, with their addresses.
fn files() -> Vec<(String, Vec<u8>)> {
    let entries =
        fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard")).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let named =
        files.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()));
    named
        .filter(|(name, _)| !name.starts_with('.'))
        .map(|(name, bytes)| (format!("/assets/{name}"), bytes))
        .collect()
}

#[tokio::test]
async fn the_page_and_its_files_are_there_for_everyone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    fs::write(&path, "").unwrap();
    let mut config = config();
    config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    let page = send(&server, "GET", "/", &[("authorization", "Bearer nonsense")]).await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    for (path, bytes) in files() {
        let file = send(&server, "GET", &path, &[]).await;
        assert_eq!((file.status, file.text.as_bytes()), (200, &*bytes), "{path}");
        let head = send(&server, "HEAD", &path, &[]).await;
        assert_eq!((head.status, head.text.as_str(), head.header("etag")), (200, "", file.header("etag")));
        let known = send(&server, "GET", &path, &[("if-none-match", file.header("etag"))]).await;
        assert_eq!((known.status, known.text.as_str(), known.header("content-type")), (304, "", ""));
        assert_eq!(known.header("etag"), file.header("etag"));
        let other = send(&server, "GET", &path, &[("if-none-match", "\"other\"")]).await;
        assert_eq!(other.status, 200);
    }
    let robots = send(&server, "GET", "/robots.txt", &[]).await;
    assert_eq!(robots.text, "User-agent: *\nDisallow: /\n");
}

#[tokio::test]
async fn no_script_comes_from_elsewhere_or_from_a_text() {
    let server = TestServer::start().await;
    for path in files().iter().map(|(path, _)| path.as_str()).chain(["/"]) {
        let answer = send(&server, "GET", path, &[]).await;
        let policy: Vec<&str> = answer.header("content-security-policy").split("; ").collect();
        for part in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"] {
            assert!(policy.contains(&part), "{path}: {policy:?}");
        }
        for part in ["require-trusted-types-for 'script'", "trusted-types 'none'", "frame-ancestors 'none'"] {
            assert!(policy.contains(&part), "{path}: {policy:?}");
        }
        assert!(!policy.iter().any(|part| part.contains("unsafe") || part.contains("http")), "{policy:?}");
        for (name, value) in [
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(answer.header(name), value, "{path}");
        }
        assert!(answer.header("permissions-policy").contains("camera=()"));
    }
}

#[tokio::test]
async fn other_hosts_methods_and_names_are_refused() {
    let server = TestServer::start().await;
    assert_eq!(send(&server, "GET", "/", &[("host", "evil.example")]).await.problem(), (421, "wrong_host"));
    for path in
        ["/assets/", "/assets/nothing.js", "/assets/../Cargo.toml", "/assets/types", "/assets/%2e%2e/x"]
    {
        assert_eq!(send(&server, "GET", path, &[]).await.problem(), (404, "not_found"), "{path}");
    }
    let refused = send(&server, "POST", "/", &[]).await;
    assert_eq!((refused.problem(), refused.header("allow")), ((405, "method_not_allowed"), "GET, HEAD"));
}

#[tokio::test]
async fn the_address_for_metrics_has_no_page() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(Arc::new(Memory::new()), Arc::new(System::current()), config()).unwrap();
    let _server = TestServer::run(server.with_metrics(listener)).await;
    let mut connection = support::Connection::http1(address).await;
    for path in ["/", "/assets/index.html", "/v1/login"] {
        assert_eq!(connection.get(path).await.problem(), (404, "not_found"), "{path}");
    }
}
