//! What happened to one resource: the changes that the history remembers, and the operators' commands of the audit trail.

use std::time::Duration;

use leasehold_api::{
    events::{ChangeBody, ChangeKind},
    fields::TokenText,
    timeline::{DurationBody, ENTRIES_MAX, TimelineReply},
};
use leasehold_core::{AuditRecord, Resource};

use super::Sampler;

/// The time in the audit trail is that of the store, the time of a change that of the look which found it. A change within this time of a
/// command, besides the time between two looks, is what the command did.
const SAME_WITHIN: Duration = Duration::from_secs(10);

/// Changes that this server has seen, newest first.
pub(crate) struct Seen {
    /// Since when none is missing.
    pub(crate) since: String,
    /// The history has forgotten earlier ones since the server began to look.
    pub(crate) forgetful: bool,
    pub(crate) changes: Vec<ChangeBody>,
    /// The time between two looks.
    pub(crate) every: Duration,
}

impl Sampler {
    /// What it has seen of this resource.
    pub(crate) fn seen(&self, resource: &Resource) -> Seen {
        let state = self.state();
        let began = || humantime::format_rfc3339_millis(state.since.to_system_time()).to_string();
        let oldest = state.history.oldest_if_forgetful();
        Seen {
            since: oldest.map_or_else(began, |oldest| oldest.at.clone()),
            forgetful: oldest.is_some(),
            changes: state.history.of(resource).iter().map(|entry| entry.body.clone()).collect(),
            every: state.every,
        }
    }
}

/// The timeline of a resource. `audit` are commands about it, newest first; `audit_is_whole`: there are no others.
pub(crate) fn timeline(
    resource: &Resource,
    seen: Seen,
    audit: &[AuditRecord],
    audit_is_whole: bool,
) -> TimelineReply {
    let Seen { since, forgetful, mut changes, every } = seen;
    let (waits, holds) = (durations(&changes, wait_of), durations(&changes, hold_of));
    let mut unseen = Vec::new();
    for record in audit.iter().filter(|record| record.done) {
        let Some(kind) = kind_of(&record.command) else { continue };
        let within = SAME_WITHIN + every;
        match changes.iter_mut().find(|change| change.kind == kind && is_of(change, record, within)) {
            Some(change) => {
                change.by.get_or_insert_with(|| record.by.clone());
                change.why.get_or_insert_with(|| record.why.clone());
            }
            None => unseen.push(of_record(record, kind)),
        }
    }
    changes.append(&mut unseen);
    // RFC 3339 in UTC with a fixed number of digits sorts as text.
    changes.sort_by(|a, b| b.at.cmp(&a.at));
    let complete = !forgetful && audit_is_whole && changes.len() <= ENTRIES_MAX;
    changes.truncate(ENTRIES_MAX);
    TimelineReply {
        resource: resource.to_string(),
        key: resource.key().to_owned(),
        since,
        complete,
        entries: changes,
        waits,
        holds,
    }
}

/// What a command does, as a change.
fn kind_of(command: &str) -> Option<ChangeKind> {
    Some(match command {
        "ask" => ChangeKind::Asked,
        "evict" => ChangeKind::Evicting,
        "evict-now" | "evict-foreign" => ChangeKind::Evicted,
        "pause" => ChangeKind::Paused,
        "resume" => ChangeKind::Resumed,
        "resize" => ChangeKind::Resized,
        _ => return None,
    })
}

/// Whether the change is what this command did.
fn is_of(change: &ChangeBody, record: &AuditRecord, within: Duration) -> bool {
    let Ok(at) = humantime::parse_rfc3339(&change.at) else { return false };
    let commanded = record.at.to_system_time();
    let apart = at.duration_since(commanded).unwrap_or_else(|error| error.duration());
    let same_grant = match (change.token, record.token) {
        (Some(of_change), Some(of_record)) => of_change.0 == of_record,
        _ => true,
    };
    same_grant && apart <= within
}

