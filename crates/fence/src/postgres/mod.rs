//! The fence for tables of PostgreSQL: in your own transaction, or as SQL functions for clients in any language.
//!
//! | what you have | what you call | in SQL |
//! |---|---|---|
//! | any table | [`admit`], then your statements, in one transaction | `SELECT leasehold_fence.admit('34 - order/42')` |
//! | a column `last_fencing_token` | [`Column::raise`], then your statements, in one transaction | see [`Column`] |
//! | a table that every client writes | [`install`] once, then [`enter`] in each transaction | `SELECT leasehold_fence.enter(…)`, or `set_config('leasehold.pass', …, true)` |
//! | a read now and a write later | [`enter`] before the read, and again with the write | `SELECT leasehold_fence.enter(…)` |
//!
//! Everything is in the schema `leasehold_fence`, which [`setup`] creates. The functions run with the rights of the role
//! that created them: [`grant`] lets other roles call them, and no role needs rights to the marks themselves.

mod column;
mod connection;
mod connection_manager;
mod connector;
mod error;
mod guard;
mod request_id;

use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Pass, Resource, Result};
use leasehold_support::postgres::check_request_id;
use tokio_postgres::{
    GenericClient, Row, Transaction,
    types::{ToSql, Type},
};

pub use column::Column;
pub use connection::Connection;
pub use connection_manager::ConnectionManager;
pub use error::explain;
pub use guard::{install, remove, status};

use crate::{
    Rebase, Rebased,
    rule::{Admission, Mark},
    tables,
};
use error::interpret;

/// The name of this downstream in metrics and logs.
pub const DOWNSTREAM: &str = "postgres";

/// The SQL that creates the schema, its tables and its functions. Executed again, it updates the functions.
pub const SCHEMA: &str = include_str!("../../sql/postgres/schema.sql");

/// The format of the tables that this release reads and writes.
const FORMAT: i32 = 1;

/// Creates the schema `leasehold_fence`, or updates it, in one transaction. Several processes may do so at the same time.
///
/// # Errors
/// `Corrupt` if a newer release of leasehold created it; `Denied` if the role may not create schemas.
pub async fn setup(client: &(impl GenericClient + Sync)) -> Result<()> {
    // An older release must not replace the functions of a newer format.
    check_format(format(client).await?)?;
    client.batch_execute(SCHEMA).await.map_err(|error| interpret(error, Effect::Unknown))
}

/// Creates or updates the schema, unless another role owns it: then it is used as it is.
async fn ensure_schema(client: &(impl GenericClient + Sync)) -> Result<()> {
    let is_ours = "SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'leasehold_fence'";
    let rows = client.query_typed(is_ours, &[]).await.map_err(|error| interpret(error, Effect::None))?;
    if rows.first().is_some_and(|row| !row.get::<_, bool>(0)) {
        return check_format(format(client).await?);
    }
    setup(client).await
}

fn check_format(found: Option<i32>) -> Result<()> {
    match found.filter(|found| *found > FORMAT) {
        None => Ok(()),
        Some(found) => {
            let message =
                format!("the fence has format {found}, this leasehold supports {FORMAT}: upgrade leasehold");
            Err(Error::new(ErrorKind::Corrupt, message))
        }
    }
}

