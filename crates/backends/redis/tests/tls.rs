//! TLS: a real handshake, certificates that are refused, and certificates that change under way.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use common::{LONG, PATIENCE, claim, client, eventually, granted, in_time, open, release, renew, report};
use leasehold::{Backend, Effect, Error, ErrorKind, Released, Renewal, System};
use leasehold_redis::{Config, Redis};
use leasehold_testkit::servers::RedisServer;

/// An authority, and what it has signed.
struct Authority {
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Authority {
        let authority = Authority { folder: tempfile::tempdir().unwrap() };
        authority.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem -days 2 -subj \
             /CN=authority",
        );
        authority
    }

    fn openssl(&self, args: &str) {
        let output = Command::new("openssl")
            .args(args.split_whitespace())
            .current_dir(self.folder.path())
            .output()
            .expect("the package openssl is installed");
        assert!(output.status.success(), "openssl {args}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate for these names, valid for so many days; if that is negative, it has expired.
    fn sign(&self, name: &str, names: &str, days: i32) -> Certificate {
        std::fs::write(self.path("extensions"), format!("subjectAltName={names}\n")).unwrap();
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key -out {name}.csr -subj /CN=server"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days {days} -extfile \
             extensions"
        ));
        Certificate { file: self.path(&format!("{name}.pem")), key: self.path(&format!("{name}.key")) }
    }

    fn good(&self) -> Certificate {
        self.sign("good", "DNS:localhost,IP:127.0.0.1", 2)
    }
}

struct Certificate {
    file: PathBuf,
    key: PathBuf,
}

/// A server that speaks TLS on one port, and plainly to the test on another.
struct Server {
    plain: RedisServer,
    port: u16,
}

impl Server {
    fn start(authority: &Authority, shows: &Certificate) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = |path: &Path| path.display().to_string();
        let plain = RedisServer::with(&[
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &text(&shows.file),
            "--tls-key-file",
            &text(&shows.key),
            "--tls-ca-cert-file",
            &text(&authority.path("ca.pem")),
            "--tls-auth-clients",
            "no",
        ]);
        Server { plain, port }
    }

    fn url(&self, host: &str, trusts: &Authority) -> String {
        format!("rediss://{host}:{}/?ca_file={}", self.port, trusts.path("ca.pem").display())
    }

    /// Shows another certificate from now on.
    fn show(&self, certificate: &Certificate) {
        let (file, key) = (certificate.file.to_str().unwrap(), certificate.key.to_str().unwrap());
        let changed = self.plain.command(&["CONFIG", "SET", "tls-cert-file", file, "tls-key-file", key]);
        assert_eq!(changed, "OK");
    }

    fn hang_up(&self) {
        self.plain.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        self.plain.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
}

async fn refused(url: &str) -> Error {
    let config = Config::parse(url).unwrap();
    let error = Redis::connect(config, Arc::new(System::current())).await.expect_err(url);
    assert_eq!(error.effect(), Effect::None, "{error}");
    error
}

#[tokio::test]
async fn everything_travels_by_tls_and_wake_ups_do_too() {
    let authority = Authority::new();
    let server = Server::start(&authority, &authority.good());
    for host in ["localhost", "127.0.0.1"] {
        let redis = open(&server.url(host, &authority)).await;
        let ours = claim(&report(), LONG);
        granted(&redis, &ours).await;
        assert!(matches!(renew(&redis, ours.reference(), LONG).await, Renewal::Kept(_)));
        assert_eq!(release(&redis, &ours).await, Released::Now);
    }
    let url = server.url("localhost", &authority);
    let (first, second) = (client(&url).await, client(&url).await);
    let held = first.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(second.lease("report", "42").ttl(LONG).wait(PATIENCE).acquire());
    eventually("the other one waits, and listens", || async {
        let line = first.look("report", "42").await.unwrap().line_length;
        line == 1 && !server.plain.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).is_empty()
    })
    .await;
    held.release().await.unwrap();
    in_time("the next grant", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_to_be_trusted_is_refused_and_the_error_says_why() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = Server::start(&authority, &authority.good());
    let expects = async |url: &str, word: &str| {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
    };
    expects(&server.url("localhost", &other), "issuer that is not trusted").await;
    expects(&format!("rediss://localhost:{}/", server.port), "issuer that is not trusted").await;
    // A server without TLS waits for the rest of a command.
    let plain = format!("rediss://localhost:{}/?connect_timeout=300ms", server.plain.port());
    expects(&plain, "no answer in time").await;
    server.show(&authority.sign("elsewhere", "DNS:cache.internal", 2));
    expects(&server.url("localhost", &authority), "for another host name").await;
    server.show(&authority.sign("old", "DNS:localhost", -1));
    expects(&server.url("localhost", &authority), "has expired").await;
}

#[tokio::test]
async fn a_file_of_certificates_that_is_none_is_named() {
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
async fn a_certificate_that_expires_harms_only_new_connections_and_a_new_one_heals() {
    let authority = Authority::new();
    let (good, old) = (authority.good(), authority.sign("old", "DNS:localhost", -1));
    let server = Server::start(&authority, &good);
    let url = server.url("localhost", &authority);
    let (redis, leases) = (open(&url).await, client(&url).await);
    let ours = claim(&report(), LONG);
    granted(&redis, &ours).await;
    let short = leases.lease("report", "43").ttl(Duration::from_secs(4)).acquire().await.unwrap();

    server.show(&old);
    assert!(matches!(renew(&redis, ours.reference(), LONG).await, Renewal::Kept(_)), "what stands goes on");

    server.hang_up();
    // The first request may still be on its way when the server hangs up; those after it need a new connection.
    eventually("the certificate is refused", || async {
        let error = redis.acquire(&ours).await.expect_err("the server shows an old certificate");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "it may pass: {error}");
        error.effect() == Effect::None && error.to_string().contains("has expired")
    })
    .await;
    in_time("the loss", short.ended()).await;
    assert!(short.check().is_err());

    server.show(&good);
    eventually("an answer", || async { redis.acquire(&ours).await.is_ok() }).await;
    assert!(
        matches!(renew(&redis, ours.reference(), LONG).await, Renewal::Kept(_)),
        "it was kept all the while"
    );
    let again = in_time("a grant", leases.lease("report", "43").wait(PATIENCE).acquire()).await.unwrap();
    assert!(again.token() > short.token());
}
