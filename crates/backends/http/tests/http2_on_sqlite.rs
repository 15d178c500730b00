//! The conformance suite over HTTP/2 and TLS, through two clients of one server, on a SQLite file.

mod common;

use std::sync::OnceLock;

use common::TestServer;
use leasehold_server::Tls;
use leasehold_testkit::{BackendUnderTest, conformance};

/// The server, and the URL of it.
fn start() -> (tempfile::TempDir, TestServer, String) {
    let (directory, path) = common::sqlite();
    common::certificate(directory.path(), "localhost");
    let file = |name: &str| directory.path().join(name);
    let mut config = common::config("a store with TLS");
    config.tls =
        Some(Tls::read(&file("localhost.crt"), &file("localhost.key"), None).expect("the files are there"));
    let server = TestServer::with(0, config, common::open_store(format!("sqlite:{}", path.display())));
    let url = format!("https://localhost:{}?ca_file={}", server.port, file("localhost.crt").display());
    (directory, server, url)
}

fn main() {
    static SERVER: OnceLock<(tempfile::TempDir, TestServer, String)> = OnceLock::new();
    conformance::main("http2_on_sqlite", || async {
        let (_, _, url) = SERVER.get_or_init(start);
        let (first, second) = (common::open(url).await, common::open(url).await);
        BackendUnderTest::real(first).opened_again(second).reopened_by(move || common::open(url))
    });
}
