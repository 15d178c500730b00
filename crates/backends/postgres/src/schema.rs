//! Creates and updates the tables and functions, in a schema of their own.
//!
//! `meta` holds two versions:
//! - `format`, of the tables. A client refuses a newer one.
//! - `revision`, of the functions. A client replaces older functions and leaves newer ones alone.
//!
//! Only these numbers are compared, never the text of a function. A change of a comment in `sql/` therefore reaches new
//! schemas only; a change of what a function does needs a new [`REVISION`]. ADR 0021.

use leasehold_core::{Error, ErrorKind, Result};
use tokio_postgres::{error::SqlState, types::Type};

use crate::{
    config::Config,
    connection::{Connection, Parameter, Statement},
    error,
};

/// Which functions are in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Functions {
    /// Those of this release, or of a later one that can do the same.
    Current,
    /// Those of an earlier release, because they could not be replaced. They have no batches, and pass over no claim.
    Previous,
}

/// The default name of the schema. The files in `sql/` use it too.
pub(crate) const DEFAULT: &str = "leasehold";

/// The format of the tables that this release reads and writes.
const FORMAT: i64 = 1;
/// Counts changes of the functions within a format.
const REVISION: i64 = 6;
/// The advisory lock under which the schema is created, so that only one process does it. The number has no meaning.
const LOCK: i64 = 7_815_042_690_214_861;

/// Adds what the tables of an earlier revision do not have, in transactions of its own.
const COLUMNS: &str = include_str!("../sql/columns.sql");

const FILES: [&str; 10] = [
    include_str!("../sql/schema.sql"),
    include_str!("../sql/resource.sql"),
    include_str!("../sql/acquire.sql"),
    include_str!("../sql/acquire_many.sql"),
    include_str!("../sql/renew.sql"),
    include_str!("../sql/release.sql"),
    include_str!("../sql/release_many.sql"),
    include_str!("../sql/watch.sql"),
    include_str!("../sql/order.sql"),
    // After the functions that these call.
    include_str!("../sql/previous.sql"),
];

/// Finds the table `meta` even if the role may not use the schema: a schema that exists must not be created again.
const META_EXISTS: &str = "SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'meta' AND relnamespace = to_regnamespace($1)), \
                           $2::bigint";

/// A statement with the name of the schema put in.
pub(crate) fn in_schema(sql: &str, schema: &str) -> String {
    sql.replace("leasehold.", &format!("{schema}."))
}

/// The script that creates or updates everything. The functions are replaced in one transaction. It can be executed again.
pub(crate) fn install(schema: &str) -> String {
    let columns = in_schema(COLUMNS, schema).replace(":lock", &LOCK.to_string());
    let begin = format!(
        "-- Leases in PostgreSQL, format {FORMAT}. Safe to execute again.\n\n\
         {columns}\n\
         BEGIN;\n\
         SET LOCAL client_min_messages = warning;\n\
         SELECT pg_advisory_xact_lock({LOCK});\n\n\
         DO $$ BEGIN\n    IF to_regnamespace('{schema}') IS NULL THEN\n        CREATE SCHEMA {schema};\n    END IF;\nEND $$;\n\n"
    );
    let files = FILES.map(|file| in_schema(file, schema)).join("\n");
    let versions = format!(
        "\nINSERT INTO {schema}.meta (name, value) VALUES ('format', {FORMAT}), ('revision', {REVISION}), ('forgotten', 0)\n\
         ON CONFLICT (name) DO NOTHING;\n\
         UPDATE {schema}.meta SET value = {REVISION} WHERE name = 'revision' AND value < {REVISION};\n\
         COMMIT;\n"
    );
    begin + &files + &versions
}

