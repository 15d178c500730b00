//! The verb `inspect`: reads on a connection of its own, and changes nothing.
//!
//! A reader does not block writers and is not blocked by them: SQLite keeps both apart in the write-ahead
//! log. Rows that have ended are left out of the result; the next write removes them.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use leasehold_core::{
    AuditRecord, Cursor, Error, ErrorKind, FencingToken, FinishRequest, HeldBy, Listing, Page, Query,
    QueueEntry, Resource, Result, Snapshot, StoredHolder, WallTime,
};
use rusqlite::{
    Connection, Row as Columns,
    types::{FromSqlError, Type},
};

use crate::{
    PAGE_MAX,
    connection::{ReadConnection, run_on_thread},
    database::Database,
    error::{StoreError, from_io},
    file_system::FileIdentity,
    resource_row::ResourceRow,
    sql,
    tables::{StoreResult, until},
};

const LISTED_MAX: i64 = Snapshot::LISTED_MAX as i64;

/// Answers queries. Its connection is opened with the first query.
#[derive(Debug, Default)]
pub(crate) struct Inspector {
    reader: Mutex<Option<ReadConnection>>,
}

impl Inspector {
    /// Answers a query for one resource in the caller's own future, because it is short. Other queries run on
    /// a thread of their own.
    pub(crate) async fn inspect(self: &Arc<Self>, database: &Arc<Database>, query: &Query) -> Result<Page> {
        if matches!(query, Query::Nodes) {
            let message =
                "SQLite has no servers: its leases are in a file, which every process opens by itself";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if matches!(query, Query::One(_)) {
            match self.reader.try_lock() {
                Ok(mut reader) => return inspect(&mut reader, database, query),
                Err(TryLockError::Poisoned(reader)) => {
                    return inspect(&mut reader.into_inner(), database, query);
                }
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let (inspector, database, query) = (Arc::clone(self), Arc::clone(database), query.clone());
        run_on_thread(move || {
            let mut reader = inspector.reader.lock().unwrap_or_else(PoisonError::into_inner);
            inspect(&mut reader, &database, &query)
        })
        .await?
    }
}

fn inspect(reader: &mut Option<ReadConnection>, database: &Database, query: &Query) -> Result<Page> {
    let path = &database.path;
    let file = FileIdentity::of(path).map_err(|error| from_io(error, path, "find the file"))?;
    let page = try_inspect(reader, database, file, query);
    if page.is_err() {
        *reader = None;
    }
    page.map_err(|error| error.into_error(path))?
}

fn try_inspect(
    reader: &mut Option<ReadConnection>,
    database: &Database,
    file: FileIdentity,
    query: &Query,
) -> StoreResult<Result<Page>> {
    // The file may have been replaced since the last query.
    let open = match reader.take_if(|open| open.identity == file) {
        Some(open) => open,
        None => ReadConnection::open(&database.path, file)?,
    };
    // One transaction, so that all parts of the page are of the same moment.
    open.connection.execute_batch("BEGIN")?;
    let page = run_query(&open.connection, database.now(), query)?;
    open.connection.execute_batch("COMMIT")?;
    *reader = Some(open);
    Ok(page)
}

/// Answers a query in the read transaction that the connection is in.
fn run_query(connection: &Connection, now: i64, query: &Query) -> StoreResult<Result<Page>> {
    match query {
        Query::One(resource) => {
            let snapshots = vec![find_snapshot(connection, now, resource)?];
            Ok(Ok(Page::Resources { snapshots, next: None }))
        }
        Query::Resources(listing) => resources(connection, now, listing).map(Ok),
        Query::Audit(listing) => audit(connection, listing).map(Ok),
        // Nothing can leak: every row has an end, because the columns are NOT NULL.
        Query::Leaks(_) => Ok(Ok(Page::Leaks { found: Vec::new(), next: None })),
        Query::Foreign { .. } => {
            let message = "a SQLite file of leasehold holds no locks of other programs";
            Ok(Err(Error::new(ErrorKind::Unsupported, message)))
        }
        other => {
            let message = format!("the SQLite backend cannot answer the query {other:?}");
            Ok(Err(Error::new(ErrorKind::Unsupported, message)))
        }
    }
}

/// Reads the row of a resource. What has ended is still counted in it.
pub(crate) fn find_row<'r>(
    connection: &Connection,
    resource: &'r Resource,
) -> StoreResult<Option<ResourceRow<'r>>> {
    let mut statement = connection.prepare_cached(sql::resource::find)?;
    let mut rows = statement.query([resource.key()])?;
    let Some(columns) = rows.next()? else { return Ok(None) };
    let row = ResourceRow::read(resource, columns).map_err(StoreError::from);
    row.map(Some).map_err(|error| error.in_row("resource", columns))
}

fn read_resource(key: &str) -> StoreResult<Resource> {
    Resource::from_key(key)
        .map_err(|error| StoreError::Row(format!("a stored resource key is not valid: {error}")))
}

fn page_size(listing: &Listing) -> usize {
    let limit = if listing.limit == 0 { PAGE_MAX } else { listing.limit.min(PAGE_MAX) };
    limit as usize
}

fn resources(connection: &Connection, now: i64, listing: &Listing) -> StoreResult<Page> {
    let size = page_size(listing);
    let mut snapshots: Vec<Snapshot> = Vec::new();
    let mut statement = connection.prepare_cached(sql::resource::list)?;
    let after = listing.after.as_deref().unwrap_or("");
    let mut keys = statement.query((&listing.prefix, after, now))?;
    while let Some(columns) = keys.next()? {
        let Some(key) = listed_key(columns)? else { continue };
        if !key.as_bytes().starts_with(listing.prefix.as_bytes()) {
            break;
        }
        let Some(resource) = left_out_if_bad("resource", read_resource(&key))? else { continue };
        let snapshot = match find_snapshot(connection, now, &resource) {
            // One resource that cannot be read must not hide the others.
            Err(error) if error.is_bad_value() => Snapshot::unreadable(resource, error.reason()),
            found => found?,
        };
        // The row counts claims that have ended and are not removed yet.
        if !snapshot.is_in_use() {
            continue;
        }
        if snapshots.len() == size {
            let next = snapshots.last().map(|last| last.resource.key().to_owned());
            return Ok(Page::Resources { snapshots, next });
        }
        snapshots.push(snapshot);
    }
    Ok(Page::Resources { snapshots, next: None })
}

/// The key of a row of `resource.list`; `None` with a warning if it is no text.
fn listed_key(columns: &Columns<'_>) -> StoreResult<Option<String>> {
    let key = columns.get(0).map_err(StoreError::from);
    left_out_if_bad("resource", key.map_err(|error| error.in_row("resource", columns)))
}

/// `None` with a warning for a value that cannot be read, so that it is left out of a list.
fn left_out_if_bad<T>(table: &str, read: StoreResult<T>) -> StoreResult<Option<T>> {
    match read {
        Err(error) if error.is_bad_value() => {
            let error = error.reason();
            tracing::warn!(target: "leasehold", table, error, "a row cannot be read and is left out of a list");
            Ok(None)
        }
        read => read.map(Some),
    }
}

fn find_snapshot(connection: &Connection, now: i64, resource: &Resource) -> StoreResult<Snapshot> {
    match find_row(connection, resource)? {
        Some(row) => snapshot(connection, now, &row),
        None => Ok(Snapshot::empty(resource.clone())),
    }
}

fn snapshot(connection: &Connection, now: i64, row: &ResourceRow<'_>) -> StoreResult<Snapshot> {
    let mut snapshot = Snapshot::empty(row.resource.clone());
    snapshot.capacity = row.capacity;
    snapshot.last_token = row.last_token()?;
    snapshot.paused_for = (row.paused_until > now).then(|| until(now, row.paused_until));
    snapshot.cursor = Cursor(row.version.unsigned_abs());
    if row.seats > 0 {
        snapshot.holder_count = count(connection, sql::holder::count, row, now)?;
        let mut statement = connection.prepare_cached(sql::holder::list)?;
        let mut holders = statement.query((row.id, now, LISTED_MAX))?;
        while let Some(columns) = holders.next()? {
            let holder = read_holder(now, columns).map_err(|error| error.in_row("seat", columns));
            snapshot.holders.push(holder?);
        }
    }
    if row.places > 0 {
        snapshot.queue_length = count(connection, sql::queue::count, row, now)?;
        let mut statement = connection.prepare_cached(sql::queue::list)?;
        let mut queue = statement.query((row.id, now, LISTED_MAX))?;
        while let Some(columns) = queue.next()? {
            let entry = read_queue_entry(now, columns).map_err(|error| error.in_row("place", columns));
            snapshot.queue.push(entry?);
        }
    }
    Ok(snapshot)
}

fn count(connection: &Connection, sql: &'static str, row: &ResourceRow<'_>, now: i64) -> StoreResult<u32> {
    Ok(connection.prepare_cached(sql)?.query_row((row.id, now), |columns| columns.get(0))?)
}

/// Reads the columns of `queue.list`.
fn read_queue_entry(now: i64, columns: &Columns<'_>) -> StoreResult<QueueEntry> {
    let (since, ends): (i64, i64) = (columns.get(2)?, columns.get(3)?);
    let holder = read_holder_text(columns, 0)?.holder;
    let entry = QueueEntry::new(holder, columns.get(1)?, until(since, now), until(now, ends));
    Ok(entry.with_silent(columns.get(4)?))
}

/// Reads the columns of `holder.list` and `holder.ending_soonest`.
pub(crate) fn read_holder(now: i64, columns: &Columns<'_>) -> StoreResult<HeldBy> {
    let StoredHolder { holder, ttl } = read_holder_text(columns, 7)?;
    let mut held = HeldBy::new(holder, token_in_column(columns, 1)?, columns.get(2)?);
    held.ttl = ttl;
    held.remaining = until(now, columns.get(0)?);
    held.held_for = until(columns.get(3)?, now);
    held.handovers = columns.get(4)?;
    held.evicting = columns.get(5)?;
    held.kept = columns.get::<_, i64>(6)? > 0;
    held.note = columns.get::<_, Option<Vec<u8>>>(8)?.map(Arc::from);
    let asked_until: i64 = columns.get(9)?;
    if asked_until > 0 {
        let (by, why): (Option<Arc<str>>, Option<Arc<str>>) = (columns.get(10)?, columns.get(11)?);
        let (by, why) = (by.unwrap_or_default(), why.unwrap_or_default());
        held.asked = Some(FinishRequest::new(until(now, asked_until), by, why));
    }
    Ok(held)
}

fn read_holder_text(columns: &Columns<'_>, index: usize) -> StoreResult<StoredHolder> {
    let text = columns.get_ref(index)?.as_str();
    let bad =
        |error: FromSqlError| rusqlite::Error::FromSqlConversionFailure(index, Type::Text, error.into());
    let Ok(stored) = text.map_err(bad)?.parse::<StoredHolder>();
    Ok(stored)
}

fn token_in_column(columns: &Columns<'_>, index: usize) -> StoreResult<FencingToken> {
    let number = columns.get(index)?;
    Ok(FencingToken::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, number))?)
}