fn of_record(record: &AuditRecord, kind: ChangeKind) -> ChangeBody {
    ChangeBody {
        at: humantime::format_rfc3339_millis(record.at.to_system_time()).to_string(),
        kind,
        resource: record.resource.to_string(),
        key: record.resource.key().to_owned(),
        token: record.token.map(TokenText),
        from_token: None,
        holder: None,
        for_ms: None,
        waited_ms: None,
        queue_length: 0,
        by: Some(record.by.clone()),
        why: Some(record.why.clone()),
    }
}

fn wait_of(change: &ChangeBody) -> Option<u64> {
    change.waited_ms
}

fn hold_of(change: &ChangeBody) -> Option<u64> {
    let has_ended = matches!(change.kind, ChangeKind::Released | ChangeKind::Expired | ChangeKind::Evicted);
    change.for_ms.filter(|_| has_ended)
}

/// The newest durations, oldest first.
fn durations(changes: &[ChangeBody], of: fn(&ChangeBody) -> Option<u64>) -> Vec<DurationBody> {
    let one = |change: &ChangeBody| Some(DurationBody { at: change.at.clone(), ms: of(change)? });
    let mut found: Vec<DurationBody> = changes.iter().filter_map(one).take(ENTRIES_MAX).collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use leasehold_core::WallTime;

    use super::*;
    use crate::sampler::changes::change;

    fn at(second: u64) -> String {
        humantime::format_rfc3339_millis(WallTime::from_micros(second * 1_000_000).to_system_time())
            .to_string()
    }

    fn seen(kind: ChangeKind, second: u64, for_ms: Option<u64>) -> ChangeBody {
        ChangeBody { at: at(second), ..change("report/1", kind, for_ms).body }
    }

    fn record(command: &str, second: u64) -> AuditRecord {
        let resource = "report/1".parse().unwrap();
        let mut record = AuditRecord::new(WallTime::from_micros(second * 1_000_000), resource, command, true);
        (record.by, record.why) = ("ann".to_owned(), "disk".to_owned());
        record
    }

    fn of(changes: Vec<ChangeBody>, audit: &[AuditRecord]) -> TimelineReply {
        let seen = Seen { since: at(50), forgetful: false, changes, every: Duration::from_secs(2) };
        timeline(&"report/1".parse().unwrap(), seen, audit, true)
    }

    #[test]
    fn commands_explain_what_was_seen_and_add_what_was_not() {
        let changes = vec![
            seen(ChangeKind::Resumed, 110, None),
            seen(ChangeKind::Released, 105, Some(4000)),
            seen(ChangeKind::Paused, 100, None),
        ];
        let mut refused = record("evict-now", 111);
        refused.done = false;
        let line = of(changes, &[refused, record("resize", 107), record("pause", 99), record("ask", 10)]);
        let told: Vec<_> = line.entries.iter().map(|entry| (entry.kind, entry.by.as_deref())).collect();
        let expected = [
            (ChangeKind::Resumed, None),
            (ChangeKind::Resized, Some("ann")),
            (ChangeKind::Released, None),
            (ChangeKind::Paused, Some("ann")),
            (ChangeKind::Asked, Some("ann")),
        ];
        assert_eq!(told, expected);
        assert_eq!(line.holds, [DurationBody { at: at(105), ms: 4000 }]);
        assert!(line.complete && line.waits.is_empty());
    }

    #[test]
    fn a_long_timeline_is_cut_and_says_so() {
        let many = |count: u64| {
            (0..count).rev().map(|second| seen(ChangeKind::Released, second, Some(second))).collect()
        };
        let line = of(many(600), &[]);
        assert_eq!((line.entries.len(), line.holds.len(), line.complete), (500, 500, false));
        assert_eq!((line.holds[0].ms, line.holds[499].ms), (100, 599), "the newest, oldest first");
        assert!(of(many(500), &[]).complete);
    }
}
