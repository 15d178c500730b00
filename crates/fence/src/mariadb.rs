//! The fence for tables of MariaDB, as SQL for any driver.
//!
//! | what you have | what you call, in one transaction with your statements |
//! |---|---|
//! | any table | `CALL leasehold_fence.admit(?)` |
//! | a table that every client writes | [`trigger_statements`] once, then `CALL leasehold_fence.enter(?)` |
//! | a column `last_fencing_token` | `UPDATE … SET last_fencing_token = ? WHERE id = ? AND last_fencing_token < ?` |
//! | a read now and a write later | `CALL leasehold_fence.enter(?)` before the read, and again with the write |
//!
//! The parameter of `admit` and `enter` is the text of the pass: `pass.to_string()`. Everything is in the database
//! `leasehold_fence`, which [`schema_statements`] create. A refusal is an error with a SQLSTATE, which
//! [`explain_sqlstate`](crate::explain_sqlstate) turns into an error of leasehold. **MariaDB does not roll the transaction back
//! after an error: do so yourself.** ADR 0057.
//!
//! This module depends on no driver. It needs MariaDB 10.6 or later; it does not work on MySQL.

use leasehold_core::{Error, ErrorKind, Result};

use crate::{Template, template::TemplatePart};

/// The SQL that creates the database `leasehold_fence`, its tables and its procedures, for the client program `mariadb`.
/// Executed again, it updates the procedures. A driver executes the [`schema_statements`].
pub const SCHEMA: &str = include_str!("../sql/mariadb/schema.sql");

/// The longest name of a trigger, in characters.
const NAME_MAX: usize = 64;

/// The statements of [`SCHEMA`], one by one, as a driver executes them.
///
/// ```
/// for statement in leasehold_fence::mariadb::schema_statements() {
///     // with sqlx: sqlx::raw_sql(statement).execute(&pool).await?
///     # assert!(statement.contains("leasehold_fence"));
/// }
/// ```
pub fn schema_statements() -> impl Iterator<Item = &'static str> {
    // A line with // ends a statement, because statements contain semicolons.
    let (_, rest) = SCHEMA.split_once("DELIMITER //\n").unwrap_or_default();
    let (rest, _) = rest.rsplit_once("DELIMITER ;").unwrap_or_default();
    rest.split("\n//\n").map(str::trim).filter(|statement| !statement.is_empty())
}

/// The statements that fence a table for every client: three triggers, which refuse the write of a row without the pass of its
/// resource. Executed again, they replace the triggers.
///
/// The table is `["orders"]` in the database of the connection, or `["shop", "orders"]`. It must be an InnoDB table: other
/// engines cannot undo a write that a trigger refuses.
///
/// ```
/// let statements = leasehold_fence::mariadb::trigger_statements(["shop", "orders"], &"order/{id}".parse()?)?;
/// assert!(statements[2].contains("AFTER DELETE ON `shop`.`orders`"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
///
/// # Errors
/// `Invalid` if the name of the table is too long for the names of its triggers.
pub fn trigger_statements<'a>(table: impl AsRef<[&'a str]>, template: &Template) -> Result<[String; 3]> {
    let table = table.as_ref();
    let target = path(table);
    let label = literal(&table.join("."));
    let demand =
        |row: &str| format!("CALL leasehold_fence.demand({label}, {})", resource_of_row(template, row));
    let [old, new] = [demand("OLD"), demand("NEW")];
    let [old_name, new_name] = ["OLD", "NEW"].map(|row| resource_of_row(template, row));
    // A row that moves to another resource needs the passes of both.
    let both = format!(
        "BEGIN\n  {old};\n  IF NOT ({old_name} <=> {new_name} COLLATE utf8mb4_nopad_bin) THEN\n    {new};\n  END IF;\nEND"
    );
    let [insert, update, delete] = trigger_names(table)?;
    // AFTER the write: a new row has no AUTO_INCREMENT number before.
    let create = |name: &str, event: &str, body: &str| {
        format!("CREATE OR REPLACE TRIGGER {name} AFTER {event} ON {target} FOR EACH ROW\n{body}")
    };
    Ok([create(&insert, "INSERT", &new), create(&update, "UPDATE", &both), create(&delete, "DELETE", &old)])
}