/// The format of the fence; `None` if the database has no fence.
async fn format(client: &(impl GenericClient + Sync)) -> Result<Option<i32>> {
    let exists = "SELECT to_regclass('leasehold_fence.format') IS NOT NULL";
    let row = client.query_typed(exists, &[]).await.map_err(|error| interpret(error, Effect::None))?;
    if !row.first().is_some_and(|row| row.get::<_, bool>(0)) {
        return Ok(None);
    }
    let version = "SELECT max(version) FROM leasehold_fence.format";
    let rows = client.query_typed(version, &[]).await.map_err(|error| interpret(error, Effect::None))?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Lets a role call `admit` and `enter`, and fence tables that it owns. The role that created the schema needs no grant.
///
/// # Errors
/// `Invalid` if the role does not exist.
pub async fn grant(client: &(impl GenericClient + Sync), role: &str) -> Result<()> {
    let grant = format!(
        "GRANT EXECUTE ON FUNCTION leasehold_fence.admit(text), leasehold_fence.admit(text, bigint, text), \
         leasehold_fence.enter(text), leasehold_fence.enter(text, bigint, text), leasehold_fence.guard() TO {}",
        tables::quoted(role)
    );
    client.batch_execute(&grant).await.map_err(|error| interpret(error, Effect::Unknown))
}

/// Admits the pass or refuses it, in the transaction of your effect. One round trip.
///
/// ```no_run
/// # use leasehold_fence::{Pass, postgres};
/// # async fn example(client: &mut tokio_postgres::Client, pass: &Pass) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// postgres::admit(&transaction, pass).await?; // with a lease: &lease.pass()
/// transaction.execute("UPDATE report SET body = 'three pages' WHERE id = 42", &[]).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Guarantees
/// The mark is locked until the transaction ends, so no other token is admitted between this call and your effect. After the
/// commit, no lower token is admitted for this resource. Called before the first read, it makes a read-modify-write in this
/// transaction safe, at every isolation level.
///
/// # Cancel safety
/// The transaction is rolled back, and nothing was admitted.
///
/// # Errors
/// `StaleToken`, counted and logged: the transaction is aborted then. `Unsupported` if the database has no fence yet;
/// `Denied` if the role may not call the function; `Unavailable` if a later attempt may succeed.
pub async fn admit(transaction: &Transaction<'_>, pass: &Pass) -> Result<Admission> {
    call(transaction, ADMIT, pass, Effect::None).await
}

/// Admits the pass as [`admit`] does, and shows it to the triggers of [`install`] for the rest of the transaction.
///
/// Without a transaction it only raises the mark. Call it so *before the first read* of a read-modify-write that takes more
/// than one transaction.
///
/// # Cancel safety
/// The mark may have been raised. That does no harm: no lower token is admitted then.
///
/// # Errors
/// As [`admit`]. Without a transaction, a missing reply leaves the effect `Unknown`.
pub async fn enter(client: &(impl GenericClient + Sync), pass: &Pass) -> Result<Admission> {
    call(client, ENTER, pass, Effect::Unknown).await
}

// The last parameter and the last column are the request id (ADR 0033).
const ADMIT: &str = "SELECT leasehold_fence.admit($1), $2::bigint";
const ENTER: &str = "SELECT leasehold_fence.enter($1), $2::bigint";

async fn call(
    client: &(impl GenericClient + Sync),
    sql: &str,
    pass: &Pass,
    without_reply: Effect,
) -> Result<Admission> {
    let text = pass.to_string();
    let request = request_id::next();
    let number = request.get().cast_signed();
    let reply = client.query_typed(sql, &[(&text, Type::TEXT), (&number, Type::INT8)]).await;
    let rows = reply.map_err(|error| error::refused(error, pass, without_reply))?;
    check_request_id(&rows, request).map_err(|error| error.on(&pass.resource))?;
    Ok(admission(&rows))
}

/// Applies the rule in a transaction of its own. A refusal is neither counted nor logged here.
#[cfg(feature = "http")]
pub(crate) async fn judge(
    manager: &ConnectionManager,
    pass: &Pass,
) -> Result<Result<Admission, crate::rule::Refusal>> {
    let connection = manager.connection().await?;
    match connection.query_checked(ADMIT, &[(&pass.to_string(), Type::TEXT)]).await? {
        Ok(rows) => Ok(Ok(admission(&rows))),
        // Behind a pool, an error may belong to another client (ADR 0034). The refusal of another token is not ours.
        Err(error) => match error::refusal_in(&error).filter(|refusal| refuses(refusal, pass)) {
            Some(refusal) => Ok(Err(refusal)),
            // On a direct connection the error is ours, so its own effect counts.
            None if connection.is_direct() => Err(interpret(error, Effect::Unknown)),
            None => Err(interpret(error, Effect::Unknown).with_effect(Effect::Unknown)),
        },
    }
}

#[cfg(feature = "http")]
fn refuses(refusal: &crate::rule::Refusal, pass: &Pass) -> bool {
    use crate::rule::Refusal::{Former, Stale};
    let (Stale { presented, .. } | Former { presented, .. }) = refusal;
    *presented == pass.token
}

fn admission(rows: &[Row]) -> Admission {
    let raised = rows.first().is_some_and(|row| row.get::<_, bool>(0));
    if raised { Admission::Raised } else { Admission::Again }
}

/// The mark of a resource; `None` if no token was admitted for it. Only the role that created the schema may read it.
///
/// # Errors
/// `Denied` for another role; errors of the server.
pub async fn mark(client: &(impl GenericClient + Sync), resource: &Resource) -> Result<Option<Mark>> {
    let select = "SELECT token, owner, ceiling FROM leasehold_fence.mark WHERE resource = $1";
    let name = resource.to_string();
    let rows = client.query_typed(select, &[(&name, Type::TEXT)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    rows.first().map(|row| mark_of(row, 0)).transpose()
}

fn mark_of(row: &Row, at: usize) -> Result<Mark> {
    let owner: Option<String> = row.get(at + 1);
    tables::mark_of(row.get(at), owner.as_deref(), row.get(at + 2))
}

/// Moves the mark of a resource to the numbers of another backend: see [`rule::rebase`](crate::rule::rebase). Writes an
/// audit record in the same transaction. Returns the mark before and after.
///
/// # Errors
/// `Invalid` as [`rule::rebase`](crate::rule::rebase), or if the resource has no mark: then there is nothing to move.
pub async fn rebase(
    client: &(impl GenericClient + Sync),
    resource: &Resource,
    rebase: &Rebase,
) -> Result<(Mark, Mark)> {
    let select =
        "SELECT was.token, was.owner, was.ceiling FROM leasehold_fence.rebase($1, $2, $3, $4, $5) was";
    let (name, to, ceiling) =
        (resource.to_string(), rebase.to.as_i64(), rebase.ceiling.map(FencingToken::as_i64));
    let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
        (&name, Type::TEXT),
        (&to, Type::INT8),
        (&ceiling, Type::INT8),
        (&rebase.by, Type::TEXT),
        (&rebase.why, Type::TEXT),
    ];
    let rows = client.query_typed(select, &parameters).await;
    let rows = rows.map_err(|error| interpret(error, Effect::Unknown).on(resource))?;
    let row = rows.first().ok_or_else(|| tables::no_mark(resource))?;
    let before = mark_of(row, 0)?;
    let after = mark(client, resource).await?.ok_or_else(|| tables::no_mark(resource))?;
    Ok((before, after))
}

/// The rebases of a resource, newest first. Only the role that created the schema may read them.
///
/// # Errors
/// `Denied` for another role; errors of the server.
pub async fn rebases(client: &(impl GenericClient + Sync), resource: &Resource) -> Result<Vec<Rebased>> {
    let select = "SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), by, why, was, now, ceiling \
                  FROM leasehold_fence.audit WHERE resource = $1 ORDER BY id DESC";
    let name = resource.to_string();
    let rows = client.query_typed(select, &[(&name, Type::TEXT)]).await;
    let rows = rows.map_err(|error| interpret(error, Effect::None))?;
    let read = |row: &Row| {
        let number = |at: usize| row.get::<_, Option<i64>>(at).map(i64::cast_unsigned);
        let (was, now, ceiling) = (number(3).unwrap_or(0), number(4).unwrap_or(0), number(5));
        Rebased { at: row.get(0), by: row.get(1), why: row.get(2), was, now, ceiling }
    };
    Ok(rows.iter().map(read).collect())
}
