//! The backend: each verb is one call of a function in the database.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Backend, BackendInfo, Blocked, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, Error,
    ErrorKind, FailureDomain, Grant, OperatorAction, OperatorCommand, Page, Query, ReleaseRequest, Released,
    RenewRequest, Renewal, Resource, Result, Verb, Verdict, WhenBlocked, async_trait,
};
use leasehold_support::race::{Either, first};
use tokio_postgres::{Row, types::Type};

use crate::{
    NAME,
    config::Config,
    error,
    link::Link,
    reply::{Columns as _, micros},
    schema,
    wait::Ear,
    wire::{Parameter, Question},
};

/// Leases in PostgreSQL.
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold_core::Error> {
/// use leasehold::{Client, System};
/// use leasehold_postgres::{Config, Postgres};
/// use std::sync::Arc;
///
/// let config = Config::parse("postgres://app@127.0.0.1/app?password_file=/run/secrets/db")?;
/// let postgres = Postgres::connect(config, Arc::new(System::current())).await?;
/// let lease = Client::new(Arc::new(postgres)).lease("report", "42").acquire().await?;
/// println!("token {}", lease.token());
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub struct Postgres {
    pub(crate) link: Arc<Link>,
    pub(crate) sql: Statements,
    ear: Ear,
    environment: Arc<dyn Environment>,
}

/// While nobody hears, whoever waits asks again this often.
const POLL_WHEN_DEAF: Duration = Duration::from_millis(500);

/// What is sent, with the name of the schema in it. The last parameter and the last column are the request id. The
/// statement returns it and not the function, so that the functions of the previous release will do.
pub(crate) struct Statements {
    acquire: String,
    release: String,
    watch: String,
    command: String,
    pub(crate) renew: String,
    pub(crate) look: String,
    pub(crate) list: String,
    pub(crate) audit: String,
}

impl Statements {
    fn of(schema: &str) -> Statements {
        let named = |sql| schema::named(sql, schema);
        Statements {
            acquire: named(
                "SELECT *, $15::bigint FROM leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
            ),
            release: named("SELECT leasehold.release($1, $2, $3, $4), $5::bigint"),
            watch: named("SELECT leasehold.watch($1, $2, $3, $4, $5), $6::bigint"),
            command: named("SELECT *, $7::bigint FROM leasehold.command($1, $2, $3, $4, $5, $6)"),
            renew: named("SELECT *, $5::bigint FROM leasehold.renew($1, $2, $3, $4)"),
            look: named(include_str!("../sql/look.sql")),
            list: named(include_str!("../sql/list.sql")),
            audit: named(include_str!("../sql/audit.sql")),
        }
    }
}

impl Postgres {
    /// Connects, and makes the tables if they are not there. Later on, a connection that is lost is made anew by
    /// whoever needs it.
    ///
    /// # Errors
    /// `Unavailable` if no server answers or takes writes; `Denied` if it refuses the user or the password, or the role
    /// may not create or use the tables; `Invalid` if there is no such database; `Unsupported` if the server is too old
    /// or the tables too new, or the URL wants TLS and this build or process has none.
    ///
    /// # Cancel safety
    /// Dropped part-way, the tables may still be made.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Postgres> {
        let sql = Statements::of(&config.schema);
        let link = Arc::new(Link::new(config, Arc::clone(&environment)));
        link.begin().await.map_err(|error| error.with_effect(Effect::None))?;
        let ear = Ear::new(environment.random());
        Ok(Postgres { link, sql, ear, environment })
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Verdict> {
        let most = self.link.info().limits.note;
        if claim.note.as_ref().is_some_and(|note| note.len() > most) {
            return Err(Error::new(ErrorKind::Limit, format!("a note has at most {most} bytes")));
        }
        let (key, owner) = (claim.resource.key(), claim.owner.to_bytes());
        let (weight, capacity) = (i64::from(claim.share.weight()), i64::from(claim.share.capacity()));
        let (ttl, place_ttl) = (micros(claim.ttl), micros(claim.place_ttl));
        let queues = claim.when_blocked == WhenBlocked::Queue;
        let from = claim.takes_over_from.map(|from| from.owner.to_bytes().to_vec());
        let tombstone = claim.takes_over_from.and_then(|from| from.tombstone).map_or(-1, micros);
        let floor = claim.floor.map_or(0, leasehold_core::FencingToken::as_i64);
        let (note, holder) = (claim.note.as_deref(), claim.holder.to_string());
        let (channel, line_max) = (self.ear.channel(), i64::from(self.link.info().limits.queue));
        let parameters: [Parameter<'_>; 14] = [
            (&key, Type::TEXT),
            (&owner.as_slice(), Type::BYTEA),
            (&weight, Type::INT8),
            (&capacity, Type::INT8),
            (&ttl, Type::INT8),
            (&place_ttl, Type::INT8),
            (&queues, Type::BOOL),
            (&from, Type::BYTEA),
            (&tombstone, Type::INT8),
            (&floor, Type::INT8),
            (&note, Type::BYTEA),
            (&holder, Type::TEXT),
            (&channel, Type::TEXT),
            (&line_max, Type::INT8),
        ];
        // As `acquire.sql` names it in its errors.
        let named = format!("{}|{key}", claim.owner.prefix());
        let question = Question { sql: &self.sql.acquire, parameters: &parameters, named: Some(&named) };
        verdict(&self.link.ask(&question).await?)
    }

    async fn try_release(&self, request: &ReleaseRequest) -> Result<Released> {
        let (key, owner) = (request.resource.key(), request.owner.to_bytes());
        let tombstone = request.tombstone.map_or(-1, micros);
        let keep = request.keep_for.filter(|keep| !keep.is_zero()).map_or(0, |keep| micros(keep).max(1));
        let parameters: [Parameter<'_>; 4] = [
            (&key, Type::TEXT),
            (&owner.as_slice(), Type::BYTEA),
            (&tombstone, Type::INT8),
            (&keep, Type::INT8),
        ];
        let there: bool = first_row(&self.link.run(&self.sql.release, &parameters).await?)?.read(0)?;
        Ok(if there { Released::Now } else { Released::AlreadyGone })
    }

    async fn wait_for_news(&self, claim: &ClaimRef, since: Cursor, at_most: Duration) -> Result<()> {
        let waiting = self.ear.begin(claim);
        self.ear.attend(&self.link, &self.environment);
        let hears = self.ear.hears().await;
        let (key, owner) = (claim.resource.key(), claim.owner.to_bytes());
        let (cursor, at_most) = (since.0.cast_signed(), micros(at_most).max(1));
        let channel = self.ear.channel();
        let parameters: [Parameter<'_>; 5] = [
            (&key, Type::TEXT),
            (&owner.as_slice(), Type::BYTEA),
            (&cursor, Type::INT8),
            (&at_most, Type::INT8),
            (&channel, Type::TEXT),
        ];
        match first_row(&self.link.run(&self.sql.watch, &parameters).await?)?.read::<i64>(0)? {
            1 => return Ok(()),
            0 => waiting.has_place(),
            _ => {}
        }
        if hears && !channel.is_empty() {
            waiting.woken().await;
        } else {
            first(waiting.woken(), self.environment.sleep(POLL_WHEN_DEAF)).await;
        }
        Ok(())
    }

    async fn try_order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        if order.by.len() > OperatorCommand::TEXT_MAX || order.why.len() > OperatorCommand::TEXT_MAX {
            let message = format!("an order's words have at most {} bytes each", OperatorCommand::TEXT_MAX);
            return Err(Error::new(ErrorKind::Limit, message));
        }
        if order.by.contains('\0') || order.why.contains('\0') {
            return Err(Error::new(ErrorKind::Invalid, "an order's words have no zero bytes"));
        }
        let number = match order.action {
            OperatorAction::Ask { within } => micros(within),
            OperatorAction::Pause { lasting } => micros(lasting),
            OperatorAction::Resize { capacity } => i64::from(capacity.get()),
            _ => 0,
        };
        let (key, command) = (order.resource.key(), order.action.as_str());
        let token = order.token.map_or(0, leasehold_core::FencingToken::as_i64);
        let parameters: [Parameter<'_>; 6] = [
            (&key, Type::TEXT),
            (&token, Type::INT8),
            (&order.by, Type::TEXT),
            (&order.why, Type::TEXT),
            (&command, Type::TEXT),
            (&number, Type::INT8),
        ];
        let rows = self.link.run(&self.sql.command, &parameters).await?;
        let row = first_row(&rows)?;
        if row.read(0)? {
            return Ok(CommandOutcome::Done);
        }
        let newest = row.read::<Option<i64>>(1)?.is_some().then(|| row.token(1)).transpose()?;
        Ok(CommandOutcome::HolderChanged { token: newest })
    }
}

