//! TLS, with a certificate made for the test.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::process::Command;

use common::{LONG, claim, connect, eventually, granted, open, report, says};
use leasehold::{Effect, ErrorKind};
use leasehold_testkit::servers::PostgresServer;

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().expect("the program is installed");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A key and a certificate for `localhost`, which is also the one to trust.
fn make_certificate(server: &PostgresServer, name: &str) -> (String, String) {
    let file = |end: &str| server.folder().join(format!("{name}.{end}")).to_string_lossy().into_owned();
    let (key, certificate) = (file("key"), file("crt"));
    let names = "subjectAltName=DNS:localhost";
    let made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"];
    let parts =
        ["-keyout", &key, "-out", &certificate, "-addext", names, "-addext", "basicConstraints=CA:FALSE"];
    run("openssl", &[made.as_slice(), &parts].concat());
    (key, certificate)
}

/// A server that has TLS, and the certificate that shows it.
fn with_certificate() -> (PostgresServer, String) {
    let server = PostgresServer::start();
    let (key, certificate) = make_certificate(&server, "server");
    // The server wants its key to itself; as root, the tests run it as another user.
    let _not_root = Command::new("chown").args(["postgres", &key, &certificate]).output();
    run("chmod", &["600", &key]);
    server.sql(&format!("ALTER SYSTEM SET ssl_cert_file = '{certificate}'"));
    server.sql(&format!("ALTER SYSTEM SET ssl_key_file = '{key}'"));
    server.sql("ALTER SYSTEM SET ssl = on");
    server.sql("SELECT pg_reload_conf()");
    (server, certificate)
}

#[tokio::test]
async fn a_verified_connection_and_the_ways_not_to_have_one() {
    let (server, certificate) = with_certificate();
    let url = |host: &str, options: &str| {
        format!("postgres://postgres@{host}:{}/postgres?connections=1&{options}", server.port())
    };
    let trusted = format!("sslmode=require&ca_file={certificate}");
    eventually("the server has read its settings", || async { server.sql("SHOW ssl") == "on" }).await;
    let postgres = open(&url("localhost", &trusted)).await;
    granted(&postgres, &claim(&report(), LONG)).await;
    let encrypted = "SELECT count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name = 'leasehold' AND ssl";
    assert_eq!(server.sql(encrypted), "t");

    // A name that the certificate does not have; a certificate that nobody trusts; one that cannot be read.
    let error = connect(&url("127.0.0.1", &trusted)).await.unwrap_err();
    assert_eq!(says(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
    let (_, another) = make_certificate(&server, "another");
    let error = connect(&url("localhost", &format!("sslmode=require&ca_file={another}"))).await.unwrap_err();
    assert_eq!(says(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
    let error = connect(&url("localhost", "sslmode=require&ca_file=/no/such/file")).await.unwrap_err();
    assert_eq!(says(&error), (ErrorKind::Invalid, Effect::None), "{error:?}");
    assert!(error.to_string().contains("/no/such/file"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_is_named_as_such_and_never_spoken_to_in_the_clear() {
    let server = PostgresServer::start();
    let (_, trusted) = make_certificate(&server, "nobody");
    let url = format!("{}?sslmode=require&ca_file={trusted}", server.url());
    let error = connect(&url).await.unwrap_err();
    assert_eq!(says(&error), (ErrorKind::Unsupported, Effect::None), "{error:?}");
    assert!(error.to_string().contains("does not support TLS"), "{error}");
}
