//! The database that is fenced: SQLite, PostgreSQL or Redis.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "redis")),
    allow(dead_code, unused_variables, reason = "a build need not have all of them")
)]

use leasehold::{Error, ErrorKind, Resource};
use leasehold_fence::{Fenced, Rebase, Rebased, Template, rule::Mark};

#[cfg(feature = "redis")]
use super::redis::RedisFence;
use crate::{
    exit::{Exit, Failure},
    redact::{self, UrlParts},
};

/// A database with a fence, or one that a fence is installed in.
pub(super) enum FencedDatabase {
    #[cfg(feature = "sqlite")]
    Sqlite(std::cell::RefCell<rusqlite::Connection>),
    #[cfg(feature = "postgres")]
    Postgres { client: tokio_postgres::Client, namespace: Option<String> },
    #[cfg(feature = "redis")]
    Redis(Box<RedisFence>),
    /// A build without any of the three.
    #[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "redis")))]
    Unsupported(std::convert::Infallible),
}

/// Picks the expression for the kind of database, as far as this build has it.
macro_rules! on_each {
    ($self:expr, $sqlite:pat => $on_sqlite:expr, $postgres:pat => $on_postgres:expr, $redis:pat => $on_redis:expr) => {
        match $self {
            #[cfg(feature = "sqlite")]
            FencedDatabase::Sqlite($sqlite) => $on_sqlite,
            #[cfg(feature = "postgres")]
            FencedDatabase::Postgres { client: $postgres, .. } => $on_postgres,
            #[cfg(feature = "redis")]
            FencedDatabase::Redis($redis) => $on_redis,
            #[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "redis")))]
            FencedDatabase::Unsupported(never) => match *never {},
        }
    };
}

impl FencedDatabase {
    /// Opens the database. `key` is for Redis: the key that is fenced.
    pub(super) async fn open(url: &str, key: Option<&str>) -> Result<FencedDatabase, Failure> {
        if let Some(parts) = UrlParts::of(url) {
            parts.secrets().for_each(redact::register);
        }
        let (scheme, path) = url.split_once(':').unwrap_or_default();
        match (scheme, path.strip_prefix("//").unwrap_or(path)) {
            ("redis" | "rediss" | "redis+sentinel" | "redis+cluster", _) => {
                redis(&with_password(url, "REDISCLI_AUTH"), key)
            }
            ("redlock", _) => Err(Failure::usage(
                "redlock:// names several independent servers, but a fenced key is on one of them: name the server that has the key, as redis://HOST",
            )),
            _ if key.is_some() => Err(Failure::usage("--key is only for Redis: leave --key out")),
            ("sqlite", path) if !path.is_empty() => sqlite(path),
            ("mysql" | "mariadb", _) => Err(Failure::usage(
                "this command does not connect to MariaDB: it prints the SQL, and the client program runs it",
            )
            .hint("leasehold fence schema mariadb | mariadb -u root")),
            ("postgres" | "postgresql", _) => postgres(&with_password(url, "PGPASSWORD")).await,
            _ => Err(Failure::usage(
                "--database must be postgres://USER@HOST/NAME, sqlite:PATH or redis://HOST, with the options of a store URL",
            )),
        }
    }

    /// The resource in the namespace of the URL, unless its name has a namespace.
    pub(super) fn resource(&self, typed: &Resource) -> Result<Resource, Failure> {
        match self.namespace().filter(|_| typed.namespace().is_none()) {
            Some(namespace) => typed.in_namespace(namespace).map_err(not_opened),
            None => Ok(typed.clone()),
        }
    }

    fn namespace(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "postgres")]
            FencedDatabase::Postgres { namespace, .. } => namespace.as_deref(),
            #[cfg(feature = "redis")]
            FencedDatabase::Redis(keys) => keys.namespace(),
            #[allow(unreachable_patterns, reason = "a build need not have the others")]
            _ => None,
        }
    }

    pub(super) async fn install(
        &self,
        table: &str,
        template: &Template,
        grants: &[String],
    ) -> Result<String, Failure> {
        if self.namespace().is_some() {
            return Err(Failure::usage(
                "the option namespace has no effect on tables: leave it out of the URL, and write it in --resource",
            ));
        }
        on_each!(self,
            connection => {
                if !grants.is_empty() {
                    return Err(Failure::usage("SQLite has no roles: leave --grant out"));
                }
                leasehold_fence::sqlite::install(&connection.borrow(), table, template).map_err(failed)?;
                Ok(table.to_owned())
            },
            client => {
                let install = async {
                    let table = leasehold_fence::postgres::install(client, table, template).await?;
                    for role in grants {
                        leasehold_fence::postgres::grant(client, role).await?;
                    }
                    Ok(table)
                };
                in_transaction(client, install).await
            },
            _ => Err(no_triggers())
        )
    }

    pub(super) async fn remove(&self, table: &str) -> Result<String, Failure> {
        on_each!(self,
            connection => {
                let removed = leasehold_fence::sqlite::remove(&connection.borrow(), table);
                removed.map(|()| table.to_owned()).map_err(failed)
            },
            client => in_transaction(client, leasehold_fence::postgres::remove(client, table)).await,
            _ => Err(no_triggers())
        )
    }

    pub(super) async fn status(&self) -> Result<Vec<Fenced>, Failure> {
        on_each!(self,
            connection => leasehold_fence::sqlite::status(&connection.borrow()).map_err(failed),
            client => leasehold_fence::postgres::status(client).await.map_err(failed),
            _ => Err(no_triggers())
        )
    }

    pub(super) async fn mark(&self, resource: &Resource) -> Result<Option<Mark>, Failure> {
        on_each!(self,
            connection => leasehold_fence::sqlite::mark(&connection.borrow(), resource).map_err(failed),
            client => leasehold_fence::postgres::mark(client, resource).await.map_err(failed),
            redis => redis.mark(resource).await
        )
    }

    pub(super) async fn rebases(&self, resource: &Resource) -> Result<Vec<Rebased>, Failure> {
        on_each!(self,
            connection => leasehold_fence::sqlite::rebases(&connection.borrow(), resource).map_err(failed),
            client => leasehold_fence::postgres::rebases(client, resource).await.map_err(failed),
            redis => redis.rebases(resource).await
        )
    }

    pub(super) async fn rebase(&self, resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark), Failure> {
        on_each!(self,
            connection => {
                let mut connection = connection.borrow_mut();
                leasehold_fence::sqlite::rebase(&mut connection, resource, rebase).map_err(failed)
            },
            client => {
                in_transaction(client, leasehold_fence::postgres::rebase(client, resource, rebase)).await
            },
            redis => redis.rebase(resource, rebase).await
        )
    }
}

