//! Triggers, so that every client of the database is fenced.

use leasehold_core::{Effect, Error, ErrorKind, Result};
use tokio_postgres::{GenericClient, types::Type};

use super::{error::interpret, see_to_schema};
use crate::{Fenced, tables::filled, template::Template};

const GUARD: &str = include_str!("../../sql/postgres/guard.sql");
const TRUNCATE: &str = include_str!("../../sql/postgres/truncate.sql");
const KIN: &str = include_str!("../../sql/postgres/kin.sql");
const STATUS: &str = include_str!("../../sql/postgres/status.sql");
/// The fence's triggers `t`, on tables `c` in schemas `s`.
const TRIGGERS: &str = "pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace s ON s.oid = c.relnamespace \
     JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace \
     WHERE n.nspname = 'leasehold_fence' AND p.proname = 'guard'";

/// Fences a table: from now on a row is inserted, updated or deleted only under the pass of its resource, whoever does
/// it. The table is named as in SQL: `orders`, `sales.orders`, `"Odd name"`.
///
/// Show the pass with [`enter`](super::enter), or with `set_config('leasehold.pass', 'TOKEN OWNER RESOURCE', true)`.
/// Installed again, the new template replaces the old one. Takes a lock on the table for a moment.
///
/// A partitioned table is fenced with its partitions, later ones too; but TRUNCATE of a later one is refused only once this
/// has been called again: [`status`] names those. Tables that inherit from it are fenced for themselves, and first.
///
/// # Errors
/// `Invalid` if there is no such table, or no such column, or one that is computed from others; if a part of the table is
/// fenced and the whole is not, or the other way round. `Denied` if the role does not own the table.
pub async fn install(
    client: &(impl GenericClient + Sync),
    table: &str,
    template: &Template,
) -> Result<String> {
    let target = find(client, table).await?;
    for column in template.columns() {
        check_column(client, &target, column).await?;
    }
    let fenced = status(client).await?;
    let is_fenced = |name: &str| fenced.iter().any(|it| it.table == name);
    let kin = kin(client, &target).await?;
    for (name, kinship) in &kin {
        match kinship {
            Kinship::Whole if is_fenced(name) => return Err(part_of(&target, name)),
            Kinship::Part if is_fenced(name) => {
                let why = format!("{name}, a part of it, is fenced by itself: remove that fence first");
                return Err(invalid(format!("{target}: {why}")));
            }
            Kinship::Child if !is_fenced(name) => {
                let why = format!("{name} inherits from it, and is not fenced: fence that first");
                return Err(invalid(format!("{target}: {why}")));
            }
            _ => {}
        }
    }
    see_to_schema(client).await?;
    // A literal that means the same whatever `standard_conforming_strings` says.
    let literal = format!("E'{}'", template.to_string().replace('\\', "\\\\").replace('\'', "''"));
    let on = |script: &str, table: &str| filled(script, &[("{template}", &literal), ("{table}", table)]);
    let tables = with_parts(&target, &kin);
    let mut script = drop_triggers(client, &tables).await?;
    script += &on(GUARD, &target);
    script.extend(tables.iter().map(|table| on(TRUNCATE, table)));
    client.batch_execute(&script).await.map_err(unknown)?;
    Ok(target)
}

/// Takes the fence off a table. Marks stay: put on again, it goes on where it was.
///
/// # Errors
/// `Invalid` if the table is not fenced.
pub async fn remove(client: &(impl GenericClient + Sync), table: &str) -> Result<String> {
    let target = find(client, table).await?;
    let fenced = status(client).await?;
    let is_fenced = |name: &str| fenced.iter().any(|it| it.table == name);
    let kin = kin(client, &target).await?;
    if !is_fenced(&target) {
        let whole = kin.iter().find(|(name, kinship)| *kinship == Kinship::Whole && is_fenced(name));
        return Err(match whole {
            Some((whole, _)) => part_of(&target, whole),
            None => invalid(format!("{target} is not fenced")),
        });
    }
    let script = drop_triggers(client, &with_parts(&target, &kin)).await?;
    client.batch_execute(&script).await.map_err(unknown)?;
    Ok(target)
}

