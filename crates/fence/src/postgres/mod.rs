//! Tables of PostgreSQL, in your own transaction; and as SQL functions, for clients in any language.
//!
//! | you have | you call | in SQL |
//! |---|---|---|
//! | any table | [`admit`], then your statements, in one transaction | `SELECT leasehold_fence.admit('order/42', 34, 'hash')` |
//! | a column `last_fencing_token` | [`Column::raise`], likewise | see [`Column`] |
//! | a table that every client writes | [`install`] once, then [`enter`] in each transaction | `SELECT leasehold_fence.enter(…)`, or `set_config('leasehold.pass', …, true)` |
//! | a read now and a write later | [`enter`] before the read, and again with the write | `SELECT leasehold_fence.enter(…)` |
//!
//! Everything is in the schema `leasehold_fence`, made by [`setup`]. The functions run as the role that made them:
//! [`grant`] lets others call them, and nobody needs a right to the marks themselves.

mod column;
mod direct;
mod error;
mod guard;
mod link;
mod request;

use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Pass, Resource, Result};
use tokio_postgres::{
    GenericClient, Row, Transaction,
    types::{ToSql, Type},
};

pub use column::Column;
pub use error::explain;
pub use guard::{install, remove, status};
pub use link::{Link, Wire};

use crate::{
    Rebase, Rebased,
    rule::{Admission, Mark},
    tables,
};
use error::interpret;

/// As it stands in metrics and logs.
pub const DOWNSTREAM: &str = "postgres";

/// Makes the schema, its tables and its functions; run again, it brings the functions up to date.
pub const SCHEMA: &str = include_str!("../../sql/postgres/schema.sql");

const FORMAT: i32 = 1;

/// Makes the schema `leasehold_fence`, or brings it up to date. One transaction; any number may do so at once.
///
/// # Errors
/// `Corrupt` if it was made by a newer leasehold; `Denied` if the role may not make schemas.
pub async fn setup(client: &(impl GenericClient + Sync)) -> Result<()> {
    check_format(format(client).await?)?;
    client.batch_execute(SCHEMA).await.map_err(|error| interpret(error, Effect::Unknown))
}

/// Sees that there is a schema. One that is another role's is used as it is.
async fn see_to_schema(client: &(impl GenericClient + Sync)) -> Result<()> {
    let ours = "SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = 'leasehold_fence'";
    let rows = client.query_typed(ours, &[]).await.map_err(|error| interpret(error, Effect::None))?;
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
                format!("the fence has format {found}, this leasehold knows {FORMAT}: use the newer one");
            Err(Error::new(ErrorKind::Corrupt, message))
        }
    }
}

/// The format of the fence, if there is one.
async fn format(client: &(impl GenericClient + Sync)) -> Result<Option<i32>> {
    let there = "SELECT to_regclass('leasehold_fence.format') IS NOT NULL";
    let row = client.query_typed(there, &[]).await.map_err(|error| interpret(error, Effect::None))?;
    if !row.first().is_some_and(|row| row.get::<_, bool>(0)) {
        return Ok(None);
    }
    let version = "SELECT max(version) FROM leasehold_fence.format";
    let rows = client.query_typed(version, &[]).await.map_err(|error| interpret(error, Effect::None))?;
    Ok(rows.first().and_then(|row| row.get(0)))
}

/// Lets a role call `admit` and `enter`, and fence tables that it owns. Whoever made the schema may already.
///
/// # Errors
/// `Invalid` if there is no such role.
pub async fn grant(client: &(impl GenericClient + Sync), role: &str) -> Result<()> {
    let grant = format!(
        "GRANT EXECUTE ON FUNCTION leasehold_fence.admit(text, bigint, text), \
         leasehold_fence.enter(text, bigint, text), leasehold_fence.guard() TO {}",
        tables::quoted(role)
    );
    client.batch_execute(&grant).await.map_err(|error| interpret(error, Effect::Unknown))
}

/// Lets the pass through, or refuses it; in your transaction, together with the effect. One round trip.
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
/// The mark is locked until the transaction ends: nobody with another token comes between this and your effect. Once it
/// is committed, nobody with a lower token is admitted for this resource. Called before the first read, it makes a
/// read-modify-write in this transaction safe, at every isolation level.
///
/// # Cancel safety
/// Dropped part-way, the transaction is rolled back, and nothing was admitted.
///
/// # Errors
/// `StaleToken`, counted and logged: the transaction is void then, and nothing else in it happens. `Unsupported` if
/// there is no fence yet; `Denied` without the right to call it; `Unavailable` for all that may go well another time.
pub async fn admit(transaction: &Transaction<'_>, pass: &Pass) -> Result<Admission> {
    call(transaction, ADMIT, pass, Effect::None).await
}