fn first_row(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(|| error::strange("it is empty"))
}

/// From the rows of `acquire`.
fn verdict(rows: &[Row]) -> Result<Verdict> {
    let row = first_row(rows)?;
    match row.read::<&str>(0)? {
        "granted" => Ok(Verdict::Granted(Grant::new(row.token(1)?, row.span(2)?))),
        "buried" => Ok(Verdict::Cancelled),
        "mismatch" => Ok(Verdict::Mismatch { capacity: row.number(3)? }),
        "blocked" => {
            let mut blocked = Blocked::default();
            blocked.queued = row.read(4)?;
            blocked.ahead = row.number(5)?;
            blocked.changes_in = row.maybe_span(6)?;
            blocked.paused = row.read(7)?;
            blocked.cursor = Cursor(row.read::<i64>(8)?.cast_unsigned());
            blocked.holders = rows[1..].iter().map(|row| row.held_by([1, 3, 2], 9)).collect::<Result<_>>()?;
            Ok(Verdict::Blocked(blocked))
        }
        other => Err(error::strange(format_args!("a verdict is {other:.20?}"))),
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("link", &self.link).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Postgres {
    fn info(&self) -> &BackendInfo {
        self.link.info()
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        let at = |error: Error| error.at(Verb::Acquire, NAME).on(&claim.resource);
        self.try_acquire(claim).await.map_err(at)
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.renew_batch(held).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        let at = |error: Error| error.at(Verb::Release, NAME).on(&request.resource);
        self.try_release(request).await.map_err(at)
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let woken = self.wait_for_news(claim, *since, at_most);
        match first(woken, self.environment.sleep(at_most)).await {
            Either::Left(Err(error)) => {
                Err(error.with_effect(Effect::None).at(Verb::Wait, NAME).on(&claim.resource))
            }
            _ => Ok(()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.answer(query).await.map_err(|error| error.with_effect(Effect::None).at(Verb::Inspect, NAME))
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let at = |error: Error| error.at(Verb::Order, NAME).on(&order.resource);
        self.try_order(order).await.map_err(at)
    }
}
