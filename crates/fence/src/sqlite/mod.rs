//! The fence for tables of SQLite, in your own transaction.
//!
//! | what you have | what you call |
//! |---|---|
//! | any table | [`admit`], then your statements, in one transaction |
//! | a column `last_fencing_token` | [`Column::raise`], then your statements, in one transaction |
//! | a table that every client writes | [`install`] once, then [`under`] |
//! | a read now and a write later | [`enter`] before the read, and one of the others with the write |

mod column;
mod error;
mod guard;

use leasehold_core::{Error, ErrorKind, FencingToken, Pass, Resource, Result};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

pub use column::Column;
pub use guard::{install, remove, status};

use crate::{
    Rebase, Rebased, observe,
    rule::{self, Admission, Mark, Refusal},
    tables,
};
use error::interpret;

/// The name of this downstream in metrics and logs.
pub const DOWNSTREAM: &str = "sqlite";

const SCHEMA: &str = include_str!("../../sql/sqlite/schema.sql");
/// The format of the tables that this release reads and writes.
const FORMAT: i64 = 1;

/// Creates the tables of the fence if they do not exist. Their names begin with `leasehold_fence_`.
///
/// # Errors
/// `Corrupt` if a newer release of leasehold created them; errors of SQLite.
pub fn setup(connection: &Connection) -> Result<()> {
    if let Some(found) = format(connection)? {
        return if found == FORMAT { Ok(()) } else { Err(other_format(found)) };
    }
    let in_transaction = !connection.is_autocommit();
    let script =
        if in_transaction { SCHEMA.to_owned() } else { format!("BEGIN IMMEDIATE;\n{SCHEMA}\nCOMMIT;") };
    connection.execute_batch(&script).map_err(|error| {
        if !in_transaction && !connection.is_autocommit() {
            drop(connection.execute_batch("ROLLBACK")); // report the first error, not an error of this
        }
        interpret(error)
    })
}

/// The format of the fence; `None` if the database has no fence.
fn format(connection: &Connection) -> Result<Option<i64>> {
    let exists = "SELECT 1 FROM main.sqlite_schema WHERE name = 'leasehold_fence_format'";
    if connection.query_row(exists, [], |_| Ok(())).optional().map_err(interpret)?.is_none() {
        return Ok(None);
    }
    let version = "SELECT version FROM main.leasehold_fence_format";
    connection.query_row(version, [], |row| row.get(0)).optional().map_err(interpret)
}

fn other_format(found: i64) -> Error {
    let message =
        format!("the fence has format {found}, this leasehold supports {FORMAT}: upgrade leasehold");
    Error::new(ErrorKind::Corrupt, message)
}

/// Admits the pass or refuses it, in the transaction of your effect.
///
/// ```
/// use leasehold_fence::{FencingToken, Pass, Resource, sqlite};
///
/// let mut database = rusqlite::Connection::open_in_memory()?;
/// database.execute_batch("CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT)")?;
/// sqlite::setup(&database)?;
/// # let pass = Pass::new(Resource::new("report", "42")?, FencingToken::new(34)?);
///
/// let transaction = database.transaction()?;
/// sqlite::admit(&transaction, &pass)?; // with a lease: &lease.pass()
/// transaction.execute("INSERT OR REPLACE INTO report VALUES (42, 'three pages')", [])?;
/// transaction.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Guarantees
/// After the commit, no lower token is admitted for this resource. Until then no other connection can write, because SQLite
/// has one writer at a time.
///
/// # Errors
/// `StaleToken`, counted and logged; `Invalid` outside a transaction, where check and effect would not be one atomic step;
/// `Unavailable` if another connection writes for longer than the busy timeout.
pub fn admit(transaction: &Connection, pass: &Pass) -> Result<Admission> {
    check_in_transaction(transaction)?;
    apply_rule(transaction, pass)?.map_err(|refusal| observe::refused(pass, refusal, DOWNSTREAM))
}

/// Applies the rule to the stored mark, and stores the new mark if it is raised.
fn apply_rule(transaction: &Connection, pass: &Pass) -> Result<Result<Admission, Refusal>> {
    let before = read(transaction, &pass.resource)?;
    let verdict = rule::judge(before.as_ref(), pass);
    if verdict == Ok(Admission::Raised) {
        write(transaction, &pass.resource, &Mark::raised(before.as_ref(), pass))?;
    }
    Ok(verdict)
}

