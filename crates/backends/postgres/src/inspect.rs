//! The verb `inspect`: looks, and changes nothing.

use leasehold_core::{
    AuditRecord, Cursor, Error, ErrorKind, Listing, Page, Query, QueueEntry, Resource, Result, Snapshot,
    WallTime,
};
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use crate::{backend::Postgres, error, reply::Columns as _};

const LISTED_MAX: i64 = Snapshot::LISTED_MAX as i64;

impl Postgres {
    pub(crate) async fn answer(&self, query: &Query) -> Result<Page> {
        match query {
            Query::One(resource) => {
                let mut snapshots = self.look(&[resource.key()]).await?;
                if snapshots.is_empty() {
                    snapshots.push(Snapshot::empty(resource.clone()));
                }
                Ok(Page::Resources { snapshots, next: None })
            }
            Query::Resources(listing) => self.resources(listing).await,
            Query::Audit(listing) => self.audit(listing).await,
            // No row is without its end: the columns are NOT NULL.
            Query::Leaks(_) => Ok(Page::Leaks { found: Vec::new(), next: None }),
            Query::Foreign { .. } => {
                Err(Error::new(ErrorKind::Unsupported, "only leasehold keeps anything in its schema"))
            }
            other => Err(Error::new(ErrorKind::Unsupported, format!("postgres does not answer {other:?}"))),
        }
    }

    async fn look(&self, keys: &[&str]) -> Result<Vec<Snapshot>> {
        let parameters: [crate::wire::Parameter<'_>; 2] =
            [(&keys, Type::TEXT_ARRAY), (&LISTED_MAX, Type::INT8)];
        let rows = self.link.run(&self.sql.look, &parameters).await?;
        let mut snapshots: Vec<Snapshot> = Vec::with_capacity(keys.len());
        for row in rows.iter().filter(|row| !is_empty::<&str>(row)) {
            match (row.read::<i32>(1)?, snapshots.last_mut()) {
                (1, _) => snapshots.push(snapshot(row)?),
                (2, Some(snapshot)) => snapshot.holders.push(row.held_by([4, 3, 7], 9)?),
                (_, Some(snapshot)) => snapshot.queue.push(placed(row)?),
                (_, None) => return Err(error::strange("a holder without a resource")),
            }
        }
        Ok(snapshots)
    }

    fn page_size(&self, listing: &Listing) -> usize {
        let most = self.link.info().limits.page;
        let limit = if listing.limit == 0 { most } else { listing.limit.min(most) };
        limit as usize
    }

    async fn resources(&self, listing: &Listing) -> Result<Page> {
        let size = self.page_size(listing);
        let (after, limit) = (listing.after.as_deref().unwrap_or(""), limit_of(size));
        let parameters: [crate::wire::Parameter<'_>; 3] =
            [(&listing.prefix, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
        let rows = self.link.run(&self.sql.list, &parameters).await?;
        let listed = rows.iter().filter(|row| !is_empty::<&str>(row));
        let mut keys = listed.map(|row| row.read(0)).collect::<Result<Vec<&str>>>()?;
        let more = keys.len() > size;
        keys.truncate(size);
        let next = if more { keys.last().map(|&key| key.to_owned()) } else { None };
        let mut snapshots = if keys.is_empty() { Vec::new() } else { self.look(&keys).await? };
        // Who was there when the keys were listed may be gone.
        snapshots.retain(|seen| seen.holder_count > 0 || seen.queue_length > 0 || seen.paused_for.is_some());
        Ok(Page::Resources { snapshots, next })
    }

    async fn audit(&self, listing: &Listing) -> Result<Page> {
        let size = self.page_size(listing);
        let from = listing.after.as_deref().and_then(|after| after.parse().ok()).unwrap_or(i64::MAX);
        let limit = limit_of(size);
        let parameters: [crate::wire::Parameter<'_>; 3] =
            [(&from, Type::INT8), (&listing.prefix, Type::TEXT), (&limit, Type::INT8)];
        let mut rows = self.link.run(&self.sql.audit, &parameters).await?;
        rows.retain(|row| !is_empty::<i64>(row));
        let shown = &rows[..size.min(rows.len())];
        let records = shown.iter().map(record).collect::<Result<Vec<_>>>()?;
        let last = shown.last().filter(|_| rows.len() > size);
        let next = last.map(|row| row.read::<i64>(0)).transpose()?.map(|sequence| sequence.to_string());
        Ok(Page::Audit { records, next })
    }
}

/// One more than a page, to see whether there is another.
fn limit_of(size: usize) -> i64 {
    i64::try_from(size + 1).unwrap_or(i64::MAX)
}

/// Whether it is the row that is there for its request id alone.
fn is_empty<'a, T: FromSql<'a>>(row: &'a Row) -> bool {
    matches!(row.try_get::<_, Option<T>>(0), Ok(None))
}

fn resource(key: &str) -> Result<Resource> {
    Resource::from_key(key).map_err(error::strange)
}

fn snapshot(row: &Row) -> Result<Snapshot> {
    let mut snapshot = Snapshot::empty(resource(row.read(0)?)?);
    snapshot.capacity = row.number(3)?;
    snapshot.last_token = if row.read::<i64>(4)? == 0 { None } else { Some(row.token(4)?) };
    snapshot.holder_count = row.number(5)?;
    snapshot.queue_length = row.number(6)?;
    snapshot.paused_for = row.maybe_span(7)?;
    snapshot.cursor = Cursor(row.read::<i64>(8)?.cast_unsigned());
    Ok(snapshot)
}

fn placed(row: &Row) -> Result<QueueEntry> {
    Ok(QueueEntry::new(row.holder(13)?, row.number(3)?, row.span(9)?, row.span(7)?))
}

fn record(row: &Row) -> Result<AuditRecord> {
    let at = WallTime::from_micros(row.read::<i64>(1)?.unsigned_abs());
    let mut record = AuditRecord::new(at, resource(row.read(2)?)?, row.read::<String>(3)?, row.read(7)?);
    record.token = if row.read::<i64>(4)? == 0 { None } else { Some(row.token(4)?) };
    (record.by, record.why) = (row.read(5)?, row.read(6)?);
    Ok(record)
}