/// The same, and the pass is shown to the triggers of [`install`] for the rest of the transaction.
///
/// Without a transaction it raises the mark and nothing more: call it so *before the first read* of a read-modify-write
/// that takes more than one transaction.
///
/// # Cancel safety
/// Dropped part-way, the mark may have been raised: nobody with a lower token is admitted then, as you wished.
///
/// # Errors
/// As [`admit`]; without a transaction, an answer that did not come leaves the effect `Unknown`.
pub async fn enter(client: &(impl GenericClient + Sync), pass: &Pass) -> Result<Admission> {
    call(client, ENTER, pass, Effect::Unknown).await
}

/// The last parameter and the last column are the request id.
const ADMIT: &str = "SELECT leasehold_fence.admit($1, $2, $3), $4::bigint";
const ENTER: &str = "SELECT leasehold_fence.enter($1, $2, $3), $4::bigint";

async fn call(
    client: &(impl GenericClient + Sync),
    sql: &str,
    pass: &Pass,
    unanswered: Effect,
) -> Result<Admission> {
    let shown = Shown::new(pass);
    let request = request::next();
    let number = request.get().cast_signed();
    let [resource, token, owner] = shown.arguments();
    let answer = client.query_typed(sql, &[resource, token, owner, (&number, Type::INT8)]).await;
    let rows = answer.map_err(|error| error::refused(error, pass, unanswered))?;
    request::check(&rows, request).map_err(|error| error.on(&pass.resource))?;
    Ok(admission(&rows))
}

/// A verdict in a transaction of its own, neither counted nor logged.
#[cfg(feature = "http")]
pub(crate) async fn weigh(link: &Link, pass: &Pass) -> Result<Result<Admission, crate::rule::Refusal>> {
    let wire = link.wire().await?;
    match wire.ask(ADMIT, &Shown::new(pass).arguments()).await? {
        Ok(rows) => Ok(Ok(admission(&rows))),
        // Behind a pool, an error may be another client's: the refusal of a token that was not shown here is not ours.
        Err(error) => match error::refusal_in(&error).filter(|refusal| refuses(refusal, pass)) {
            Some(refusal) => Ok(Err(refusal)),
            None if wire.is_direct() => Err(interpret(error, Effect::Unknown)),
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

/// A pass as arguments.
struct Shown {
    resource: String,
    token: i64,
    owner: Option<String>,
}

impl Shown {
    fn new(pass: &Pass) -> Shown {
        let owner = pass.owner.map(|owner| owner.to_string());
        Shown { resource: pass.resource.to_string(), token: pass.token.as_i64(), owner }
    }

    fn arguments(&self) -> [(&(dyn ToSql + Sync), Type); 3] {
        [(&self.resource, Type::TEXT), (&self.token, Type::INT8), (&self.owner, Type::TEXT)]
    }
}

fn admission(rows: &[Row]) -> Admission {
    let raised = rows.first().is_some_and(|row| row.get::<_, bool>(0));
    if raised { Admission::Raised } else { Admission::Again }
}

/// What the fence remembers of a resource. For the role that made the schema.
///
/// # Errors
/// `Denied` for another role; whatever the server says.
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

/// Moves a resource to a backend with smaller numbers: see [`rule::rebase`](crate::rule::rebase). Audited, in the same
/// transaction. Answers the mark as it was and as it is.
///
/// # Errors
/// `Invalid` as there, or if nothing is remembered of the resource: then there is nothing to move.
pub async fn rebase(
    client: &(impl GenericClient + Sync),
    resource: &Resource,
    rebase: &Rebase,
) -> Result<(Mark, Mark)> {
    let select =
        "SELECT was.token, was.owner, was.ceiling FROM leasehold_fence.rebase($1, $2, $3, $4, $5) was";
    let (name, to, ceiling) =
        (resource.to_string(), rebase.to.as_i64(), rebase.ceiling.map(FencingToken::as_i64));
    let arguments: [(&(dyn ToSql + Sync), Type); 5] = [
        (&name, Type::TEXT),
        (&to, Type::INT8),
        (&ceiling, Type::INT8),
        (&rebase.by, Type::TEXT),
        (&rebase.why, Type::TEXT),
    ];
    let rows = client.query_typed(select, &arguments).await;
    let rows = rows.map_err(|error| interpret(error, Effect::Unknown).on(resource))?;
    let row = rows.first().ok_or_else(|| tables::unmarked(resource))?;
    let before = mark_of(row, 0)?;
    let after = mark(client, resource).await?.ok_or_else(|| tables::unmarked(resource))?;
    Ok((before, after))
}

/// The rebases of a resource, newest first. For the role that made the schema.
///
/// # Errors
/// `Denied` for another role; whatever the server says.
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
