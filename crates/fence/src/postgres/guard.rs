//! Triggers on a table, so that every client of the database is fenced.

use leasehold_core::{Effect, Error, ErrorKind, Result};
use tokio_postgres::{GenericClient, types::Type};

use super::{ensure_schema, error::interpret};
use crate::{Fenced, tables::filled, template::Template};

const GUARD: &str = include_str!("../../sql/postgres/guard.sql");
const TRUNCATE: &str = include_str!("../../sql/postgres/truncate.sql");
const RELATED_TABLES: &str = include_str!("../../sql/postgres/related_tables.sql");
const STATUS: &str = include_str!("../../sql/postgres/status.sql");
/// The triggers of the fence as `t`, their tables as `c`, and the schemas of these as `s`.
const TRIGGERS: &str = "pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace s ON s.oid = c.relnamespace \
     JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace \
     WHERE n.nspname = 'leasehold_fence' AND p.proname = 'guard'";

/// Fences a table: from now on every client can insert, update or delete a row only under the pass of its resource. The
/// table is named as in SQL: `orders`, `sales.orders`, `"Odd name"`.
///
/// Show the pass with [`enter`](super::enter), or with `set_config('leasehold.pass', 'TOKEN OWNER RESOURCE', true)`.
/// Called again, the new template replaces the old one. It locks the table for a moment. Returns the name of the table with
/// its schema.
///
/// A partitioned table is fenced with its partitions, including partitions that are added later. But TRUNCATE of such a later
/// partition is refused only after this was called again: [`status`] names these partitions. A table that inherits from this
/// one needs a fence of its own, which must be installed first.
///
/// # Errors
/// `Invalid` if the table or a column of the template does not exist, if such a column is generated, if a partition is
/// fenced by itself, if the partitioned table of this partition is fenced, or if a table that inherits from this one has no
/// fence. `Denied` if the role does not own the table.
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
    let related = related_tables(client, &target).await?;
    check_related(&target, &related, is_fenced)?;
    ensure_schema(client).await?;
    // An E'' literal means the same whatever `standard_conforming_strings` is.
    let literal = format!("E'{}'", template.to_string().replace('\\', "\\\\").replace('\'', "''"));
    let on = |script: &str, table: &str| filled(script, &[("{template}", &literal), ("{table}", table)]);
    let tables = with_partitions(&target, &related);
    // One script is one transaction: the table is never without its fence.
    let mut script = drop_triggers(client, &tables).await?;
    script += &on(GUARD, &target);
    script.extend(tables.iter().map(|table| on(TRUNCATE, table)));
    client.batch_execute(&script).await.map_err(unknown)?;
    Ok(target)
}

/// Removes the fence from a table. The marks stay, so a fence that is installed again goes on from them.
///
/// # Errors
/// `Invalid` if the table is not fenced.
pub async fn remove(client: &(impl GenericClient + Sync), table: &str) -> Result<String> {
    let target = find(client, table).await?;
    let fenced = status(client).await?;
    let is_fenced = |name: &str| fenced.iter().any(|it| it.table == name);
    let related = related_tables(client, &target).await?;
    if !is_fenced(&target) {
        let parent = related
            .iter()
            .find(|(name, relation)| *relation == TableRelation::PartitionedParent && is_fenced(name));
        return Err(match parent {
            Some((parent, _)) => partition_of_fenced(&target, parent),
            None => {
                invalid(format!("{target} is not fenced: `leasehold fence status` lists the fenced tables"))
            }
        });
    }
    let script = drop_triggers(client, &with_partitions(&target, &related)).await?;
    client.batch_execute(&script).await.map_err(unknown)?;
    Ok(target)
}