/// Raises the mark *before the first read* of a read-modify-write that takes more than one transaction.
///
/// From then on no lower token is admitted, so a stale holder cannot change what you read before you write.
///
/// # Errors
/// As [`admit`]; `Invalid` inside a transaction: call [`admit`] there, before the first read.
pub fn enter(connection: &mut Connection, pass: &Pass) -> Result<Admission> {
    if !connection.is_autocommit() {
        let message = "a transaction is open: call admit in it, before its first read, instead of enter";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    judge(connection, pass)?.map_err(|refusal| observe::refused(pass, refusal, DOWNSTREAM))
}

/// Applies the rule in a transaction of its own. A refusal is neither counted nor logged here.
pub(crate) fn judge(connection: &mut Connection, pass: &Pass) -> Result<Result<Admission, Refusal>> {
    // Immediate: the write lock is taken before the mark is read, so no other connection can raise it in between.
    let behavior = TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(behavior).map_err(interpret)?;
    let verdict = apply_rule(&transaction, pass)?;
    transaction.commit().map_err(interpret)?;
    Ok(verdict)
}

/// Runs `work` while the pass is shown to the triggers of [`install`], in your transaction.
///
/// For several passes, nest the calls.
///
/// # Errors
/// As [`admit`], for the pass. The result of `work` is returned unchanged.
///
/// ```
/// # use leasehold_fence::{FencingToken, Pass, Resource, sqlite};
/// # let mut database = rusqlite::Connection::open_in_memory()?;
/// # database.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")?;
/// # let pass = Pass::new(Resource::new("order", "7")?, FencingToken::new(34)?);
/// sqlite::install(&database, "orders", &"order/{id}".parse()?)?;
/// assert!(database.execute("INSERT INTO orders VALUES (7, 'paid')", []).is_err());
///
/// let transaction = database.transaction()?;
/// sqlite::under(&transaction, &pass, |it| it.execute("INSERT INTO orders VALUES (7, 'paid')", []))??;
/// transaction.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn under<T>(transaction: &Connection, pass: &Pass, work: impl FnOnce(&Connection) -> T) -> Result<T> {
    check_in_transaction(transaction)?;
    let show = "INSERT INTO main.leasehold_fence_pass (resource, token, owner) VALUES (?1, ?2, ?3)";
    let name = pass.resource.to_string();
    let owner = pass.owner.map(|owner| owner.to_string());
    let mut show = transaction.prepare_cached(show).map_err(interpret)?;
    let shown = show.execute(params![name, pass.token.as_i64(), owner]);
    if let Err(error) = shown {
        if error::is_refusal(&error) {
            // The error of a trigger is a fixed text: read the numbers here, in the same transaction.
            let mark = read(transaction, &pass.resource)?;
            rule::judge(mark.as_ref(), pass)
                .map_err(|refusal| observe::refused(pass, refusal, DOWNSTREAM))?;
        }
        return Err(interpret(error));
    }
    let result = work(transaction);
    // Also if `work` failed: a pass that is still shown would make the commit fail.
    let hide = "DELETE FROM main.leasehold_fence_pass WHERE resource = ?1";
    let mut hide = transaction.prepare_cached(hide).map_err(interpret)?;
    hide.execute([&name]).map_err(interpret)?;
    Ok(result)
}

/// The mark of a resource; `None` if no token was admitted for it.
///
/// # Errors
/// Errors of SQLite.
pub fn mark(connection: &Connection, resource: &Resource) -> Result<Option<Mark>> {
    read(connection, resource)
}

/// Moves the mark of a resource to the numbers of another backend: see [`rule::rebase`]. Writes an audit record in the same
/// transaction. Returns the mark before and after.
///
/// # Errors
/// `Invalid` as [`rule::rebase`], or if the resource has no mark: then there is nothing to move.
pub fn rebase(connection: &mut Connection, resource: &Resource, rebase: &Rebase) -> Result<(Mark, Mark)> {
    let behavior = TransactionBehavior::Immediate;
    let transaction = connection.transaction_with_behavior(behavior).map_err(interpret)?;
    let before = read(&transaction, resource)?.ok_or_else(|| tables::no_mark(resource))?;
    let after = rule::rebase(&before, rebase.to, rebase.ceiling).map_err(|error| error.on(resource))?;
    write(&transaction, resource, &after)?;
    let audit = "INSERT INTO main.leasehold_fence_audit (by, why, resource, was, now, ceiling) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let (was, now) = (before.highest.as_i64(), after.highest.as_i64());
    let ceiling = after.ceiling.map(FencingToken::as_i64);
    let row = params![rebase.by, rebase.why, resource.to_string(), was, now, ceiling];
    transaction.execute(audit, row).map_err(interpret)?;
    transaction.commit().map_err(interpret)?;
    Ok((before, after))
}

/// The rebases of a resource, newest first.
///
/// # Errors
/// Errors of SQLite.
pub fn rebases(connection: &Connection, resource: &Resource) -> Result<Vec<Rebased>> {
    let select = "SELECT at, by, why, was, now, ceiling FROM main.leasehold_fence_audit WHERE resource = ?1 ORDER BY id DESC";
    let mut select = connection.prepare(select).map_err(interpret)?;
    let rows = select.query_map([resource.to_string()], |row| {
        let number = |at| row.get::<_, Option<i64>>(at).map(|number| number.map(i64::cast_unsigned));
        let (was, now, ceiling) = (number(3)?.unwrap_or(0), number(4)?.unwrap_or(0), number(5)?);
        Ok(Rebased { at: row.get(0)?, by: row.get(1)?, why: row.get(2)?, was, now, ceiling })
    });
    rows.map_err(interpret)?.map(|row| row.map_err(interpret)).collect()
}

fn check_in_transaction(connection: &Connection) -> Result<()> {
    if connection.is_autocommit() {
        let message = "no transaction is open, and the pass must be checked in the same transaction as the effect: begin one";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

fn read(connection: &Connection, resource: &Resource) -> Result<Option<Mark>> {
    let select = "SELECT token, owner, ceiling FROM main.leasehold_fence_mark WHERE resource = ?1";
    let mut select = connection.prepare_cached(select).map_err(interpret)?;
    let row = select.query_row([resource.to_string()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let row: Option<(i64, Option<String>, Option<i64>)> = row.optional().map_err(interpret)?;
    row.map(|(token, owner, ceiling)| tables::mark_of(token, owner.as_deref(), ceiling)).transpose()
}

fn write(connection: &Connection, resource: &Resource, mark: &Mark) -> Result<()> {
    let upsert = "INSERT INTO main.leasehold_fence_mark (resource, token, owner, ceiling) VALUES (?1, ?2, ?3, ?4) \
                  ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner, ceiling = excluded.ceiling";
    let mut upsert = connection.prepare_cached(upsert).map_err(interpret)?;
    let (owner, ceiling) =
        (mark.owner.map(|owner| owner.to_string()), mark.ceiling.map(FencingToken::as_i64));
    upsert
        .execute(params![resource.to_string(), mark.highest.as_i64(), owner, ceiling])
        .map_err(interpret)?;
    Ok(())
}
