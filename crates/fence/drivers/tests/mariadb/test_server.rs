//! One server for all tests. Each test has tables and resources of its own.

use leasehold_core::Pass;
use leasehold_fence::mariadb;
pub(crate) use leasehold_testkit::passes::{pass_for as pass, stale, token};
use leasehold_testkit::servers::MariaDbServer;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, mysql::MySqlDatabaseError};

/// The name of a test, and its function.
pub(crate) type Test = (&'static str, fn(&TestServer));

pub(crate) struct TestServer {
    pub(crate) server: MariaDbServer,
}

impl TestServer {
    /// Starts the server, and creates the fence as a driver does.
    pub(crate) fn start() -> TestServer {
        let server = MariaDbServer::start();
        server.sql("CREATE DATABASE shop CHARACTER SET utf8mb4");
        let server = TestServer { server };
        server.run(async {
            let mut session = server.connect().await;
            for statement in mariadb::schema_statements() {
                session.execute(statement).await.unwrap();
            }
        });
        server
    }

    /// A new session in the database `shop`.
    pub(crate) async fn connect(&self) -> Session {
        connect(&self.server.url("shop")).await
    }

    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(work)
    }
}

pub(crate) async fn connect(url: &str) -> Session {
    Session(MySqlConnection::connect(url).await.unwrap())
}

/// A connection to the server.
pub(crate) struct Session(pub(crate) MySqlConnection);

impl Session {
    /// Executes a statement. Returns the number of rows that it changed.
    pub(crate) async fn execute(&mut self, sql: impl Into<String>) -> Result<u64, sqlx::Error> {
        let done = sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(&mut self.0).await;
        done.map(|done| done.rows_affected())
    }

    /// Executes a prepared statement with these parameters.
    pub(crate) async fn execute_with(
        &mut self,
        sql: &'static str,
        parameters: &[Option<&str>],
    ) -> Result<u64, sqlx::Error> {
        let query = parameters.iter().fold(sqlx::query(sql), |query, value| query.bind(*value));
        query.execute(&mut self.0).await.map(|done| done.rows_affected())
    }

    /// Presents a pass in the transaction of an effect.
    pub(crate) async fn admit(&mut self, pass: &Pass) -> Result<u64, sqlx::Error> {
        self.execute_with("CALL leasehold_fence.admit(?)", &[Some(&pass.to_string())]).await
    }

    /// Presents a pass to the triggers, or before a read.
    pub(crate) async fn enter(&mut self, pass: &Pass) -> Result<u64, sqlx::Error> {
        self.execute_with("CALL leasehold_fence.enter(?)", &[Some(&pass.to_string())]).await
    }

    /// The first column of the first row, as a text.
    pub(crate) async fn text(&mut self, sql: impl Into<String>) -> Option<String> {
        let query = sqlx::query_scalar(AssertSqlSafe(sql.into()));
        query.fetch_optional(&mut self.0).await.unwrap().flatten()
    }
}

/// The SQLSTATE and the message of an error of the server.
#[track_caller]
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, sqlx::Error>) -> (String, String) {
    let error = result.expect_err("it is refused");
    let refused = error.as_database_error().unwrap_or_else(|| panic!("{error}"));
    let state = refused.try_downcast_ref::<MySqlDatabaseError>().and_then(|refused| refused.code());
    (state.unwrap_or_default().to_owned(), refused.message().to_owned())
}