/// Makes sure that the tables and functions exist and that this release can use them. Returns whose functions they are.
pub(crate) async fn ensure(connection: &Connection, config: &Config) -> Result<Functions> {
    let schema = &config.schema;
    match read_versions(connection, config).await? {
        Some(versions) if versions.format > FORMAT => {
            let message = format!(
                "the tables in the schema {schema} have format {}, of a newer leasehold; this one supports {FORMAT}: \
                 upgrade it, or use another schema",
                versions.format
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        Some(versions) if versions.functions() == Functions::Current => Ok(Functions::Current),
        Some(_) => match execute_script(connection, schema).await {
            Ok(()) => Ok(Functions::Current),
            Err(error) => {
                // The older functions do the same, less well. A client that can replace them will do so.
                let error = error::of_statement(&error, connection.hosts());
                tracing::warn!(%error, schema, "cannot update the functions in the schema");
                Ok(Functions::Previous)
            }
        },
        None => {
            execute_script(connection, schema)
                .await
                .map_err(|error| cannot_create(&error, connection.hosts(), schema))?;
            // The reply to a script carries no request id, so it proves nothing (ADR 0033): read the versions instead.
            let created = read_versions(connection, config).await?;
            created.map(|versions| versions.functions()).ok_or_else(|| {
                let message = format!(
                    "the schema {schema} was created and does not exist: another client dropped it; try again"
                );
                Error::new(ErrorKind::Unavailable, message)
            })
        }
    }
}

async fn execute_script(connection: &Connection, schema: &str) -> Result<(), tokio_postgres::Error> {
    let result = connection.client().batch_execute(&install(schema)).await;
    // A failed script leaves its transaction open, and the connection is used for requests later.
    if result.is_err() {
        let _ = connection.client().batch_execute("ROLLBACK").await;
    }
    result
}

fn cannot_create(error: &tokio_postgres::Error, hosts: &str, schema: &str) -> Error {
    if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return error::of_statement(error, hosts);
    }
    let message = format!(
        "the role may not create the schema {schema} and its tables: as a role that may, execute what \
         `leasehold schema postgres --schema {schema}` prints, then GRANT USAGE ON SCHEMA {schema} and SELECT, INSERT, \
         UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} to this role"
    );
    Error::new(ErrorKind::Denied, message)
}

/// The versions in `meta`.
struct Versions {
    format: i64,
    revision: i64,
}

impl Versions {
    fn functions(&self) -> Functions {
        if self.revision >= REVISION { Functions::Current } else { Functions::Previous }
    }
}

/// Reads the versions; `None` if the tables do not exist.
async fn read_versions(connection: &Connection, config: &Config) -> Result<Option<Versions>> {
    let schema = &config.schema;
    let table = format!("{schema}.meta");
    let query = async |sql: &str, parameters: &[Parameter<'_>]| {
        let reply = connection.query(&Statement::new(sql, parameters), config.timeout).await;
        reply.map_err(|failed| failed.error)
    };
    let rows = query(META_EXISTS, &[(schema, Type::TEXT)]).await?;
    if !rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        return Ok(None);
    }
    let sql = format!(
        "SELECT (SELECT value FROM {table} WHERE name = 'format'), (SELECT value FROM {table} WHERE name = 'revision'), \
         $1::bigint"
    );
    let rows = query(&sql, &[]).await.map_err(|error| cannot_use(error, schema))?;
    let version = |index| rows.first().and_then(|row| row.try_get::<_, Option<i64>>(index).ok().flatten());
    match (version(0), version(1)) {
        (Some(format), Some(revision)) => Ok(Some(Versions { format, revision })),
        _ => {
            let message = format!(
                "{table} is not a table of leasehold: it has no format and revision; use another schema, with schema= \
                 in the URL"
            );
            Err(Error::new(ErrorKind::Corrupt, message))
        }
    }
}

fn cannot_use(error: Error, schema: &str) -> Error {
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    let message = format!(
        "the role may not use the schema {schema}: GRANT USAGE ON SCHEMA {schema} and SELECT, INSERT, UPDATE, DELETE ON \
         ALL TABLES IN SCHEMA {schema} to it"
    );
    Error::new(ErrorKind::Denied, message)
}
