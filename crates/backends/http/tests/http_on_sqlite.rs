//! The conformance suite through two clients of one server, on a SQLite file.

mod common;

use std::sync::OnceLock;

use common::TestServer;
use leasehold_testkit::{BackendUnderTest, conformance};

fn main() {
    // All tests share one server and use their own resource names. It ends with this process.
    static SERVER: OnceLock<(tempfile::TempDir, TestServer)> = OnceLock::new();
    conformance::main("http_on_sqlite", || async {
        let (_, server) = SERVER.get_or_init(|| {
            let (directory, path) = common::sqlite();
            (directory, TestServer::start(common::open_store(format!("sqlite:{}", path.display()))))
        });
        let url = server.url();
        let (first, second) = (common::open(&url).await, common::open(&url).await);
        BackendUnderTest::real(first).opened_again(second).reopened_by(move || {
            let url = url.clone();
            async move { common::open(&url).await }
        })
    });
}
