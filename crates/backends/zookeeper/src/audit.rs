//! The audit trail: one persistent sequential node for each operator's command.

use leasehold_core::{AuditRecord, FencingToken, OperatorCommand, Resource, WallTime};
use serde::{Deserialize, Serialize};
use zookeeper_client::CreateMode;

use crate::{paths::AUDIT, session::Session, transaction::Transaction};

/// How many commands the trail keeps. The oldest are deleted first.
const TRAIL_MAX: usize = 5_000;
/// The trail is trimmed only when it exceeds its limit by this much, so that not every command deletes a
/// node.
const TRIM_SLACK: usize = 100;

/// The data of a node of the audit trail. The names in JSON are a stored format.
#[derive(Debug, Serialize, Deserialize)]
struct StoredAuditRecord {
    resource: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    token: Option<u64>,
    by: String,
    why: String,
    command: String,
    done: bool,
}

/// Reads a node of the audit trail. `None` if the data is not such a record.
pub(crate) fn parse_audit_record(data: &[u8], ctime_ms: i64) -> Option<AuditRecord> {
    let stored: StoredAuditRecord = serde_json::from_slice(data).ok()?;
    let at = WallTime::from_micros(u64::try_from(ctime_ms).unwrap_or(0) * 1_000);
    let resource = Resource::from_key(&stored.resource).ok()?;
    let mut record = AuditRecord::new(at, resource, stored.command, stored.done);
    record.token = stored.token.and_then(|token| FencingToken::new(token).ok());
    (record.by, record.why) = (stored.by, stored.why);
    Some(record)
}

impl Session {
    /// Adds the record of a command to the transaction that carries the command out. `done` is false if it
    /// has no effect.
    pub(crate) fn add_audit_record(
        &self,
        transaction: &mut Transaction<'_>,
        command: &OperatorCommand,
        done: bool,
    ) {
        let record = StoredAuditRecord {
            resource: command.resource.key().to_owned(),
            token: command.token.map(FencingToken::get),
            by: command.by.clone(),
            why: command.why.clone(),
            command: command.action.as_str().to_owned(),
            done,
        };
        let bytes = serde_json::to_vec(&record).expect("texts and numbers can be written as JSON");
        let options = self.options(CreateMode::PersistentSequential);
        transaction.create_sequential(&format!("{AUDIT}/order-"), &bytes, &options);
    }

    /// Deletes the oldest records beyond the limit. Best effort: the next command tries again.
    pub(crate) async fn trim_audit_trail(&self) {
        let Ok(mut names) = self.client.list_children(AUDIT).await else { return };
        if names.len() <= TRAIL_MAX + TRIM_SLACK {
            return;
        }
        names.sort_unstable();
        for name in names.iter().take(names.len() - TRAIL_MAX) {
            if self.client.delete(&format!("{AUDIT}/{name}"), None).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_does_not_change() {
        let mut record = StoredAuditRecord {
            resource: "report/42".into(),
            token: Some(7),
            by: "ops".into(),
            why: "upgrade".into(),
            command: "evict".into(),
            done: true,
        };
        let stored =
            r#"{"resource":"report/42","token":7,"by":"ops","why":"upgrade","command":"evict","done":true}"#;
        assert_eq!(serde_json::to_string(&record).unwrap(), stored);
        let read = parse_audit_record(stored.as_bytes(), 1_000).unwrap();
        assert_eq!((read.by.as_str(), read.token.map(FencingToken::get)), ("ops", Some(7)));
        record.token = None;
        assert!(!serde_json::to_string(&record).unwrap().contains("token"));
    }
}
