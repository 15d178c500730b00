//! The verb `inspect`: reads, and changes nothing.

use leasehold_core::{
    AuditRecord, Cursor, Error, ErrorKind, Listing, Page, Query, QueueEntry, Resource, Result, Snapshot,
    WallTime,
};
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use crate::{
    backend::Postgres,
    connection::Parameter,
    error,
    reply::{Columns as _, HolderColumns},
};

const LISTED_MAX: i64 = Snapshot::LISTED_MAX as i64;

/// The columns of `snapshots.sql`. A row is about a resource, a holder or a queued claim, as the column `PART` says.
mod snapshot_column {
    pub(super) const KEY: usize = 0;
    pub(super) const PART: usize = 1;
    /// The capacity of a resource; the weight of a holder or a queued claim.
    pub(super) const CAPACITY: usize = 3;
    /// The last token of a resource; the token of a holder.
    pub(super) const TOKEN: usize = 4;
    pub(super) const SEATS: usize = 5;
    pub(super) const PLACES: usize = 6;
    /// How long a resource is still paused; how long a holder or a queued claim still has.
    pub(super) const REMAINING: usize = 7;
    pub(super) const VERSION: usize = 8;
    pub(super) const HELD_FOR: usize = 9;
    pub(super) const HOLDER: usize = 13;
    pub(super) const SILENT: usize = 18;
}

/// The values of the column `PART` for a resource and for a holder. Every other value is a queued claim.
const RESOURCE: i32 = 1;
const HOLDER: i32 = 2;

const HOLDER_COLUMNS: HolderColumns = HolderColumns {
    token: snapshot_column::TOKEN,
    weight: snapshot_column::CAPACITY,
    remaining: snapshot_column::REMAINING,
    details: snapshot_column::HELD_FOR,
};

/// The columns of `audit.sql`.
mod audit_column {
    pub(super) const SEQUENCE: usize = 0;
    pub(super) const AT: usize = 1;
    pub(super) const RESOURCE: usize = 2;
    pub(super) const COMMAND: usize = 3;
    pub(super) const TOKEN: usize = 4;
    pub(super) const BY: usize = 5;
    pub(super) const WHY: usize = 6;
    pub(super) const DONE: usize = 7;
}

