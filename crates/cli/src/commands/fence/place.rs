//! The database that is fenced.

use leasehold::Resource;
use leasehold_fence::{Fenced, Rebase, Rebased, Template, rule::Mark};

#[cfg(feature = "postgres")]
use crate::exit::Exit;
use crate::{
    exit::Failure,
    secret::{self, Parts},
};

/// A database that has a fence, or is to have one.
pub(super) enum Place {
    #[cfg(feature = "sqlite")]
    Sqlite(std::cell::RefCell<rusqlite::Connection>),
    #[cfg(feature = "postgres")]
    Postgres(tokio_postgres::Client),
}

/// Does the same to either.
macro_rules! at {
    ($self:expr, $sqlite:ident => $on_sqlite:expr, $postgres:ident => $on_postgres:expr) => {
        match $self {
            #[cfg(feature = "sqlite")]
            Place::Sqlite($sqlite) => $on_sqlite,
            #[cfg(feature = "postgres")]
            Place::Postgres($postgres) => $on_postgres,
        }
    };
}

impl Place {
    pub(super) async fn open(url: &str) -> Result<Place, Failure> {
        if let Some(parts) = Parts::of(url) {
            parts.secrets().for_each(secret::keep);
        }
        match url.split_once(':') {
            Some(("sqlite", path)) => sqlite(path.strip_prefix("//").unwrap_or(path)),
            Some(("postgres" | "postgresql", _)) => postgres(url).await,
            _ => Err(Failure::usage("a database is named as postgres://USER@HOST/NAME or sqlite:PATH")),
        }
    }

    pub(super) async fn install(
        &self,
        table: &str,
        template: &Template,
        grants: &[String],
    ) -> Result<String, Failure> {
        at!(self,
            it => {
                if !grants.is_empty() {
                    return Err(Failure::usage("SQLite has no roles: leave --grant out"));
                }
                leasehold_fence::sqlite::install(&it.borrow(), table, template)?;
                Ok(table.to_owned())
            },
            it => {
                let table = leasehold_fence::postgres::install(it, table, template).await?;
                for role in grants {
                    leasehold_fence::postgres::grant(it, role).await?;
                }
                Ok(table)
            }
        )
    }

    pub(super) async fn remove(&self, table: &str) -> Result<String, Failure> {
        at!(self,
            it => Ok(leasehold_fence::sqlite::remove(&it.borrow(), table).map(|()| table.to_owned())?),
            it => Ok(leasehold_fence::postgres::remove(it, table).await?)
        )
    }

    pub(super) async fn status(&self) -> Result<Vec<Fenced>, Failure> {
        at!(self,
            it => Ok(leasehold_fence::sqlite::status(&it.borrow())?),
            it => Ok(leasehold_fence::postgres::status(it).await?)
        )
    }

    pub(super) async fn mark(&self, resource: &Resource) -> Result<Option<Mark>, Failure> {
        at!(self,
            it => Ok(leasehold_fence::sqlite::mark(&it.borrow(), resource)?),
            it => Ok(leasehold_fence::postgres::mark(it, resource).await?)
        )
    }

    pub(super) async fn rebases(&self, resource: &Resource) -> Result<Vec<Rebased>, Failure> {
        at!(self,
            it => Ok(leasehold_fence::sqlite::rebases(&it.borrow(), resource)?),
            it => Ok(leasehold_fence::postgres::rebases(it, resource).await?)
        )
    }

    pub(super) async fn rebase(&self, resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark), Failure> {
        at!(self,
            it => Ok(leasehold_fence::sqlite::rebase(&mut it.borrow_mut(), resource, rebase)?),
            it => Ok(leasehold_fence::postgres::rebase(it, resource, rebase).await?)
        )
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
    use tokio_postgres::{Config, NoTls, config::SslMode};
    let cannot_read =
        |error: tokio_postgres::Error| Failure::usage(format!("the URL of the database: {error}"));
    let mut config: Config = url.parse().map_err(cannot_read)?;
    if let Some(password) = std::env::var("PGPASSWORD").ok().filter(|_| config.get_password().is_none()) {
        secret::keep(&password);
        config.password(password);
    }
    if config.get_ssl_mode() == SslMode::Require {
        let hint = "connect on the database's own host or through a tunnel, or run what `leasehold fence schema` prints";
        return Err(Failure::config("this command does not speak TLS").hint(hint));
    }
    config.connect_timeout(std::time::Duration::from_secs(10)).application_name("leasehold fence");
    let (client, connection) = config.connect(NoTls).await.map_err(|error| unreachable(&error))?;
    // It ends with the client, and what it has to say the client says as well.
    tokio::spawn(connection);
    Ok(Place::Postgres(client))
}

#[cfg(feature = "postgres")]
fn unreachable(error: &tokio_postgres::Error) -> Failure {
    use std::error::Error as _;
    let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    // The driver has no kind for it.
    let wants_password = why.contains("password missing");
    match error.as_db_error().map(|said| said.message()).or(wants_password.then_some("it wants a password")) {
        Some(said) => Failure::config(format!("the database refuses: {said}"))
            .hint("check the user, the password (PGPASSWORD) and the name of the database"),
        None => {
            Failure::new(Exit::Unavailable, "unavailable", format!("the database cannot be reached: {why}"))
                .hint("see that it runs, then try again")
        }
    }
}

#[cfg(not(feature = "postgres"))]
async fn postgres(_: &str) -> Result<Place, Failure> {
    Err(missing("PostgreSQL", "postgres"))
}

#[cfg(feature = "postgres")]
pub(super) fn schema() -> Result<&'static str, Failure> {
    Ok(leasehold_fence::postgres::SCHEMA)
}

#[cfg(not(feature = "postgres"))]
pub(super) fn schema() -> Result<&'static str, Failure> {
    Err(missing("PostgreSQL", "postgres"))
}

#[cfg(not(all(feature = "sqlite", feature = "postgres")))]
fn missing(name: &str, feature: &str) -> Failure {
    Failure::config(format!("this build has no {name}"))
        .hint(format!("build it with: cargo build --release -p leasehold-cli --features {feature}"))
}