/// An error of the fenced database. The usual hints speak of the store, so some are replaced.
pub(super) fn failed(error: Error) -> Failure {
    let kind = error.kind();
    let failure = Failure::from(error);
    match kind {
        ErrorKind::Unavailable => {
            failure.hint("check that the database is running and reachable, then try again")
        }
        ErrorKind::Corrupt => failure.hint("check that --database names the right database"),
        _ => failure,
    }
}

/// The same for a database that cannot be opened. A wrong URL is a wrong configuration (exit code 78).
pub(super) fn not_opened(error: Error) -> Failure {
    let kind = error.kind();
    let failure = failed(error);
    if kind == ErrorKind::Invalid { failure.with_code(Exit::Config.code()) } else { failure }
}

fn no_triggers() -> Failure {
    Failure::usage(
        "Redis has no triggers, so there are no fenced tables: writers use the scripts of the fence",
    )
    .hint("to see or change the mark of a resource, use status or rebase with the resource and --key")
}

/// The URL with the password from this variable of the environment, if the URL has none.
fn with_password(url: &str, variable: &str) -> String {
    let password = std::env::var(variable).ok().filter(|password| !password.is_empty());
    match (UrlParts::of(url), password) {
        (Some(parts), Some(password)) if parts.password.is_none() => {
            redact::register(&password);
            parts.with_password(&password)
        }
        _ => url.to_owned(),
    }
}

/// How long to wait for another program that writes to the SQLite database.
#[cfg(feature = "sqlite")]
const SQLITE_BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

#[cfg(feature = "sqlite")]
fn sqlite(path: &str) -> Result<FencedDatabase, Failure> {
    use rusqlite::{Connection, OpenFlags};
    let cannot = |error: rusqlite::Error| {
        Failure::config(format!("the SQLite database {path} cannot be opened: {error}"))
    };
    // Without SQLITE_OPEN_CREATE: the database belongs to another program. If there is no such file, the path
    // is wrong.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(cannot)?;
    connection.busy_timeout(SQLITE_BUSY_TIMEOUT).map_err(cannot)?;
    Ok(FencedDatabase::Sqlite(connection.into()))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &str) -> Result<FencedDatabase, Failure> {
    Err(missing("SQLite", "sqlite"))
}

#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> Result<FencedDatabase, Failure> {
    let config = leasehold_postgres::Config::parse(url).map_err(not_opened)?;
    let environment: std::sync::Arc<dyn leasehold::Environment> =
        std::sync::Arc::new(leasehold::System::current());
    let client = leasehold_postgres::connect(&config, &environment).await.map_err(not_opened)?;
    Ok(FencedDatabase::Postgres { client, namespace: config.namespace().map(str::to_owned) })
}

/// Runs `work` in one transaction with a short lock timeout. In PostgreSQL, a statement that waits for a
/// table lock blocks all later statements on that table, so the command gives up instead.
#[cfg(feature = "postgres")]
async fn in_transaction<T>(
    client: &tokio_postgres::Client,
    work: impl Future<Output = leasehold::Result<T>>,
) -> Result<T, Failure> {
    let lost = |error: tokio_postgres::Error| {
        let message = format!("the database did not reply: {error}");
        failed(Error::new(ErrorKind::Unavailable, message).with_effect(leasehold::Effect::Unknown))
    };
    client.batch_execute("BEGIN; SET LOCAL lock_timeout = '5s'").await.map_err(lost)?;
    // On an error the connection is dropped, which rolls the transaction back.
    let done = work.await.map_err(failed)?;
    client.batch_execute("COMMIT").await.map_err(lost)?;
    Ok(done)
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &str) -> Result<FencedDatabase, Failure> {
    Err(missing("PostgreSQL", "postgres"))
}

#[cfg(feature = "redis")]
fn redis(url: &str, key: Option<&str>) -> Result<FencedDatabase, Failure> {
    RedisFence::of(url, key).map(|keys| FencedDatabase::Redis(Box::new(keys)))
}

#[cfg(not(feature = "redis"))]
fn redis(_: &str, _: Option<&str>) -> Result<FencedDatabase, Failure> {
    Err(missing("Redis", "redis"))
}

/// The SQL of the fence for PostgreSQL.
#[cfg(feature = "postgres")]
pub(super) fn postgres_schema() -> Result<&'static str, Failure> {
    Ok(leasehold_fence::postgres::SCHEMA)
}

#[cfg(not(feature = "postgres"))]
pub(super) fn postgres_schema() -> Result<&'static str, Failure> {
    Err(missing("PostgreSQL", "postgres"))
}

#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "redis")))]
fn missing(name: &str, feature: &str) -> Failure {
    Failure::config(format!("this build of leasehold does not support {name}"))
        .hint(format!("build one that does: cargo build --release -p leasehold-cli --features {feature}"))
}
