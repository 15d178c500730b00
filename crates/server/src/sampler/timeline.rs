//! What happened to one resource: the changes that the history remembers, and the operators' commands of the audit trail.

use std::time::Duration;

use leasehold_api::{
    events::{ChangeBody, ChangeKind},
    fields::TokenText,
    timeline::{DurationBody, ENTRIES_MAX, TimelineReply},
};
use leasehold_core::{AuditRecord, Resource};

use super::{Sampler, activity::is_end};

/// The time in the audit trail is that of the store, the time of a change that of the sample which found it. A change within this time of a
/// command, besides the time between the two samples, is what the command did.
const SAME_WITHIN: Duration = Duration::from_secs(10);

/// Changes that this server has seen, newest first.
pub(crate) struct Seen {
    /// Since when none is missing.
    pub(crate) since: String,
    /// The history has forgotten earlier ones since the first sample.
    pub(crate) forgetful: bool,
    /// Each with the time between the two samples that show it.
    pub(crate) changes: Vec<(ChangeBody, Duration)>,
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
            changes: state
                .history
                .of(resource)
                .iter()
                .map(|entry| (entry.body.clone(), entry.within))
                .collect(),
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
    let Seen { since, forgetful, mut changes } = seen;
    let (waits, holds) = (durations(&changes, wait_of), durations(&changes, hold_of));
    let mut unseen = Vec::new();
    for record in audit.iter().filter(|record| record.done) {
        let Some(kind) = kind_of(&record.command) else { continue };
        let is_same = |(change, within): &(ChangeBody, Duration)| {
            change.kind == kind && is_of(change, record, SAME_WITHIN + *within)
        };
        match changes.iter_mut().find(|seen| is_same(seen)) {
            Some((change, _)) => {
                change.by.get_or_insert_with(|| record.by.clone());
                change.why.get_or_insert_with(|| record.why.clone());
            }
            None => unseen.push(of_record(record, kind)),
        }
    }
    let mut changes: Vec<ChangeBody> = changes.into_iter().map(|(change, _)| change).chain(unseen).collect();
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
    change.for_ms.filter(|_| is_end(change.kind))
}

/// The newest durations, oldest first.
fn durations(changes: &[(ChangeBody, Duration)], of: fn(&ChangeBody) -> Option<u64>) -> Vec<DurationBody> {
    let one =
        |(change, _): &(ChangeBody, Duration)| Some(DurationBody { at: change.at.clone(), ms: of(change)? });
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
        sampled_every(Duration::from_secs(2), changes, audit)
    }

    fn sampled_every(every: Duration, changes: Vec<ChangeBody>, audit: &[AuditRecord]) -> TimelineReply {
        let changes = changes.into_iter().map(|change| (change, every)).collect();
        let seen = Seen { since: at(50), forgetful: false, changes };
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
    fn a_command_explains_a_change_that_was_seen_a_long_time_after_it() {
        let paused = || vec![seen(ChangeKind::Paused, 100, None)];
        let every = Duration::from_secs(30);
        let kinds = |line: &TimelineReply| line.entries.iter().map(|entry| entry.kind).collect::<Vec<_>>();
        let line = sampled_every(every, paused(), &[record("pause", 71)]);
        assert_eq!((line.entries[0].by.as_deref(), kinds(&line)), (Some("ann"), vec![ChangeKind::Paused]));
        let line = of(paused(), &[record("pause", 71)]);
        assert_eq!(
            kinds(&line),
            [ChangeKind::Paused, ChangeKind::Paused],
            "another pause, which was not seen"
        );
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
