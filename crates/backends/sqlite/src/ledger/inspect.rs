//! The verb `inspect`: looks, and changes nothing. What has ended is left out, not dropped.

use std::sync::Arc;

use leasehold_core::{
    AuditRecord, Cursor, Error, ErrorKind, FinishRequest, HeldBy, Holder, Listing, Page, Query, QueueEntry,
    Resource, Snapshot, WallTime,
};
use rusqlite::{Connection, OptionalExtension as _, Row as Columns};

use super::{Entry, Step, token, until};
use crate::{PAGE_MAX, error::Fault, sql};

const LISTED_MAX: i64 = Snapshot::LISTED_MAX as i64;

/// Answers a query in the read transaction that the connection is in.
pub(crate) fn inspect(
    connection: &Connection,
    now: i64,
    query: &Query,
) -> Step<leasehold_core::Result<Page>> {
    match query {
        Query::One(resource) => {
            let seen =
                find(connection, resource)?.map(|entry| snapshot(connection, now, &entry)).transpose()?;
            let snapshots = vec![seen.unwrap_or_else(|| Snapshot::empty(resource.clone()))];
            Ok(Ok(Page::Resources { snapshots, next: None }))
        }
        Query::Resources(listing) => resources(connection, now, listing).map(Ok),
        Query::Audit(listing) => audit(connection, listing).map(Ok),
        // No row is without its end: the columns are NOT NULL.
        Query::Leaks(_) => Ok(Ok(Page::Leaks { found: Vec::new(), next: None })),
        Query::Foreign { .. } => {
            Ok(Err(Error::new(ErrorKind::Unsupported, "only leasehold keeps anything in its SQLite file")))
        }
        other => Ok(Err(Error::new(ErrorKind::Unsupported, format!("sqlite does not answer {other:?}")))),
    }
}

/// The row of a resource, as it is.
pub(crate) fn find<'r>(connection: &Connection, resource: &'r Resource) -> Step<Option<Entry<'r>>> {
    let mut statement = connection.prepare_cached(sql::resource::find)?;
    Ok(statement.query_row([resource.key()], |row| Entry::read(resource, row)).optional()?)
}

fn page_size(listing: &Listing) -> usize {
    let limit = if listing.limit == 0 { PAGE_MAX } else { listing.limit.min(PAGE_MAX) };
    limit as usize
}

fn resources(connection: &Connection, now: i64, listing: &Listing) -> Step<Page> {
    let size = page_size(listing);
    let mut snapshots: Vec<Snapshot> = Vec::new();
    let mut statement = connection.prepare_cached(sql::resource::list)?;
    let after = listing.after.as_deref().unwrap_or("");
    let mut rows = statement.query((&listing.prefix, after, now))?;
    while let Some(row) = rows.next()? {
        let key: String = row.get(0)?;
        if !key.starts_with(&listing.prefix) {
            break;
        }
        let resource = Resource::from_key(&key).map_err(|error| Fault::Row(error.to_string()))?;
        let Some(entry) = find(connection, &resource)? else { continue };
        let seen = snapshot(connection, now, &entry)?;
        if seen.holder_count == 0 && seen.queue_length == 0 && seen.paused_for.is_none() {
            continue;
        }
        if snapshots.len() == size {
            let next = snapshots.last().map(|last| last.resource.key().to_owned());
            return Ok(Page::Resources { snapshots, next });
        }
        snapshots.push(seen);
    }
    Ok(Page::Resources { snapshots, next: None })
}