/// What takes the triggers off these tables, those too that a migration made by another name.
async fn drop_triggers(client: &(impl GenericClient + Sync), tables: &[&str]) -> Result<String> {
    let select = format!(
        "SELECT format('DROP TRIGGER %I ON %I.%I;', t.tgname, s.nspname, c.relname) \
         FROM {TRIGGERS} AND t.tgparentid = 0 AND format('%I.%I', s.nspname, c.relname) = ANY ($1)"
    );
    let rows = client.query_typed(&select, &[(&tables, Type::TEXT_ARRAY)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    Ok(rows.iter().map(|row| row.get::<_, &str>(0)).collect())
}

/// How another table stands to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinship {
    /// This is a partition of it.
    Whole,
    /// It is a partition of this.
    Part,
    /// It inherits from this.
    Child,
}

async fn kin(client: &(impl GenericClient + Sync), target: &str) -> Result<Vec<(String, Kinship)>> {
    let rows = client.query_typed(KIN, &[(&target, Type::TEXT)]).await;
    let kinship = |row: &tokio_postgres::Row| match row.get(1) {
        "whole" => Kinship::Whole,
        "part" => Kinship::Part,
        _ => Kinship::Child,
    };
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    Ok(rows.iter().map(|row| (row.get(0), kinship(row))).collect())
}

fn with_parts<'a>(target: &'a str, kin: &'a [(String, Kinship)]) -> Vec<&'a str> {
    let parts = kin.iter().filter(|(_, kinship)| *kinship == Kinship::Part).map(|(name, _)| name.as_str());
    [target].into_iter().chain(parts).collect()
}

fn part_of(target: &str, whole: &str) -> Error {
    invalid(format!("{target} is a part of {whole}, which is fenced: change the fence of that"))
}

/// The tables that are fenced, and how; also those that were fenced by a `CREATE TRIGGER` of your own.
///
/// # Errors
/// Whatever the server says.
pub async fn status(client: &(impl GenericClient + Sync)) -> Result<Vec<Fenced>> {
    let rows = client.query_typed(STATUS, &[]).await.map_err(|error| interpret(error, Effect::None))?;
    let fenced = |row: &tokio_postgres::Row| Fenced {
        table: row.get(0),
        template: row.get(1),
        active: row.get(2),
        truncatable: row.get(3),
    };
    Ok(rows.iter().map(fenced).collect())
}

/// The table as the server finds it, with its schema, quoted.
async fn find(client: &(impl GenericClient + Sync), table: &str) -> Result<String> {
    let select = "SELECT format('%I.%I', n.nspname, c.relname), c.relkind::text, n.nspname = 'leasehold_fence' FROM pg_class c \
                  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)";
    let rows = client.query_typed(select, &[(&table, Type::TEXT)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    let Some(row) = rows.first() else { return Err(invalid(format!("there is no table {table}"))) };
    match row.get::<_, &str>(1) {
        _ if row.get(2) => Err(invalid(format!("{table} is the fence's own"))),
        "r" | "p" => Ok(row.get(0)),
        "v" | "m" => Err(invalid(format!("{table} is a view: fence the tables behind it"))),
        _ => Err(invalid(format!("{table} is not a table"))),
    }
}

async fn check_column(client: &(impl GenericClient + Sync), target: &str, column: &str) -> Result<()> {
    let select = "SELECT attgenerated <> '' FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = $2 AND attnum > 0 AND NOT attisdropped";
    let rows = client.query_typed(select, &[(&target, Type::TEXT), (&column, Type::TEXT)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    match rows.first() {
        None => Err(invalid(format!("the table {target} has no column {column:?}"))),
        // The trigger sees the row before that.
        Some(row) if row.get(0) => Err(invalid(format!(
            "the column {column:?} of {target} is computed: name those that it comes from"
        ))),
        Some(_) => Ok(()),
    }
}

fn unknown(error: tokio_postgres::Error) -> Error {
    interpret(error, Effect::Unknown)
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