fn audit(connection: &Connection, listing: &Listing) -> StoreResult<Page> {
    let size = page_size(listing);
    let from = listing.after.as_deref().and_then(|after| after.parse().ok()).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(sql::audit::list)?;
    // One record more than the page holds tells whether there is a next page.
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let mut rows = statement.query((from, &listing.prefix, limit))?;
    let (mut records, mut last) = (Vec::new(), None);
    while let Some(columns) = rows.next()? {
        if records.len() == size {
            return Ok(Page::Audit { records, next: last });
        }
        last = Some(columns.get::<_, i64>(0)?.to_string());
        let record = read_audit_record(columns).map_err(|error| error.in_row("audit", columns));
        records.extend(left_out_if_bad("audit", record)?);
    }
    Ok(Page::Audit { records, next: None })
}

fn read_audit_record(columns: &Columns<'_>) -> StoreResult<AuditRecord> {
    let key: String = columns.get(2)?;
    let resource = read_resource(&key)?;
    let at = WallTime::from_micros(columns.get::<_, i64>(1)?.unsigned_abs());
    let mut record = AuditRecord::new(at, resource, columns.get::<_, String>(3)?, columns.get(7)?);
    let token: i64 = columns.get(4)?;
    record.token = if token == 0 { None } else { Some(token_in_column(columns, 4)?) };
    (record.by, record.why) = (columns.get(5)?, columns.get(6)?);
    Ok(record)
}
