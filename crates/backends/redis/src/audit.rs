//! The audit trail: the streams of all resources, merged by time.

use std::collections::BTreeSet;

use leasehold_core::{AuditRecord, ErrorKind, FencingToken, Listing, Page, Resource, WallTime};
use redis::{Cmd, Value};

use crate::{
    backend::Redis,
    error::StoreError,
    keys::{Keys, pattern, resource_of},
    reply::{Fields, number},
};

/// How many streams are read in one pipeline.
const READ_AT_ONCE: usize = 100;

impl Redis {
    /// The audit streams of all resources, merged by time, newest first.
    pub(crate) async fn audit(&self, listing: &Listing) -> Result<Page, StoreError> {
        let mut audited = BTreeSet::new();
        self.scan_all(&pattern(&listing.prefix, ":audit"), |key| {
            audited.extend(resource_of(key).and_then(|key| Resource::from_key(key).ok()));
        })
        .await?;
        let (size, after) =
            (self.page_size(listing), listing.after.as_deref().and_then(AuditPosition::parse));
        let audited: Vec<Resource> = audited.into_iter().collect();
        let mut entries: Vec<(AuditPosition, AuditRecord)> = Vec::new();
        for some in audited.chunks(READ_AT_ONCE) {
            let call = |resource| (resource, audit_call(resource, after.as_ref(), size));
            let replies = self.router.run_all(None, some.iter().map(call).collect()).await;
            for (reply, resource) in replies.into_iter().zip(some) {
                let records = match reply.and_then(|reply| read_records(resource, reply)) {
                    Ok(records) => records.into_iter(),
                    // One bad stream must not hide the others.
                    Err(error) if is_corrupt(&error) => {
                        let key = Keys::of(resource).audit().to_owned();
                        let error = error.into_error();
                        tracing::warn!(%key, %error, "this audit stream cannot be read, so its records are left out");
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let is_after = |position: &AuditPosition| after.as_ref().is_none_or(|after| position < after);
                entries.extend(records.filter(|(position, _)| is_after(position)));
            }
            entries.sort_by(|(a, _), (b, _)| b.cmp(a));
            // One more than a page, to see whether there is a next one.
            entries.truncate(size + 1);
        }
        let more = entries.len() > size;
        entries.truncate(size);
        let next = entries.last().filter(|_| more).map(|(position, _)| position.to_text());
        Ok(Page::Audit { records: entries.into_iter().map(|(_, record)| record).collect(), next })
    }
}

/// The position of an audit record among those of all resources.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AuditPosition {
    /// The id in the stream: microseconds, and a number within the microsecond.
    id: (u64, u64),
    resource: String,
}

impl AuditPosition {
    fn parse(text: &str) -> Option<AuditPosition> {
        let (id, resource) = text.split_once('|')?;
        Some(AuditPosition { id: parse_stream_id(id)?, resource: resource.to_owned() })
    }

    fn to_text(&self) -> String {
        format!("{}-{}|{}", self.id.0, self.id.1, self.resource)
    }
}

fn parse_stream_id(text: &str) -> Option<(u64, u64)> {
    let (time, number) = text.split_once('-')?;
    Some((time.parse().ok()?, number.parse().ok()?))
}

fn audit_call(resource: &Resource, after: Option<&AuditPosition>, size: usize) -> Cmd {
    let mut call = Cmd::new();
    let newest = after.map_or_else(|| "+".to_owned(), |after| format!("{}-{}", after.id.0, after.id.1));
    // One more to see whether there are more, and one more because the range includes the record at `after`.
    call.arg("XREVRANGE").arg(Keys::of(resource).audit()).arg(newest).arg("-").arg("COUNT").arg(size + 2);
    call
}

fn read_records(resource: &Resource, reply: Value) -> Result<Vec<(AuditPosition, AuditRecord)>, StoreError> {
    let Value::Array(entries) = reply else { return Ok(Vec::new()) };
    entries.into_iter().map(|entry| read_record(resource, &mut Fields::of(entry)?)).collect()
}

fn read_record(resource: &Resource, entry: &mut Fields) -> Result<(AuditPosition, AuditRecord), StoreError> {
    let id = entry.text()?;
    let no_id = || StoreError::unexpected_reply(format!("{id:.40?} is not the id of a stream entry"));
    let id = parse_stream_id(&id).ok_or_else(no_id)?;
    let mut fields = entry.list()?;
    let mut record = AuditRecord::new(WallTime::from_micros(id.0), resource.clone(), "", false);
    while let Some(name) = fields.bytes()? {
        let value = fields.text()?;
        let number = || number(&Value::BulkString(value.clone().into_bytes())).unwrap_or(0);
        match name.as_slice() {
            b"at" => record.at = WallTime::from_micros(number().unsigned_abs()),
            b"token" => record.token = FencingToken::try_from(number()).ok(),
            b"by" => record.by = value,
            b"why" => record.why = value,
            b"command" => record.command = value,
            b"done" => record.done = value == "1",
            _ => {}
        }
    }
    Ok((AuditPosition { id, resource: resource.key().to_owned() }, record))
}

fn is_corrupt(error: &StoreError) -> bool {
    error.clone().into_error().kind() == ErrorKind::Corrupt
}
