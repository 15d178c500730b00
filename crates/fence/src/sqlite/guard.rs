//! Triggers on a table, so that every client of the file is fenced.

use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{error::interpret, setup};
use crate::{
    Fenced,
    tables::{filled, quoted},
    template::{Template, TemplatePart},
};

const GUARD: &str = include_str!("../../sql/sqlite/guard.sql");
const PREFIX: &str = "leasehold_fence_guard_";
const VERBS: [&str; 3] = ["insert", "update", "delete"];
/// The triggers of the fence. They are found by their own names, because a table may have been renamed.
const TRIGGERS: &str = "main.sqlite_schema WHERE type = 'trigger' AND substr(name, 1, length(?1)) = ?1";

/// Fences a table: from now on every client can write a row only under the pass of its resource.
///
/// Show the pass with [`under`](super::under). [`docs/fencing.md`] describes how a client without this crate does it. Called
/// again, the new template replaces the old one.
///
/// # Errors
/// `Invalid` if the table or a column of the template does not exist; errors of SQLite.
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

/// Unused names for the triggers. The obvious names may be in use: a table that was renamed keeps triggers with its old name.
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

/// The SQL that creates the triggers.
fn script(table: &str, template: &Template, names: &[String; 3]) -> String {
    let [insert, update, delete] = names.each_ref().map(|name| quoted(name));
    let [old, new] = ["OLD", "NEW"].map(|row| expression(template, row));
    let placeholders = [
        ("{insert}", insert.as_str()),
        ("{update}", &update),
        ("{delete}", &delete),
        ("{table}", &quoted(table)),
        ("{old}", &old),
        ("{new}", &new),
        // In a comment, which a column with `*/` in its name would end.
        ("{template}", &template.to_string().replace("*/", "* /")),
    ];
    // Without the header. Its placeholders would be replaced, too, and a name with a line break would leave the comment.
    let lines: Vec<_> = GUARD.lines().filter(|line| !line.starts_with("--")).collect();
    filled(&lines.join("\n"), &placeholders)
}

/// The template as an SQL expression. `row` is `OLD` or `NEW`.
fn expression(template: &Template, row: &str) -> String {
    let pieces = template.parts().iter().map(|part| match part {
        TemplatePart::Text(text) => format!("'{}'", text.replace('\'', "''")),
        TemplatePart::Column(name) => format!("{row}.{}", quoted(name)),
    });
    format!("({})", pieces.collect::<Vec<_>>().join(" || "))
}

/// Removes the fence from a table. The marks stay, so a fence that is installed again goes on from them.
///
/// # Errors
/// `Invalid` if the table is not fenced.
pub fn remove(connection: &Connection, table: &str) -> Result<()> {
    if !status(connection)?.iter().any(|fenced| fenced.table == table) {
        return Err(invalid(format!(
            "{table:?} is not fenced: `leasehold fence status` lists the fenced tables"
        )));
    }
    in_savepoint(connection, |connection| drop_triggers(connection, table))
}

/// The fenced tables with their templates.
///
/// # Errors
/// Errors of SQLite.
pub fn status(connection: &Connection) -> Result<Vec<Fenced>> {
    let select =
        format!("SELECT tbl_name, max(sql), count(*) = 3 FROM {TRIGGERS} GROUP BY tbl_name ORDER BY 1");
    let mut select = connection.prepare(&select).map_err(interpret)?;
    let rows = select.query_map([PREFIX], |row| {
        let (table, sql, active): (_, String, _) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let template = sql.split_once("/* leasehold fence: ").and_then(|(_, rest)| rest.split_once(" */"));
        let template = template.map_or_else(String::new, |(template, _)| template.to_owned());
        Ok(Fenced { table, template, active, truncatable: Vec::new() })
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

/// Runs `work` so that all of it is done or nothing, with or without a transaction of the caller.
fn in_savepoint(connection: &Connection, work: impl FnOnce(&Connection) -> Result<()>) -> Result<()> {
    connection.execute_batch("SAVEPOINT leasehold_fence").map_err(interpret)?;
    let result = work(connection);
    let end = if result.is_ok() {
        "RELEASE leasehold_fence"
    } else {
        "ROLLBACK TO leasehold_fence; RELEASE leasehold_fence"
    };
    let ended = connection.execute_batch(end).map_err(interpret);
    result.and(ended)
}

fn check_table(connection: &Connection, table: &str) -> Result<()> {
    if table.to_ascii_lowercase().starts_with("leasehold_fence_") {
        return Err(invalid(format!("{table:?} is one of the fence's own tables, which cannot be fenced")));
    }
    let select = "SELECT type FROM main.sqlite_schema WHERE name = ?1 AND type IN ('table', 'view')";
    let found: Option<String> =
        connection.query_row(select, [table], |row| row.get(0)).optional().map_err(interpret)?;
    match found.as_deref() {
        Some("table") => Ok(()),
        Some(_) => Err(invalid(format!("{table:?} is a view: fence the tables behind it"))),
        None => Err(invalid(format!("there is no table {table:?}: check its name"))),
    }
}

fn check_column(connection: &Connection, table: &str, column: &str) -> Result<()> {
    // Generated columns are included. Hidden columns of a virtual table (hidden = 1) are not.
    let select = "SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2 AND hidden <> 1";
    let found =
        connection.query_row(select, params![table, column], |_| Ok(())).optional().map_err(interpret)?;
    found.ok_or_else(|| invalid(format!("the table {table:?} has no column {column:?}: check the template")))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
