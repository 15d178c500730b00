//! The database that is fenced.
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres", feature = "redis")),
    allow(dead_code, unused_variables, reason = "a build need not have all of them")
)]

use leasehold::{Error, ErrorKind, Resource};
use leasehold_fence::{Fenced, Rebase, Rebased, Template, rule::Mark};

#[cfg(feature = "redis")]
use super::keys::Keys;
use crate::{
    exit::{Exit, Failure},
    secret::{self, Parts},
};

/// A database that has a fence, or is to have one.
pub(super) enum Place {
    #[cfg(feature = "sqlite")]
    Sqlite(std::cell::RefCell<rusqlite::Connection>),
    #[cfg(feature = "postgres")]
    Postgres { client: tokio_postgres::Client, namespace: Option<String> },
    #[cfg(feature = "redis")]
    Redis(Box<Keys>),
    /// This build has none of them.
    #[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "redis")))]
    Nowhere(std::convert::Infallible),
}

/// Does the same to each.
macro_rules! at {
    ($self:expr, $sqlite:pat => $on_sqlite:expr, $postgres:pat => $on_postgres:expr, $redis:pat => $on_redis:expr) => {
        match $self {
            #[cfg(feature = "sqlite")]
            Place::Sqlite($sqlite) => $on_sqlite,
            #[cfg(feature = "postgres")]
            Place::Postgres { client: $postgres, .. } => $on_postgres,
            #[cfg(feature = "redis")]
            Place::Redis($redis) => $on_redis,
            #[cfg(not(any(feature = "sqlite", feature = "postgres", feature = "redis")))]
            Place::Nowhere(never) => match *never {},
        }
    };
}

impl Place {
    /// `key` is the one whose mark is meant, in Redis.
    pub(super) async fn open(url: &str, key: Option<&str>) -> Result<Place, Failure> {
        if let Some(parts) = Parts::of(url) {
            parts.secrets().for_each(secret::keep);
        }
        let (scheme, path) = url.split_once(':').unwrap_or_default();
        match (scheme, path.strip_prefix("//").unwrap_or(path)) {
            ("redis" | "rediss" | "redis+sentinel" | "redis+cluster", _) => {
                redis(&with_password(url, "REDISCLI_AUTH"), key)
            }
            ("redlock", _) => Err(Failure::usage(
                "the nodes of a quorum know nothing of each other: name the server that has the key, as redis://HOST",
            )),
            _ if key.is_some() => {
                Err(Failure::usage("only in Redis a mark stands beside a key: leave --key out"))
            }
            ("sqlite", path) if !path.is_empty() => sqlite(path),
            ("postgres" | "postgresql", _) => postgres(&with_password(url, "PGPASSWORD")).await,
            _ => Err(Failure::usage(
                "a database is named as postgres://USER@HOST/NAME, sqlite:PATH or redis://HOST, with all that a store's URL takes",
            )),
        }
    }

    /// The resource that is meant: in the namespace of the URL, unless it names one itself.
    pub(super) fn resource(&self, typed: &Resource) -> Result<Resource, Failure> {
        match self.namespace().filter(|_| typed.namespace().is_none()) {
            Some(namespace) => typed.in_namespace(namespace).map_err(not_opened),
            None => Ok(typed.clone()),
        }
    }

    fn namespace(&self) -> Option<&str> {
        match self {
            #[cfg(feature = "postgres")]
            Place::Postgres { namespace, .. } => namespace.as_deref(),
            #[cfg(feature = "redis")]
            Place::Redis(keys) => keys.namespace(),
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
                "the namespace of a row is a part of its name: write it in --resource",
            ));
        }
        at!(self,
            it => {
                if !grants.is_empty() {
                    return Err(Failure::usage("SQLite has no roles: leave --grant out"));
                }
                leasehold_fence::sqlite::install(&it.borrow(), table, template).map_err(failed)?;
                Ok(table.to_owned())
            },
            it => {
                let install = async {
                    let table = leasehold_fence::postgres::install(it, table, template).await?;
                    for role in grants {
                        leasehold_fence::postgres::grant(it, role).await?;
                    }
                    Ok(table)
                };
                at_once(it, install).await
            },
            _ => Err(no_triggers())
        )
    }

    pub(super) async fn remove(&self, table: &str) -> Result<String, Failure> {
        at!(self,
            it => {
                let removed = leasehold_fence::sqlite::remove(&it.borrow(), table);
                removed.map(|()| table.to_owned()).map_err(failed)
            },
            it => at_once(it, leasehold_fence::postgres::remove(it, table)).await,
            _ => Err(no_triggers())
        )
    }

    pub(super) async fn status(&self) -> Result<Vec<Fenced>, Failure> {
        at!(self,
            it => leasehold_fence::sqlite::status(&it.borrow()).map_err(failed),
            it => leasehold_fence::postgres::status(it).await.map_err(failed),
            _ => Err(no_triggers())
        )
    }

    pub(super) async fn mark(&self, resource: &Resource) -> Result<Option<Mark>, Failure> {
        at!(self,
            it => leasehold_fence::sqlite::mark(&it.borrow(), resource).map_err(failed),
            it => leasehold_fence::postgres::mark(it, resource).await.map_err(failed),
            it => it.mark(resource).await
        )
    }

    pub(super) async fn rebases(&self, resource: &Resource) -> Result<Vec<Rebased>, Failure> {
        at!(self,
            it => leasehold_fence::sqlite::rebases(&it.borrow(), resource).map_err(failed),
            it => leasehold_fence::postgres::rebases(it, resource).await.map_err(failed),
            it => it.rebases(resource).await
        )
    }

    pub(super) async fn rebase(&self, resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark), Failure> {
        at!(self,
            it => leasehold_fence::sqlite::rebase(&mut it.borrow_mut(), resource, rebase).map_err(failed),
            it => at_once(it, leasehold_fence::postgres::rebase(it, resource, rebase)).await,
            it => it.rebase(resource, rebase).await
        )
    }
}

