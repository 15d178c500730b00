//! A leasehold server on a thread and a runtime of its own: it outlives the runtime of any test.
#![allow(dead_code, reason = "each test program uses only some of these helpers")]
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::System;
use leasehold_api::fields::StoreId;
use leasehold_core::Backend;
use leasehold_http::{Config, Http};
use leasehold_server::{Access, Roles, Server};
use tokio::{net::TcpListener, runtime::Runtime, sync::oneshot};

/// The server. Dropping it ends it at once.
pub(crate) struct TestServer {
    pub(crate) port: u16,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<Runtime>,
}

impl TestServer {
    /// Starts a server on the backend that `open` opens, on the runtime of the server.
    pub(crate) fn start<O>(open: O) -> TestServer
    where
        O: Future<Output = Arc<dyn Backend>> + Send + 'static,
    {
        TestServer::on_store("a store of a test", open)
    }

    /// The same with another address of the store, of which the id is made.
    pub(crate) fn on_store<O>(store: &str, open: O) -> TestServer
    where
        O: Future<Output = Arc<dyn Backend>> + Send + 'static,
    {
        TestServer::at(0, store, open)
    }

    /// The same on this port.
    pub(crate) fn at<O>(port: u16, store: &str, open: O) -> TestServer
    where
        O: Future<Output = Arc<dyn Backend>> + Send + 'static,
    {
        TestServer::with(port, config(store), open)
    }

    /// The same with this configuration.
    pub(crate) fn with<O>(port: u16, config: leasehold_server::Config, open: O) -> TestServer
    where
        O: Future<Output = Arc<dyn Backend>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let (stop, stopped) = oneshot::channel::<()>();
        let (bound, address) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let server =
                Server::new(open.await, Arc::new(System::current()), config).expect("it can be served");
            let listener = bind(port).await;
            bound.send(listener.local_addr().expect("it has an address").port()).expect("the test waits");
            server.run(listener, async { drop(stopped.await) }).await;
        });
        let port = address.recv().expect("the server starts");
        TestServer { port, stop: Some(stop), runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    /// Begins to drain.
    pub(crate) fn drain(&mut self) {
        drop(self.stop.take());
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Everyone may do everything.
pub(crate) fn config(store: &str) -> leasehold_server::Config {
    let mut config = leasehold_server::Config::new(StoreId::of(store));
    config.access = Access::Open(Roles::ALL);
    config
}

/// The server that had this port before may be about to end.
async fn bind(port: u16) -> TcpListener {
    for _ in 0..500 {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return listener;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("port {port} stays in use");
}

pub(crate) fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

pub(crate) async fn open_http(url: &str) -> Http {
    let config = Config::parse(url).expect("the URL is well formed");
    Http::connect(config, Arc::new(System::current())).await.expect("the server answers")
}

pub(crate) async fn open(url: &str) -> Arc<dyn Backend> {
    Arc::new(open_http(url).await)
}

/// A file for a SQLite store, and a future that opens it.
pub(crate) fn sqlite() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let path = directory.path().join("leases.db");
    (directory, path)
}

pub(crate) async fn open_store(url: String) -> Arc<dyn Backend> {
    leasehold::open(&url).await.expect("the store can be opened")
}

/// The metrics of the server on this port.
pub(crate) fn metrics(port: u16) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("the server is there");
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it is open");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    text
}

/// Makes a certificate that signs itself, for this name.
pub(crate) fn certificate(directory: &std::path::Path, name: &str) {
    let file = |end: &str| directory.join(format!("{name}.{end}"));
    let made = std::process::Command::new("openssl")
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
