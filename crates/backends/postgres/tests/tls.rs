//! TLS, with a certificate made for the test.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use common::{LONG, claim, connect, granted, kind_and_effect, open, report};
use leasehold::{Effect, ErrorKind};
use leasehold_testkit::servers::PostgresServer;

#[tokio::test]
async fn a_connection_is_made_only_if_the_certificate_can_be_verified() {
    let server = PostgresServer::start();
    let certificate = server.speak_tls();
    let url = |host: &str, options: &str| {
        format!("postgres://postgres@{host}:{}/postgres?connections=1&{options}", server.port())
    };
    let trusted = format!("sslmode=require&ca_file={certificate}");
    let postgres = open(&url("localhost", &trusted)).await;
    granted(&postgres, &claim(&report(), LONG)).await;
    let encrypted = "SELECT count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE application_name = 'leasehold' AND ssl";
    assert_eq!(server.sql(encrypted), "t");

    // A host name that is not in the certificate; a certificate that is not trusted; a file that cannot be read.
    let (_, another) = server.certificate("another");
    for (host, options, words) in [
        ("127.0.0.1", trusted, "for another host name"),
        ("localhost", format!("sslmode=require&ca_file={another}"), "self-signed or of an unknown issuer"),
        ("localhost", "sslmode=require".to_owned(), "self-signed or of an unknown issuer"),
    ] {
        let error = connect(&url(host, &options)).await.unwrap_err();
        assert_eq!(kind_and_effect(&error), (ErrorKind::Denied, Effect::None), "{error:?}");
        let place = format!("cannot connect to {host}:{}: ", server.port());
        assert!(error.to_string().contains(&place) && error.to_string().contains(words), "{error}");
    }
    let error = connect(&url("localhost", "sslmode=require&ca_file=/no/such/file")).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Invalid, Effect::None), "{error:?}");
    assert!(error.to_string().contains("/no/such/file"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_and_no_plain_connection_is_made() {
    let server = PostgresServer::start();
    let (_, trusted) = server.certificate("nobody");
    let url = format!("{}?sslmode=require&ca_file={trusted}", server.url());
    let error = connect(&url).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unsupported, Effect::None), "{error:?}");
    assert!(error.to_string().contains("does not support TLS"), "{error}");
}