/// An error about the database, which is not the store.
pub(super) fn failed(error: Error) -> Failure {
    let kind = error.kind();
    let failure = Failure::from(error);
    match kind {
        ErrorKind::Unavailable => failure.hint("see that the database works, then try again"),
        ErrorKind::Corrupt => failure.hint("check that --database names the right one"),
        _ => failure,
    }
}

/// The same of one that cannot be opened: a URL that makes no sense is the configuration's fault.
pub(super) fn not_opened(error: Error) -> Failure {
    let kind = error.kind();
    let failure = failed(error);
    if kind == ErrorKind::Invalid { failure.with_code(Exit::Config.code()) } else { failure }
}

fn no_triggers() -> Failure {
    Failure::usage("Redis has no triggers: whoever writes runs the fence's scripts")
        .hint("to see or move a mark, name a resource and --key")
}

/// The URL with the password that other programs find in this variable, if it has none itself.
fn with_password(url: &str, variable: &str) -> String {
    let said = std::env::var(variable).ok().filter(|password| !password.is_empty());
    match (Parts::of(url), said) {
        (Some(parts), Some(password)) if parts.password.is_none() => {
            secret::keep(&password);
            parts.with_password(&password)
        }
        _ => url.to_owned(),
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(path: &str) -> Result<Place, Failure> {
    use rusqlite::{Connection, OpenFlags};
    let cannot = |error: rusqlite::Error| Failure::config(format!("{path}: cannot be opened: {error}"));
    // The database of someone's program: it is there, or the name is wrong.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(cannot)?;
    connection.busy_timeout(std::time::Duration::from_secs(10)).map_err(cannot)?;
    Ok(Place::Sqlite(connection.into()))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &str) -> Result<Place, Failure> {
    Err(missing("SQLite", "sqlite"))
}

#[cfg(feature = "postgres")]
async fn postgres(url: &str) -> Result<Place, Failure> {
    let config = leasehold_postgres::Config::parse(url).map_err(not_opened)?;
    let environment: std::sync::Arc<dyn leasehold::Environment> =
        std::sync::Arc::new(leasehold::System::current());
    let client = leasehold_postgres::connect(&config, &environment).await.map_err(not_opened)?;
    Ok(Place::Postgres { client, namespace: config.namespace().map(str::to_owned) })
}

/// In one transaction, which does not wait for long: whoever waits for a table stands in the way of all that come later.
#[cfg(feature = "postgres")]
async fn at_once<T>(
    client: &tokio_postgres::Client,
    work: impl Future<Output = leasehold::Result<T>>,
) -> Result<T, Failure> {
    let lost = |error: tokio_postgres::Error| {
        let message = format!("the database did not answer: {error}");
        failed(Error::new(ErrorKind::Unavailable, message).with_effect(leasehold::Effect::Unknown))
    };
    client.batch_execute("BEGIN; SET LOCAL lock_timeout = '5s'").await.map_err(lost)?;
    // On an error the connection ends, and the transaction with it.
    let done = work.await.map_err(failed)?;
    client.batch_execute("COMMIT").await.map_err(lost)?;
    Ok(done)
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &str) -> Result<Place, Failure> {
    Err(missing("PostgreSQL", "postgres"))
}

#[cfg(feature = "redis")]
fn redis(url: &str, key: Option<&str>) -> Result<Place, Failure> {
    Keys::of(url, key).map(|keys| Place::Redis(Box::new(keys)))
}

#[cfg(not(feature = "redis"))]
fn redis(_: &str, _: Option<&str>) -> Result<Place, Failure> {
    Err(missing("Redis", "redis"))
}

#[cfg(feature = "postgres")]
pub(super) fn schema() -> Result<&'static str, Failure> {
    Ok(leasehold_fence::postgres::SCHEMA)
}

#[cfg(not(feature = "postgres"))]
pub(super) fn schema() -> Result<&'static str, Failure> {
    Err(missing("PostgreSQL", "postgres"))
}

#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "redis")))]
fn missing(name: &str, feature: &str) -> Failure {
    Failure::config(format!("this build has no {name}"))
        .hint(format!("build it with: cargo build --release -p leasehold-cli --features {feature}"))
}
