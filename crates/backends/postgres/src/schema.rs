//! The tables and functions: made by whoever comes first, in a schema of their own, and versioned.

use leasehold_core::{Error, ErrorKind, Result};
use tokio_postgres::{error::SqlState, types::Type};

use crate::{
    config::Config,
    error,
    wire::{Parameter, Question, Wire},
};

/// The schema unless told otherwise, and the one that the files name.
pub(crate) const DEFAULT: &str = "leasehold";

/// The format of the tables. A newer one is refused.
const FORMAT: i64 = 1;
/// Counts corrections of the functions within a format. An older one is replaced, a newer one is left alone.
const REVISION: i64 = 2;
/// The advisory lock under which tables are made, so that only one process does. Any number would do.
const LOCK: i64 = 7_815_042_690_214_861;

const FILES: [&str; 7] = [
    include_str!("../sql/schema.sql"),
    include_str!("../sql/resource.sql"),
    include_str!("../sql/acquire.sql"),
    include_str!("../sql/renew.sql"),
    include_str!("../sql/release.sql"),
    include_str!("../sql/watch.sql"),
    include_str!("../sql/order.sql"),
];

/// A statement that names the schema.
pub(crate) fn named(sql: &str, schema: &str) -> String {
    sql.replace("leasehold.", &format!("{schema}."))
}

/// All of it, in one transaction. Does nothing where it is there already.
pub(crate) fn install(schema: &str) -> String {
    let make = format!(
        "-- Leases in PostgreSQL, format {FORMAT}. Safe to execute again.\n\
         BEGIN;\n\
         SET LOCAL client_min_messages = warning;\n\
         SELECT pg_advisory_xact_lock({LOCK});\n\n\
         DO $$ BEGIN\n    IF to_regnamespace('{schema}') IS NULL THEN\n        CREATE SCHEMA {schema};\n    END IF;\nEND $$;\n\n"
    );
    let files = FILES.map(|file| named(file, schema)).join("\n");
    let versions = format!(
        "\nINSERT INTO {schema}.meta (name, value) VALUES ('format', {FORMAT}), ('revision', {REVISION}), ('forgotten', 0)\n\
         ON CONFLICT (name) DO NOTHING;\n\
         UPDATE {schema}.meta SET value = {REVISION} WHERE name = 'revision' AND value < {REVISION};\n\
         COMMIT;\n"
    );
    make + &files + &versions
}

/// Makes sure that the tables are there, and that we can read them.
pub(crate) async fn establish(wire: &Wire, config: &Config) -> Result<()> {
    let schema = &config.schema;
    match versions(wire, config).await? {
        Some((format, _)) if format > FORMAT => {
            let message = format!(
                "the tables in the schema {schema} have format {format}, of a newer leasehold; this one knows {FORMAT}: \
                 upgrade it, or use another schema"
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        Some((_, revision)) if revision >= REVISION => Ok(()),
        Some(_) => {
            if let Err(error) = make(wire, schema).await {
                // The older functions do the same, less well: whoever may, brings the newer ones.
                let error = error::of_statement(&error);
                tracing::warn!(%error, schema, "cannot bring the functions up to date");
            }
            Ok(())
        }
        None => {
            make(wire, schema).await.map_err(|error| cannot_create(&error, schema))?;
            // A script answers without a request id: so look.
            let made = versions(wire, config).await?;
            made.map(drop).ok_or_else(|| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("the schema {schema} was made and is not there: try again"),
                )
            })
        }
    }
}

async fn make(wire: &Wire, schema: &str) -> Result<(), tokio_postgres::Error> {
    let made = wire.client().batch_execute(&install(schema)).await;
    if made.is_err() {
        let _ = wire.client().batch_execute("ROLLBACK").await;
    }
    made
}

fn cannot_create(error: &tokio_postgres::Error, schema: &str) -> Error {
    if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return error::of_statement(error);
    }
    let message = format!(
        "the role may not create the schema {schema} and its tables: as one who may, execute what \
         `leasehold schema postgres --schema {schema}` prints, then GRANT USAGE ON SCHEMA {schema} and SELECT, INSERT, \
         UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} to the role"
    );
    Error::new(ErrorKind::Denied, message)
}

/// Format and revision, if the tables are there.
async fn versions(wire: &Wire, config: &Config) -> Result<Option<(i64, i64)>> {
    let schema = &config.schema;
    let table = format!("{schema}.meta");
    let ask = async |sql: &str, parameters: &[Parameter<'_>]| {
        let answer = wire.ask(&Question::new(sql, parameters), config.timeout).await;
        answer.map_err(|failure| failure.error)
    };
    let strange = || Error::new(ErrorKind::Corrupt, format!("{table} is not a table of leasehold"));
    // Whether the role may see it or not: a schema that is there and closed to us is not one to create.
    let there = "SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'meta' AND relnamespace = to_regnamespace($1)), \
                 $2::bigint";
    let rows = ask(there, &[(schema, Type::TEXT)]).await?;
    if !rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        return Ok(None);
    }
    let sql = format!(
        "SELECT (SELECT value FROM {table} WHERE name = 'format'), (SELECT value FROM {table} WHERE name = 'revision'), \
         $1::bigint"
    );
    let rows = ask(&sql, &[]).await.map_err(|error| may_not_use(error, schema))?;
    let row = rows.first().ok_or_else(strange)?;
    let (format, revision): (Option<i64>, Option<i64>) =
        (row.try_get(0).map_err(|_| strange())?, row.try_get(1).map_err(|_| strange())?);
    Ok(Some((format.ok_or_else(strange)?, revision.ok_or_else(strange)?)))
}

fn may_not_use(error: Error, schema: &str) -> Error {
    if error.kind() != ErrorKind::Denied {
        return error;
    }
    let message = format!(
        "the role may not use the schema {schema}: GRANT USAGE ON SCHEMA {schema} and SELECT, INSERT, UPDATE, DELETE ON \
         ALL TABLES IN SCHEMA {schema} to it"
    );
    Error::new(ErrorKind::Denied, message)
}
