//! A database of its own for each test.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use leasehold_testkit::servers::PostgresServer;
use tokio_postgres::{Client, NoTls};

/// The name of a test, and its function.
pub(crate) type Test = (&'static str, fn(&TestDatabase));

/// The database of one test.
pub(crate) struct TestDatabase {
    pub(crate) server: Arc<PostgresServer>,
    pub(crate) name: String,
}

impl TestDatabase {
    pub(crate) fn new(server: &Arc<PostgresServer>) -> TestDatabase {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        server.sql(&format!("CREATE DATABASE {name}"));
        TestDatabase { server: Arc::clone(server), name }
    }

    pub(crate) fn url(&self) -> String {
        self.url_of("postgres")
    }

    pub(crate) fn url_of(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{}", self.server.port(), self.name)
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.url()).await
    }

    /// Runs a script with `psql`. Returns its output, or its error output.
    pub(crate) fn psql(&self, script: &str) -> Result<String, String> {
        psql(&self.url(), script)
    }

    /// Runs a test on a runtime of its own.
    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(work)
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "a test has a runtime")]
    tokio::spawn(connection);
    client
}

pub(crate) fn psql(url: &str, script: &str) -> Result<String, String> {
    let mut psql = Command::new("psql");
    psql.args([
        "-X",
        "-q",
        "-A",
        "-t",
        "-v",
        "ON_ERROR_STOP=1",
        "-v",
        "VERBOSITY=verbose",
        "-d",
        url,
        "-c",
        script,
    ]);
    let output = psql.output().expect("the package postgresql-client is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