/// The statements that drop the triggers of the fence on these tables, including triggers that a migration of yours created
/// under other names.
async fn drop_triggers(client: &(impl GenericClient + Sync), tables: &[&str]) -> Result<String> {
    let select = format!(
        "SELECT format('DROP TRIGGER %I ON %I.%I;', t.tgname, s.nspname, c.relname) \
         FROM {TRIGGERS} AND t.tgparentid = 0 AND format('%I.%I', s.nspname, c.relname) = ANY ($1)"
    );
    let rows = client.query_typed(&select, &[(&tables, Type::TEXT_ARRAY)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    Ok(rows.iter().map(|row| row.get::<_, &str>(0)).collect())
}

/// The relation of another table to the table that is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableRelation {
    /// The fenced table is a partition of it.
    PartitionedParent,
    /// It is a partition of the fenced table.
    Partition,
    /// It inherits from the fenced table.
    InheritanceChild,
}

/// The tables that share rows with this one.
async fn related_tables(
    client: &(impl GenericClient + Sync),
    target: &str,
) -> Result<Vec<(String, TableRelation)>> {
    let rows = client.query_typed(RELATED_TABLES, &[(&target, Type::TEXT)]).await;
    let relation = |row: &tokio_postgres::Row| match row.get(1) {
        "parent" => TableRelation::PartitionedParent,
        "partition" => TableRelation::Partition,
        _ => TableRelation::InheritanceChild,
    };
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    Ok(rows.iter().map(|row| (row.get(0), relation(row))).collect())
}

/// Checks that the same row never needs the passes of two fences, and that no table that shares rows has none.
fn check_related(
    target: &str,
    related: &[(String, TableRelation)],
    is_fenced: impl Fn(&str) -> bool,
) -> Result<()> {
    for (name, relation) in related {
        match relation {
            TableRelation::PartitionedParent if is_fenced(name) => {
                return Err(partition_of_fenced(target, name));
            }
            TableRelation::Partition if is_fenced(name) => {
                let why = format!("its partition {name} is fenced by itself: remove that fence first");
                return Err(invalid(format!("{target}: {why}")));
            }
            TableRelation::InheritanceChild if !is_fenced(name) => {
                let why = format!("{name} inherits from it and is not fenced: fence {name} first");
                return Err(invalid(format!("{target}: {why}")));
            }
            _ => {}
        }
    }
    Ok(())
}

fn with_partitions<'a>(target: &'a str, related: &'a [(String, TableRelation)]) -> Vec<&'a str> {
    let partitions = related.iter().filter(|(_, relation)| *relation == TableRelation::Partition);
    [target].into_iter().chain(partitions.map(|(name, _)| name.as_str())).collect()
}

fn partition_of_fenced(target: &str, parent: &str) -> Error {
    invalid(format!("{target} is a partition of {parent}, which is fenced: change the fence of {parent}"))
}

/// The fenced tables with their templates, including tables that you fenced with a `CREATE TRIGGER` of your own.
///
/// # Errors
/// Errors of the server.
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

/// Finds a table, and returns its name with its schema, quoted.
async fn find(client: &(impl GenericClient + Sync), table: &str) -> Result<String> {
    let select = "SELECT format('%I.%I', n.nspname, c.relname), c.relkind::text, n.nspname = 'leasehold_fence' FROM pg_class c \
                  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)";
    let rows = client.query_typed(select, &[(&table, Type::TEXT)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    let Some(row) = rows.first() else {
        return Err(invalid(format!("there is no table {table}: check its name and schema")));
    };
    match row.get::<_, &str>(1) {
        _ if row.get(2) => {
            Err(invalid(format!("{table} is one of the fence's own tables, which cannot be fenced")))
        }
        "r" | "p" => Ok(row.get(0)),
        "v" | "m" => Err(invalid(format!("{table} is a view: fence the tables behind it"))),
        _ => Err(invalid(format!("{table} is not a table: only tables can be fenced"))),
    }
}

async fn check_column(client: &(impl GenericClient + Sync), target: &str, column: &str) -> Result<()> {
    let select = "SELECT attgenerated <> '' FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = $2 AND attnum > 0 AND NOT attisdropped";
    let rows = client.query_typed(select, &[(&target, Type::TEXT), (&column, Type::TEXT)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    match rows.first() {
        None => Err(invalid(format!("the table {target} has no column {column:?}"))),
        // A BEFORE trigger runs before generated columns are computed, so it sees null.
        Some(row) if row.get(0) => Err(invalid(format!(
            "the column {column:?} of {target} is generated: name the columns that it is computed from"
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
