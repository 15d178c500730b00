//! Triggers, so that every client of the file is fenced.

use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{error::interpret, setup};
use crate::{
    Fenced,
    tables::{filled, quoted},
    template::{Part, Template},
};

const GUARD: &str = include_str!("../../sql/sqlite/guard.sql");
const PREFIX: &str = "leasehold_fence_guard_";
const VERBS: [&str; 3] = ["insert", "update", "delete"];
/// Our triggers on tables, whatever the tables are called by now.
const TRIGGERS: &str = "main.sqlite_schema WHERE type = 'trigger' AND substr(name, 1, length(?1)) = ?1";

/// Fences a table: from now on a row is written only under the pass of its resource, whoever writes it.
///
/// Show the pass with [`under`](super::under); a client without this crate, as [`docs/fencing.md`] shows. Installed
/// again, the new template replaces the old one.
///
/// # Errors
/// `Invalid` if there is no such table, or no such column; whatever SQLite says.
///
/// [`docs/fencing.md`]: https://github.com/leasehold/leasehold/blob/main/docs/fencing.md
pub fn install(connection: &Connection, table: &str, template: &Template) -> Result<()> {
    check_table(connection, table)?;
    for column in template.columns() {
        check_column(connection, table, column)?;
    }
    setup(connection)?;
    in_savepoint(connection, |connection| {
        drop_triggers(connection, table)?;
        let script = script(table, template, &free_names(connection, table)?);
        connection.execute_batch(&script).map_err(interpret)
    })
}

/// Names for the triggers. Those of a table that was renamed since have its old name.
fn free_names(connection: &Connection, table: &str) -> Result<[String; 3]> {
    let select = "SELECT count(*) FROM main.sqlite_schema WHERE name COLLATE NOCASE IN (?1, ?2, ?3)";
    let mut number = 1;
    loop {
        let end = if number == 1 { String::new() } else { format!("_{number}") };
        let names = VERBS.map(|verb| format!("{PREFIX}{table}_{verb}{end}"));
        let taken: u32 =
            connection.query_row(select, names.each_ref(), |row| row.get(0)).map_err(interpret)?;
        if taken == 0 {
            return Ok(names);
        }
        number += 1;
    }
}

/// The triggers as SQL.
fn script(table: &str, template: &Template, names: &[String; 3]) -> String {
    let [insert, update, delete] = names.each_ref().map(|name| quoted(name));
    let [old, new] = ["OLD", "NEW"].map(|row| expression(template, row));
    let places = [
        ("{insert}", insert.as_str()),
        ("{update}", &update),
        ("{delete}", &delete),
        ("{table}", &quoted(table)),
        ("{old}", &old),
        ("{new}", &new),
        ("{template}", &template.to_string().replace("*/", "* /")),
    ];
    let lines: Vec<_> = GUARD.lines().filter(|line| !line.starts_with("--")).collect();
    filled(&lines.join("\n"), &places)
}

fn expression(template: &Template, row: &str) -> String {
    let pieces = template.parts().iter().map(|part| match part {
        Part::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Part::Column(name) => format!("{row}.{}", quoted(name)),
    });
    format!("({})", pieces.collect::<Vec<_>>().join(" || "))
}

/// Takes the fence off a table. Marks stay: put on again, it goes on where it was.
///
/// # Errors
/// `Invalid` if the table is not fenced.
pub fn remove(connection: &Connection, table: &str) -> Result<()> {
    if !status(connection)?.iter().any(|fenced| fenced.table == table) {
        return Err(invalid(format!("{table:?} is not fenced")));
    }
    in_savepoint(connection, |connection| drop_triggers(connection, table))
}

/// The tables that are fenced, and how.
///
/// # Errors
/// Whatever SQLite says.
pub fn status(connection: &Connection) -> Result<Vec<Fenced>> {
    let select =
        format!("SELECT tbl_name, max(sql), count(*) = 3 FROM {TRIGGERS} GROUP BY tbl_name ORDER BY 1");
    let mut select = connection.prepare(&select).map_err(interpret)?;
    let rows = select.query_map([PREFIX], |row| {
        let (table, sql, whole): (_, String, _) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let template = sql.split_once("/* leasehold fence: ").and_then(|(_, rest)| rest.split_once(" */"));
        let template = template.map_or_else(String::new, |(template, _)| template.to_owned());
        Ok(Fenced { table, template, active: whole, truncatable: Vec::new() })
    });
    rows.map_err(interpret)?.map(|row| row.map_err(interpret)).collect()
}

fn drop_triggers(connection: &Connection, table: &str) -> Result<()> {
    let select = format!("SELECT name FROM {TRIGGERS} AND tbl_name = ?2");
    let mut select = connection.prepare(&select).map_err(interpret)?;
    let names = select.query_map([PREFIX, table], |row| row.get::<_, String>(0)).map_err(interpret)?;
    for name in names.collect::<Result<Vec<_>, _>>().map_err(interpret)? {
        let drop = format!("DROP TRIGGER main.{}", quoted(&name));
        connection.execute_batch(&drop).map_err(interpret)?;
    }
    Ok(())
}

/// All or nothing, inside a transaction of the caller's or without one.
fn in_savepoint(connection: &Connection, work: impl FnOnce(&Connection) -> Result<()>) -> Result<()> {
    connection.execute_batch("SAVEPOINT leasehold_fence").map_err(interpret)?;
    let done = work(connection);
    let end = if done.is_ok() {
        "RELEASE leasehold_fence"
    } else {
        "ROLLBACK TO leasehold_fence; RELEASE leasehold_fence"
    };
    let ended = connection.execute_batch(end).map_err(interpret);
    done.and(ended)
}

fn check_table(connection: &Connection, table: &str) -> Result<()> {
    if table.to_ascii_lowercase().starts_with("leasehold_fence_") {
        return Err(invalid(format!("{table:?} is the fence's own")));
    }
    let select = "SELECT type FROM main.sqlite_schema WHERE name = ?1 AND type IN ('table', 'view')";
    let found: Option<String> =
        connection.query_row(select, [table], |row| row.get(0)).optional().map_err(interpret)?;
    match found.as_deref() {
        Some("table") => Ok(()),
        Some(_) => Err(invalid(format!("{table:?} is a view: fence the tables behind it"))),
        None => Err(invalid(format!("there is no table {table:?}"))),
    }
}

fn check_column(connection: &Connection, table: &str, column: &str) -> Result<()> {
    // The computed ones too, and not what a virtual table hides.
    let select = "SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2 AND hidden <> 1";
    let found =
        connection.query_row(select, params![table, column], |_| Ok(())).optional().map_err(interpret)?;
    found.ok_or_else(|| invalid(format!("the table {table:?} has no column {column:?}")))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