fn snapshot(connection: &Connection, now: i64, entry: &Entry<'_>) -> Step<Snapshot> {
    let mut snapshot = Snapshot::empty(entry.resource.clone());
    snapshot.capacity = entry.capacity;
    snapshot.last_token = entry.last_token()?;
    snapshot.paused_for = (entry.paused_until > now).then(|| until(now, entry.paused_until));
    snapshot.cursor = Cursor(entry.version.unsigned_abs());
    if entry.seats > 0 {
        snapshot.holder_count = count(connection, sql::seat::count, entry, now)?;
        let mut statement = connection.prepare_cached(sql::seat::list)?;
        let mut rows = statement.query((entry.id, now, LISTED_MAX))?;
        while let Some(row) = rows.next()? {
            snapshot.holders.push(read_seat(now, row)?);
        }
    }
    if entry.places > 0 {
        snapshot.queue_length = count(connection, sql::place::count, entry, now)?;
        let mut statement = connection.prepare_cached(sql::place::list)?;
        let mut rows = statement.query((entry.id, now, LISTED_MAX))?;
        while let Some(row) = rows.next()? {
            let (since, ends): (i64, i64) = (row.get(2)?, row.get(3)?);
            let (waited, remaining) = (until(since, now), until(now, ends));
            snapshot.queue.push(QueueEntry::new(
                holder(row.get_ref(0)?.as_str())?,
                row.get(1)?,
                waited,
                remaining,
            ));
        }
    }
    Ok(snapshot)
}

fn count(connection: &Connection, sql: &'static str, entry: &Entry<'_>, now: i64) -> Step<u32> {
    Ok(connection.prepare_cached(sql)?.query_row((entry.id, now), |row| row.get(0))?)
}

/// From the columns of `seat.list` and `seat.next_ends`.
pub(super) fn read_seat(now: i64, row: &Columns<'_>) -> Step<HeldBy> {
    let mut seat = HeldBy::new(holder(row.get_ref(7)?.as_str())?, token(row.get(1)?)?, row.get(2)?);
    seat.remaining = until(now, row.get(0)?);
    seat.held_for = until(row.get(3)?, now);
    seat.handovers = row.get(4)?;
    seat.evicting = row.get(5)?;
    seat.kept = row.get::<_, i64>(6)? > 0;
    seat.note = row.get::<_, Option<Vec<u8>>>(8)?.map(Arc::from);
    let asked_until: i64 = row.get(9)?;
    if asked_until > 0 {
        let (by, why): (Option<Arc<str>>, Option<Arc<str>>) = (row.get(10)?, row.get(11)?);
        seat.asked = Some(FinishRequest::new(
            until(now, asked_until),
            by.unwrap_or_default(),
            why.unwrap_or_default(),
        ));
    }
    Ok(seat)
}

fn holder(text: Result<&str, rusqlite::types::FromSqlError>) -> Step<Arc<Holder>> {
    let text = text.map_err(|error| Fault::Row(format!("a holder is not text: {error}")))?;
    let Ok(holder) = text.parse::<Holder>();
    Ok(Arc::new(holder))
}

fn audit(connection: &Connection, listing: &Listing) -> Step<Page> {
    let size = page_size(listing);
    let from = listing.after.as_deref().and_then(|after| after.parse().ok()).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached(sql::audit::list)?;
    let mut rows = statement.query((from, &listing.prefix, i64::try_from(size + 1).unwrap_or(i64::MAX)))?;
    let (mut records, mut last) = (Vec::new(), None);
    while let Some(row) = rows.next()? {
        if records.len() == size {
            return Ok(Page::Audit { records, next: last });
        }
        last = Some(row.get::<_, i64>(0)?.to_string());
        records.push(read_record(row)?);
    }
    Ok(Page::Audit { records, next: None })
}

fn read_record(row: &Columns<'_>) -> Step<AuditRecord> {
    let key: String = row.get(2)?;
    let resource = Resource::from_key(&key).map_err(|error| Fault::Row(error.to_string()))?;
    let at = WallTime::from_micros(row.get::<_, i64>(1)?.unsigned_abs());
    let mut record = AuditRecord::new(at, resource, row.get::<_, String>(3)?, row.get(7)?);
    let meant: i64 = row.get(4)?;
    record.token = if meant == 0 { None } else { Some(token(meant)?) };
    (record.by, record.why) = (row.get(5)?, row.get(6)?);
    Ok(record)
}
