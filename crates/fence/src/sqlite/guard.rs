//! Triggers, so that every client of the file is fenced.

use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{error::interpret, setup};
use crate::{
    Fenced,
    tables::quoted,
    template::{Part, Template},
};

const GUARD: &str = include_str!("../../sql/sqlite/guard.sql");
const PREFIX: &str = "leasehold_fence_guard_";
const VERBS: [&str; 3] = ["insert", "update", "delete"];

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
    let script = script(table, template);
    in_savepoint(connection, |connection| {
        drop_triggers(connection, table)?;
        connection.execute_batch(&script).map_err(interpret)
    })
}

/// The triggers as SQL, to read or to run by other means.
pub(crate) fn script(table: &str, template: &Template) -> String {
    let name = |verb: &str| quoted(&format!("{PREFIX}{table}_{verb}"));
    // The template is kept in a comment of the trigger, where `status` finds it.
    let header = format!("/* leasehold fence: {} */ BEGIN", template.to_string().replace("*/", "* /"));
    GUARD
        .lines()
        .filter(|line| !line.starts_with("--"))
        .map(|line| if line == "BEGIN" { header.as_str() } else { line })
        .collect::<Vec<_>>()
        .join("\n")
        .replace("{insert}", &name("insert"))
        .replace("{update}", &name("update"))
        .replace("{delete}", &name("delete"))
        .replace("{table}", &quoted(table))
        .replace("{old}", &expression(template, "OLD"))
        .replace("{new}", &expression(template, "NEW"))
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
    let select = "SELECT tbl_name, sql FROM main.sqlite_schema WHERE type = 'trigger' AND name = ?1 || tbl_name || '_insert' ORDER BY 1";
    let mut select = connection.prepare(select).map_err(interpret)?;
    let rows = select.query_map([PREFIX], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    let mut all = Vec::new();
    for row in rows.map_err(interpret)? {
        let (table, sql) = row.map_err(interpret)?;
        let template = sql.split_once("/* leasehold fence: ").and_then(|(_, rest)| rest.split_once(" */"));
        let template = template.map_or_else(String::new, |(template, _)| template.to_owned());
        all.push(Fenced { table, template, active: true });
    }
    Ok(all)
}

fn drop_triggers(connection: &Connection, table: &str) -> Result<()> {
    for verb in VERBS {
        let name = quoted(&format!("{PREFIX}{table}_{verb}"));
        connection.execute_batch(&format!("DROP TRIGGER IF EXISTS main.{name}")).map_err(interpret)?;
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
    let select = "SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2";
    let found =
        connection.query_row(select, params![table, column], |_| Ok(())).optional().map_err(interpret)?;
    found.ok_or_else(|| invalid(format!("the table {table:?} has no column {column:?}")))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