impl Postgres {
    pub(crate) async fn try_inspect(&self, query: &Query) -> Result<Page> {
        match query {
            Query::One(resource) => {
                let mut found = self.snapshots(&[resource.key()]).await?;
                let snapshot = match found.pop() {
                    Some((_, snapshot)) => snapshot?,
                    None => Snapshot::empty(resource.clone()),
                };
                Ok(Page::Resources { snapshots: vec![snapshot], next: None })
            }
            Query::Resources(listing) => self.resources(listing).await,
            Query::Audit(listing) => self.audit(listing).await,
            // There are no records without an expiry: the columns `ends` are NOT NULL.
            Query::Leaks(_) => Ok(Page::Leaks { found: Vec::new(), next: None }),
            Query::Nodes => Ok(self.nodes().await),
            Query::Foreign { .. } => Err(Error::new(
                ErrorKind::Unsupported,
                "PostgreSQL has no foreign keys to list: leasehold has a schema of its own there",
            )),
            other => {
                let message = format!("the PostgreSQL backend does not support the query {other:?}");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    /// The snapshots of these resources, each with its key; an error for one that cannot be read.
    async fn snapshots(&self, keys: &[&str]) -> Result<Vec<(String, Result<Snapshot>)>> {
        let parameters: [Parameter<'_>; 2] = [(&keys, Type::TEXT_ARRAY), (&LISTED_MAX, Type::INT8)];
        let rows = self.connections.query(&self.statements.snapshots, &parameters).await?;
        let mut found: Vec<(String, Result<Snapshot>)> = Vec::with_capacity(keys.len());
        for row in rows.iter().filter(|row| !is_empty::<&str>(row)) {
            if row.read::<i32>(snapshot_column::PART)? == RESOURCE {
                found.push((row.read(snapshot_column::KEY)?, snapshot(row)));
                continue;
            }
            let Some((_, read)) = found.last_mut() else {
                return Err(error::unexpected_reply("a holder comes before its resource"));
            };
            if let Ok(snapshot) = read
                && let Err(error) = add_claim(snapshot, row)
            {
                *read = Err(error);
            }
        }
        Ok(found)
    }

    /// As `snapshots`. The server itself refuses some values, such as infinite times, with an error for the whole statement:
    /// then each resource is read by itself.
    async fn snapshots_apart(&self, keys: &[&str]) -> Result<Vec<(String, Result<Snapshot>)>> {
        match self.snapshots(keys).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            found => return found,
        }
        let mut all = Vec::with_capacity(keys.len());
        for &key in keys {
            match self.snapshots(&[key]).await {
                Ok(found) => all.extend(found),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let what = format!("a value in the tables resource, seat or place is not valid: {error}");
                    all.push((key.to_owned(), Err(Error::new(ErrorKind::Corrupt, what))));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    fn page_size(&self, listing: &Listing) -> usize {
        let max = self.connections.info().limits.page;
        let limit = if listing.limit == 0 { max } else { listing.limit.min(max) };
        limit as usize
    }

    async fn resources(&self, listing: &Listing) -> Result<Page> {
        let size = self.page_size(listing);
        let (after, limit) = (listing.after.as_deref().unwrap_or(""), one_more_than(size));
        let parameters: [Parameter<'_>; 3] =
            [(&listing.prefix, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
        let rows = self.connections.query(&self.statements.list, &parameters).await?;
        let with_keys = rows.iter().filter(|row| !is_empty::<&str>(row));
        let mut keys = with_keys.map(|row| row.read(0)).collect::<Result<Vec<&str>>>()?;
        let has_more = keys.len() > size;
        keys.truncate(size);
        let next = if has_more { keys.last().map(|&key| key.to_owned()) } else { None };
        let found = if keys.is_empty() { Vec::new() } else { self.snapshots_apart(&keys).await? };
        let mut snapshots: Vec<Snapshot> = found.into_iter().filter_map(listed).collect();
        // Between the two statements, the last claim of a listed resource may have ended.
        snapshots.retain(Snapshot::is_in_use);
        Ok(Page::Resources { snapshots, next })
    }

    async fn audit(&self, listing: &Listing) -> Result<Page> {
        let size = self.page_size(listing);
        // Newest first, so the next page has lower sequence numbers than the last record of this one.
        let before = listing.after.as_deref().and_then(|after| after.parse().ok()).unwrap_or(i64::MAX);
        let limit = one_more_than(size);
        let parameters: [Parameter<'_>; 3] =
            [(&before, Type::INT8), (&listing.prefix, Type::TEXT), (&limit, Type::INT8)];
        let mut rows = self.connections.query(&self.statements.audit, &parameters).await?;
        rows.retain(|row| !is_empty::<i64>(row));
        let page = &rows[..size.min(rows.len())];
        let records = page.iter().filter_map(listed_record).collect();
        let last = page.last().filter(|_| rows.len() > size);
        let next = last.map(|row| row.read::<i64>(audit_column::SEQUENCE)).transpose()?;
        Ok(Page::Audit { records, next: next.map(|sequence| sequence.to_string()) })
    }
}

/// One row more than a page, to find out whether there is another page.
fn one_more_than(size: usize) -> i64 {
    i64::try_from(size + 1).unwrap_or(i64::MAX)
}

/// Whether the row is there for its request id alone, because there is nothing to return. Its first column is null.
fn is_empty<'a, T: FromSql<'a>>(row: &'a Row) -> bool {
    matches!(row.try_get::<_, Option<T>>(0), Ok(None))
}

fn resource(key: &str) -> Result<Resource> {
    Resource::from_key(key)
        .map_err(|why| error::unexpected_reply(format!("the key {key:.80?} is not valid: {why}")))
}

/// A resource as a list shows it: one that cannot be read must not hide the others.
fn listed((key, read): (String, Result<Snapshot>)) -> Option<Snapshot> {
    let error = match read {
        Ok(snapshot) => return Some(snapshot),
        Err(error) => error,
    };
    let unreadable =
        Resource::from_key(&key).map(|resource| Snapshot::unreadable(resource, error.to_string()));
    unreadable.map_err(|_| warn_left_out("resource", &key, &error)).ok()
}

/// A record as a list shows it, if it can be read.
fn listed_record(row: &Row) -> Option<AuditRecord> {
    let left_out = |error: &Error| {
        let sequence = row.read::<i64>(audit_column::SEQUENCE).unwrap_or_default();
        warn_left_out("audit", &sequence.to_string(), error);
    };
    audit_record(row).inspect_err(left_out).ok()
}

fn warn_left_out(table: &str, row: &str, error: &Error) {
    tracing::warn!(target: "leasehold", table, row, %error, "a row cannot be read and is left out of a list");
}

fn add_claim(snapshot: &mut Snapshot, row: &Row) -> Result<()> {
    if row.read::<i32>(snapshot_column::PART)? == HOLDER {
        snapshot.holders.push(row.held_by(HOLDER_COLUMNS)?);
    } else {
        snapshot.queue.push(queue_entry(row)?);
    }
    Ok(())
}

fn snapshot(row: &Row) -> Result<Snapshot> {
    use snapshot_column::{CAPACITY, KEY, PLACES, REMAINING, SEATS, TOKEN, VERSION};
    let mut snapshot = Snapshot::empty(resource(row.read(KEY)?)?);
    snapshot.capacity = row.number(CAPACITY, "resource.capacity")?;
    snapshot.last_token = row.token_or_zero(TOKEN, "resource.last")?;
    snapshot.holder_count = row.number(SEATS, "resource.seats")?;
    snapshot.queue_length = row.number(PLACES, "resource.places")?;
    snapshot.paused_for = row.maybe_span(REMAINING)?;
    snapshot.cursor = Cursor(row.read::<i64>(VERSION)?.cast_unsigned());
    Ok(snapshot)
}

fn queue_entry(row: &Row) -> Result<QueueEntry> {
    use snapshot_column::{CAPACITY, HELD_FOR, HOLDER, REMAINING, SILENT};
    let entry = QueueEntry::new(
        row.stored_holder(HOLDER)?.holder,
        row.number(CAPACITY, "place.weight")?,
        row.span(HELD_FOR)?,
        row.span(REMAINING)?,
    );
    Ok(entry.with_silent(row.read(SILENT)?))
}

fn audit_record(row: &Row) -> Result<AuditRecord> {
    use audit_column::{AT, BY, COMMAND, DONE, RESOURCE, TOKEN, WHY};
    let at = WallTime::from_micros(row.read::<i64>(AT)?.unsigned_abs());
    let resource = resource(row.read(RESOURCE)?)?;
    let mut record = AuditRecord::new(at, resource, row.read::<String>(COMMAND)?, row.read(DONE)?);
    record.token = row.token_or_zero(TOKEN, "audit.token")?;
    (record.by, record.why) = (row.read(BY)?, row.read(WHY)?);
    Ok(record)
}
