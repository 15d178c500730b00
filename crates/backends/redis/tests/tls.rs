//! TLS: a real handshake, certificates that are refused, and certificates that change while clients are
//! connected.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/authority.rs"]
mod authority;
mod common;

use std::{sync::Arc, time::Duration};

use authority::Authority;
use common::{LONG, TIMEOUT, claim, client, eventually, granted, in_time, open, release, renew, report};
use leasehold::{BackendExt as _, Effect, Error, ErrorKind, Released, Renewal, System};
use leasehold_redis::{Config, Redis};
use leasehold_testkit::servers::{RedisServer, TlsFiles};

/// A server with TLS.
struct TlsServer(RedisServer);

impl TlsServer {
    fn start(files: &TlsFiles) -> TlsServer {
        TlsServer(RedisServer::with_tls(files, &[]))
    }

    fn url(&self, host: &str, trusts: &Authority) -> String {
        format!("rediss://{host}:{}/?{}", self.0.tls_port(), trusts.url_option())
    }

    /// Replaces the certificate of the server.
    fn set_certificate(&self, files: &TlsFiles) {
        let (file, key) = (files.certificate.to_str().unwrap(), files.key.to_str().unwrap());
        let changed = self.0.command(&["CONFIG", "SET", "tls-cert-file", file, "tls-key-file", key]);
        assert_eq!(changed, "OK");
    }

    fn close_connections(&self) {
        self.0.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        self.0.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
}

async fn refused(url: &str) -> Error {
    let config = Config::parse(url).unwrap();
    let error = Redis::connect(config, Arc::new(System::current())).await.expect_err(url);
    assert_eq!(error.effect(), Effect::None, "{error}");
    error
}

#[tokio::test]
async fn requests_and_wake_ups_use_tls() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority.good());
    for host in ["localhost", "127.0.0.1"] {
        let redis = open(&server.url(host, &authority)).await;
        let ours = claim(&report(), LONG);
        granted(&redis, &ours).await;
        assert!(matches!(renew(&redis, ours.reference(), LONG).await, Renewal::Renewed(_)));
        assert_eq!(release(&redis, &ours).await, Released::Now);
    }
    let url = server.url("localhost", &authority);
    let (first, second) = (client(&url).await, client(&url).await);
    let held = first.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(second.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    eventually("the second client waits, and is subscribed", || async {
        let queue_length = first.look("report", "42").await.unwrap().queue_length;
        queue_length == 1 && !server.0.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).is_empty()
    })
    .await;
    held.release().await.unwrap();
    in_time("the next grant", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_untrusted_server_is_refused_and_the_error_says_why() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority.good());
    let is = async |url: &str, kind: ErrorKind, word: &str| {
        let error = refused(url).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    };
    let expects = async |url: &str, word: &str| is(url, ErrorKind::Denied, word).await;
    let untrusted = format!(
        "cannot connect to localhost:{}: its certificate is not trusted: self-signed, or of an unknown issuer; name its \
         CA with ca_file=FILE",
        server.0.tls_port()
    );
    expects(&server.url("localhost", &other), &untrusted).await;
    expects(&format!("rediss://localhost:{}/", server.0.tls_port()), &untrusted).await;
    let plain = format!("rediss://localhost:{}/?connect_timeout=300ms", server.0.port());
    is(&plain, ErrorKind::Unavailable, "answers without TLS").await;
    let plain = format!("redis://localhost:{}/", server.0.tls_port());
    is(&plain, ErrorKind::Unavailable, "if it wants TLS").await;
    server.set_certificate(&authority.sign("elsewhere", "DNS:cache.internal,IP:10.0.0.7", 2));
    expects(&server.url("localhost", &authority), "not for localhost, only for cache.internal, 10.0.0.7")
        .await;
    server.set_certificate(&authority.sign("old", "DNS:localhost", -1));
    expects(&server.url("localhost", &authority), "has expired").await;
}

#[tokio::test]
async fn an_unusable_certificate_file_is_named() {
    let authority = Authority::new();
    let empty = authority.path("empty.pem");
    std::fs::write(&empty, "nothing").unwrap();
    for path in [&empty, &authority.path("missing.pem")] {
        let error = refused(&format!("rediss://localhost/?ca_file={}", path.display())).await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_of_the_client_is_shown_one() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority.good());
    server.0.command(&["CONFIG", "SET", "tls-auth-clients", "yes"]);
    let url = server.url("localhost", &authority);
    let error = refused(&url).await;
    assert!(error.to_string().contains("wants a certificate of the client"), "{error}");

    let with_certificate = |files: &TlsFiles, key: &TlsFiles| {
        format!("{url}&cert_file={}&key_file={}", files.certificate.display(), key.key.display())
    };
    let ours = authority.sign("client", "DNS:client.internal", 2);
    let redis = open(&with_certificate(&ours, &ours)).await;
    granted(&redis, &claim(&report(), LONG)).await;

    let foreign = other.good();
    let error = refused(&with_certificate(&foreign, &foreign)).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("refused the certificate in cert_file"), "{error}");
    let error = refused(&with_certificate(&ours, &foreign)).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "the key does not fit the certificate: {error}");
}

#[tokio::test]
async fn an_expired_certificate_affects_new_connections_only_until_it_is_replaced() {
    let authority = Authority::new();
    let (good, old) = (authority.good(), authority.sign("old", "DNS:localhost", -1));
    let server = TlsServer::start(&good);
    let url = server.url("localhost", &authority);
    let (redis, leases) = (open(&url).await, client(&url).await);
    let ours = claim(&report(), LONG);
    granted(&redis, &ours).await;
    let short = leases.lease("report", "43").ttl(Duration::from_secs(4)).acquire().await.unwrap();

    server.set_certificate(&old);
    assert!(
        matches!(renew(&redis, ours.reference(), LONG).await, Renewal::Renewed(_)),
        "an open connection keeps working"
    );

    server.close_connections();
    // The first request may still use the old connection; the next ones need a new one.
    eventually("the certificate is refused", || async {
        let error = redis.acquire_one(&ours).await.expect_err("the certificate of the server has expired");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "it may pass: {error}");
        error.effect() == Effect::None && error.to_string().contains("has expired")
    })
    .await;
    in_time("the loss", short.ended()).await;
    assert!(short.check().is_err());

    server.set_certificate(&good);
    eventually("an answer", || async { redis.acquire_one(&ours).await.is_ok() }).await;
    assert!(
        matches!(renew(&redis, ours.reference(), LONG).await, Renewal::Renewed(_)),
        "it was renewed all the time"
    );
    let again = in_time("a grant", leases.lease("report", "43").wait(TIMEOUT).acquire()).await.unwrap();
    assert!(again.token() > short.token());
}
