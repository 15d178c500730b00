//! Triggers, so that every client of the database is fenced.

use leasehold_core::{Effect, Error, ErrorKind, Result};
use tokio_postgres::{GenericClient, types::Type};

use super::{error::interpret, setup};
use crate::{Fenced, template::Template};

const GUARD: &str = include_str!("../../sql/postgres/guard.sql");

/// Fences a table: from now on a row is inserted, updated or deleted only under the pass of its resource, whoever does
/// it. The table is named as in SQL: `orders`, `sales.orders`, `"Odd name"`.
///
/// Show the pass with [`enter`](super::enter), or with `set_config('leasehold.pass', 'TOKEN OWNER RESOURCE', true)`.
/// Installed again, the new template replaces the old one. Takes a lock on the table for a moment.
///
/// # Errors
/// `Invalid` if there is no such table, or no such column; `Denied` if the role does not own the table.
pub async fn install(
    client: &(impl GenericClient + Sync),
    table: &str,
    template: &Template,
) -> Result<String> {
    let target = find(client, table).await?;
    for column in template.columns() {
        check_column(client, &target, column).await?;
    }
    setup(client).await?;
    client.batch_execute(&script(&target, template)).await.map_err(unknown)?;
    Ok(target)
}

/// The triggers as SQL. `target` is a table as PostgreSQL quotes it.
fn script(target: &str, template: &Template) -> String {
    // A literal that means the same whatever `standard_conforming_strings` says.
    let literal = format!("E'{}'", template.to_string().replace('\\', "\\\\").replace('\'', "''"));
    GUARD.replace("{template}", &literal).replace("{table}", target)
}

/// Takes the fence off a table. Marks stay: put on again, it goes on where it was.
///
/// # Errors
/// `Invalid` if the table is not fenced.
pub async fn remove(client: &(impl GenericClient + Sync), table: &str) -> Result<String> {
    let target = find(client, table).await?;
    if !status(client).await?.iter().any(|fenced| fenced.table == target) {
        return Err(invalid(format!("{target} is not fenced")));
    }
    let drop = ["zz_leasehold_fence", "zz_leasehold_fence_truncate"]
        .map(|name| format!("DROP TRIGGER IF EXISTS {name} ON {target};"));
    client.batch_execute(&drop.concat()).await.map_err(unknown)?;
    Ok(target)
}

/// The tables that are fenced, and how; also those that were fenced by a `CREATE TRIGGER` of your own.
///
/// # Errors
/// Whatever the server says.
pub async fn status(client: &(impl GenericClient + Sync)) -> Result<Vec<Fenced>> {
    // For each row, and not a partition's copy of its parent's trigger.
    let select = "SELECT format('%I.%I', s.nspname, c.relname), \
                         convert_from(substr(t.tgargs, 1, length(t.tgargs) - 1), getdatabaseencoding()), \
                         t.tgenabled IN ('O', 'A') \
                    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace s ON s.oid = c.relnamespace \
                    JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace \
                   WHERE n.nspname = 'leasehold_fence' AND p.proname = 'guard' AND t.tgnargs = 1 \
                     AND t.tgtype & 1 = 1 AND t.tgparentid = 0 ORDER BY 1";
    let rows = client.query_typed(select, &[]).await.map_err(|error| interpret(error, Effect::None))?;
    let fenced =
        |row: &tokio_postgres::Row| Fenced { table: row.get(0), template: row.get(1), active: row.get(2) };
    Ok(rows.iter().map(fenced).collect())
}

/// The table as the server finds it, with its schema, quoted.
async fn find(client: &(impl GenericClient + Sync), table: &str) -> Result<String> {
    let select = "SELECT format('%I.%I', n.nspname, c.relname), c.relkind::text FROM pg_class c \
                  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)";
    let rows = client.query_typed(select, &[(&table, Type::TEXT)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    let Some(row) = rows.first() else { return Err(invalid(format!("there is no table {table}"))) };
    match row.get::<_, &str>(1) {
        "r" | "p" => Ok(row.get(0)),
        "v" | "m" => Err(invalid(format!("{table} is a view: fence the tables behind it"))),
        _ => Err(invalid(format!("{table} is not a table"))),
    }
}

async fn check_column(client: &(impl GenericClient + Sync), target: &str, column: &str) -> Result<()> {
    let select = "SELECT 1 FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = $2 AND attnum > 0 AND NOT attisdropped";
    let rows = client.query_typed(select, &[(&target, Type::TEXT), (&column, Type::TEXT)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    if rows.is_empty() {
        Err(invalid(format!("the table {target} has no column {column:?}")))
    } else {
        Ok(())
    }
}

fn unknown(error: tokio_postgres::Error) -> Error {
    interpret(error, Effect::Unknown)
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
