//! HTTPS and client certificates.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, path::Path, process::Command, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leasehold::{Memory, System};
use leasehold_server::{Access, NewToken, Tls, TokenFile};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::json;
use support::{Answer, PATIENCE, TestServer, config};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// Makes a certificate that signs itself, for this name.
fn certificate(directory: &Path, name: &str) {
    let file = |end: &str| directory.join(format!("{name}.{end}"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=test", "-addext", &format!("subjectAltName=DNS:{name}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(file("key"))
        .arg("-out")
        .arg(file("crt"))
        .output()
        .expect("the package openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn client(directory: &Path, identity: Option<&str>, http2: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(directory.join("localhost.crt")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(directory.join(format!("{name}.crt"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(directory.join(format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    TlsConnector::from(Arc::new(config))
}

async fn get(
    server: &TestServer,
    connector: &TlsConnector,
    http2: bool,
    token: Option<&str>,
) -> Option<Answer> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let stream = connector.connect("localhost".try_into().unwrap(), stream).await.ok()?;
    let uri = if http2 { "https://localhost/v1/info" } else { "/v1/info" };
    let mut request =
        Request::builder().uri(uri).header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
    if let Some(token) = token {
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    let response = if http2 {
        let (mut sender, connection) =
            conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        sender.send_request(request).await
    } else {
        let (mut sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        sender.send_request(request).await
    };
    Some(Answer::of(response.ok()?).await)
}

#[tokio::test]
async fn a_token_or_a_client_certificate_and_the_token_decides() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for name in ["localhost", "billing.example.org", "stranger.example.org"] {
        certificate(path, name);
    }
    let (by_token, by_certificate) =
        (NewToken::fresh(&System::current()), NewToken::fresh(&System::current()));
    let tokens = format!(
        "[[token]]\nid = \"{}\"\nsha256 = \"{}\"\nsubject = \"token\"\nroles = [\"viewer\"]\n\
         [[token]]\nid = \"{}\"\nsha256 = \"{}\"\nsubject = \"billing\"\nroles = [\"client\"]\ncertificate = \"billing.example.org\"\n",
        by_token.id, by_token.sha256, by_certificate.id, by_certificate.sha256
    );
    fs::write(path.join("tokens.toml"), tokens).unwrap();
    let mut config = config();
    config.access =
        Access::Tokens(TokenFile::open(&path.join("tokens.toml"), Arc::new(System::current())).unwrap());
    let authority = path.join("billing.example.org.crt");
    config.tls =
        Some(Tls::read(&path.join("localhost.crt"), &path.join("localhost.key"), Some(&authority)).unwrap());
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    for http2 in [false, true] {
        let subject = async |identity: Option<&str>, token: Option<&str>| {
            let answer = get(&server, &client(path, identity, http2), http2, token).await?;
            Some((answer.status, answer.body["caller"]["subject"].clone()))
        };
        assert_eq!(subject(None, Some(&by_token.token)).await, Some((200, json!("token"))));
        assert_eq!(subject(Some("billing.example.org"), None).await, Some((200, json!("billing"))));
        assert_eq!(
            subject(Some("billing.example.org"), Some(&by_token.token)).await,
            Some((200, json!("token")))
        );
        assert_eq!(
            subject(Some("billing.example.org"), Some("lh_x")).await.unwrap().0,
            401,
            "a wrong token is not passed over"
        );
        assert_eq!(subject(None, None).await.unwrap().0, 401);
        assert_eq!(subject(Some("stranger.example.org"), None).await, None, "the handshake fails");
    }
}

#[tokio::test]
async fn plain_http_and_slow_handshakes_end() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path(), "localhost");
    let mut config = config();
    config.timeouts.first_byte = Duration::from_millis(300);
    let file = |end: &str| directory.path().join(format!("localhost.{end}"));
    config.tls = Some(Tls::read(&file("crt"), &file("key"), None).unwrap());
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    for sent in ["GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n", "\x16", ""] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{sent:?}: the connection stays open");
        assert!(!String::from_utf8_lossy(&answer).contains("leasehold"));
    }
    assert_eq!(get(&server, &client(directory.path(), None, true), true, None).await.unwrap().status, 200);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path(), "localhost");
    certificate(directory.path(), "other");
    let file = |name: &str| directory.path().join(name);
    fs::write(file("empty"), "").unwrap();
    for (certificate, key, named) in [
        ("missing", "localhost.key", "missing"),
        ("empty", "localhost.key", "empty"),
        ("localhost.crt", "empty", "empty"),
        ("localhost.crt", "other.key", "localhost.crt"),
    ] {
        let error = Tls::read(&file(certificate), &file(key), None).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// The certificate that the server shows.
async fn shown(server: &TestServer, directory: &Path) -> Option<Vec<u8>> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let connector = client(directory, None, false);
    let stream = connector.connect("localhost".try_into().unwrap(), stream).await.ok()?;
    Some(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
}

#[tokio::test]
async fn a_new_certificate_is_used_without_a_restart_and_a_bad_one_is_not() {
    // `current` is what the server has; clients trust `old` or `new`, both for localhost.
    let directories =
        [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [current, old, new] = directories.each_ref().map(tempfile::TempDir::path);
    let file = |directory: &Path, end: &str| directory.join(format!("localhost.{end}"));
    for directory in [old, new] {
        certificate(directory, "localhost");
    }
    // By renaming, as tools do that replace a certificate.
    let put = |from: &Path, end: &str| {
        fs::copy(file(from, end), current.join("next")).unwrap();
        fs::rename(current.join("next"), file(current, end)).unwrap();
    };
    put(old, "crt");
    put(old, "key");
    let tls = Tls::read(&file(current, "crt"), &file(current, "key"), None).unwrap();
    let mut config = config();
    config.tls = Some(tls.clone());
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    let bytes = |directory: &Path| CertificateDer::from_pem_file(file(directory, "crt")).unwrap().to_vec();
    assert_eq!(shown(&server, old).await, Some(bytes(old)));

    let metric = async || {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let stream = client(old, None, false).connect("localhost".try_into().unwrap(), stream).await.unwrap();
        let (mut sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let request = Request::builder().uri("/metrics").header("host", "localhost");
        let request = request.body(Full::<Bytes>::default()).unwrap();
        Answer::of(sender.send_request(request).await.unwrap()).await.text
    };
    // Half of the new pair: the key does not fit. And a file that is no certificate.
    put(new, "crt");
    tls.look();
    assert_eq!(shown(&server, old).await, Some(bytes(old)), "the old one stays in force");
    assert!(metric().await.contains("leasehold_http_bad_file{file=\"certificate\"} 1"));
    fs::write(file(current, "crt"), "nonsense").unwrap();
    tls.look();
    assert_eq!(shown(&server, old).await, Some(bytes(old)));

    // The server itself looks once a second.
    put(new, "crt");
    put(new, "key");
    let replaced = async {
        while shown(&server, new).await != Some(bytes(new)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, replaced).await.expect("the new certificate is never used");
    assert_eq!(shown(&server, old).await, None, "clients that trust only the old one");
}