/// The statements that remove the triggers of [`trigger_statements`]. The marks stay.
///
/// # Errors
/// As [`trigger_statements`].
pub fn remove_trigger_statements<'a>(table: impl AsRef<[&'a str]>) -> Result<[String; 3]> {
    Ok(trigger_names(table.as_ref())?.map(|name| format!("DROP TRIGGER IF EXISTS {name}")))
}

/// The names of the three triggers of a table, quoted, in the database of the table.
fn trigger_names(table: &[&str]) -> Result<[String; 3]> {
    let (last, database) = table.split_last().ok_or_else(|| invalid("the table has no name".to_owned()))?;
    let name = |event: &str| {
        let name = format!("leasehold_fence_{event}_{last}");
        if last.is_empty() || name.chars().count() > NAME_MAX {
            let room = NAME_MAX - "leasehold_fence_insert_".len();
            return Err(invalid(format!(
                "the name of the table, {last:?}, must have 1 to {room} characters"
            )));
        }
        Ok(path(&[database, &[name.as_str()]].concat()))
    };
    Ok([name("insert")?, name("update")?, name("delete")?])
}

/// The resource of a row as an expression: the template with the columns of `row`, which is `OLD` or `NEW`.
fn resource_of_row(template: &Template, row: &str) -> String {
    let parts = template.parts().iter().map(|part| match part {
        TemplatePart::Text(text) => literal(text),
        TemplatePart::Column(name) => format!("CONVERT({row}.{} USING utf8mb4)", quoted(name)),
    });
    format!("CONCAT({})", parts.collect::<Vec<_>>().join(", "))
}

fn path(names: &[&str]) -> String {
    names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(".")
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A text as a literal that means the same with and without `NO_BACKSLASH_ESCAPES`: in hex if it has a backslash or a quote.
fn literal(text: &str) -> String {
    if text.contains(['\\', '\'']) {
        let hex: String = text.bytes().map(|byte| format!("{byte:02X}")).collect();
        return format!("_utf8mb4 X'{hex}'");
    }
    format!("_utf8mb4 '{text}'")
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_split_into_statements() {
        let statements: Vec<_> = schema_statements().collect();
        let code = |statement: &str| -> String {
            statement
                .lines()
                .filter(|line| !line.starts_with("--"))
                .collect::<Vec<_>>()
                .join("\n")
                .trim()
                .to_owned()
        };
        let starts =
            |word: &str| statements.iter().filter(|statement| code(statement).starts_with(word)).count();
        assert_eq!(starts("CREATE") + starts("INSERT"), statements.len());
        assert_eq!(starts("CREATE OR REPLACE PROCEDURE"), 6);
        assert!(statements.iter().all(|statement| !statement.contains("DELIMITER")));
    }

    #[test]
    fn names_and_texts_are_quoted_whatever_they_contain() {
        let template = r"it's:order/\{Odd `name`}".parse::<Template>();
        assert!(template.is_err(), "a namespace has no quote");
        let template: Template = r"order/it's\{Odd `name`}".parse().unwrap();
        let [insert, ..] = trigger_statements(["my `shop`", "orders"], &template).unwrap();
        assert!(insert.contains("`my ``shop```.`leasehold_fence_insert_orders`"), "{insert}");
        assert!(insert.contains("NEW.`Odd ``name```"), "{insert}");
        assert!(insert.contains("_utf8mb4 X'6F726465722F697427735C'"), "{insert}");
        for bad in ["", &"x".repeat(42)] {
            assert_eq!(trigger_statements([bad], &template).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
