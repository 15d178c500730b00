//! What is wrong or worth knowing about the store, and what to do about it.

use std::time::Duration;

use leasehold_api::store::{CallsBody, FindingBody, NodeBody, Severity, StoreState};
use leasehold_core::{BackendInfo, Guarantee};
use leasehold_support::text::span;

use crate::store_health::Health;

/// Clocks that differ by more are a finding.
const CLOCKS_DIFFER_MS: f64 = 500.0;
/// A call that takes longer is slow.
const SLOW_MS: f64 = 1000.0;
/// From so few calls nothing is concluded.
const CALLS_MIN: u64 = 100;
/// One call in so many may fail.
const FAILURES_ONE_IN: u64 = 100;

/// What is known about the store and this server.
pub(crate) struct Facts<'a> {
    pub(crate) info: &'a BackendInfo,
    pub(crate) health: &'a Health,
    /// The servers, with the names that the caller may see.
    pub(crate) nodes: &'a [NodeBody],
    pub(crate) calls: &'a [CallsBody],
    /// The kind of error with which the newest sample failed.
    pub(crate) failing: Option<&'a str>,
    /// The time between two samples, and what the server was told.
    pub(crate) every: (Duration, Duration),
    pub(crate) truncated: bool,
    pub(crate) leases_end_with_server: bool,
    /// What has changed on disk and cannot be read.
    pub(crate) bad_files: Vec<&'static str>,
}

/// All findings, the worst first.
pub(crate) fn findings(facts: &Facts<'_>) -> Vec<FindingBody> {
    let mut all = of_samples(facts);
    all.extend(of_nodes(facts));
    all.extend(of_quorum(facts));
    all.extend(facts.calls.iter().flat_map(of_calls));
    all.extend(of_this_server(facts));
    all.extend(of_level(facts.info));
    all.sort_by_key(|finding| finding.severity);
    all
}

fn finding(
    severity: Severity,
    title: impl Into<String>,
    detail: impl Into<String>,
    fix: &str,
) -> FindingBody {
    FindingBody { severity, title: title.into(), detail: detail.into(), fix: fix.to_owned() }
}

fn of_samples(facts: &Facts<'_>) -> Vec<FindingBody> {
    let mut found = Vec::new();
    if let Some(kind) = facts.failing {
        found.push(finding(
            Severity::Critical,
            "The store could not be read",
            format!(
                "The newest sample of all resources failed ({kind}). The page shows the previous sample."
            ),
            "See the log of this server for the error, and check the store and the network between.",
        ));
    }
    if facts.health.failed.is_some() {
        found.push(finding(
            Severity::Warning,
            "The servers of the store could not be asked",
            "Whether they answer, and what their clocks say, is not known.",
            "See the log of this server, and check the network to each of them.",
        ));
    }
    let (every, told) = facts.every;
    if every > told && facts.failing.is_none() {
        found.push(finding(
            Severity::Info,
            "Sampling is slow",
            format!(
                "This server takes a sample every {}, not every {}, so that sampling takes a tenth of the time at most.",
                span(every),
                span(told)
            ),
            "No action is needed if the store is large. Otherwise find out why listing is slow.",
        ));
    }
    if facts.truncated {
        found.push(finding(
            Severity::Warning,
            "The store has more than 200,000 resources; only the first are shown",
            "The first in the order of their keys. All numbers are about these.",
            "List the others with `leasehold ls`, with a prefix.",
        ));
    }
    found
}

fn of_nodes(facts: &Facts<'_>) -> Vec<FindingBody> {
    let mut found = Vec::new();
    for node in facts.nodes {
        if !node.counts && !node.stands_by {
            let severity = match facts.health.state {
                StoreState::Down => Severity::Critical,
                _ => Severity::Warning,
            };
            let why = node.why.as_deref().unwrap_or("it does not answer, or has no vote");
            let title = format!("{} is down or has no vote", node.name);
            found.push(finding(
                severity,
                title,
                format!("{why}."),
                "Bring it back: docs/production.md of leasehold has the steps for each store.",
            ));
        }
        if let Some(ahead) = node.clock_ahead_ms.filter(|ahead| ahead.abs() > CLOCKS_DIFFER_MS) {
            let span = span(Duration::from_secs_f64(ahead.abs() / 1000.0));
            let direction = if ahead > 0.0 { "ahead of" } else { "behind" };
            found.push(finding(
                Severity::Warning,
                format!("The clock of {} differs", node.name),
                format!("It is {span} {direction} that of this server. Leases are counted in durations; but a clock that is set, or runs at another speed, ends leases early or late."),
                "Run NTP (chrony) on all machines, and let it slew instead of step.",
            ));
        }
    }
    found
}

fn of_quorum(facts: &Facts<'_>) -> Vec<FindingBody> {
    let Some(quorum) = facts.health.quorum else { return Vec::new() };
    let counted =
        format!("{} of {} servers are up, and {} are needed.", quorum.up, quorum.nodes, quorum.needed);
    let one = match quorum.margin {
        ..0 => finding(
            Severity::Critical,
            "There is no majority",
            format!("{counted} Nothing is granted or renewed: leases run out."),
            "Bring back servers until a majority is up.",
        ),
        0 => finding(
            Severity::Warning,
            "If one more server fails, nothing is granted",
            format!("{counted} With one less, nothing is granted or renewed."),
            "Bring back the servers that are down.",
        ),
        _ => return Vec::new(),
    };
    vec![one]
}

fn of_calls(calls: &CallsBody) -> Vec<FindingBody> {
    let CallsBody { verb, count, errors, p99_ms, .. } = calls;
    let mut found = Vec::new();
    if *count < CALLS_MIN {
        return found;
    }
    // A wait lasts as long as its caller wants.
    if let Some(p99) = p99_ms.filter(|p99| *p99 > SLOW_MS && verb != "wait") {
        found.push(finding(
            Severity::Warning,
            format!("`{verb}` is slow"),
            format!("One call in a hundred takes {} or longer. A renewal that takes longer than a third of the ttl loses the lease.", span(Duration::from_secs_f64(p99 / 1000.0))),
            "Check the load of the store and the network, or use longer ttls.",
        ));
    }
    if errors.saturating_mul(FAILURES_ONE_IN) > *count {
        found.push(finding(
            Severity::Warning,
            format!("`{verb}` fails often"),
            format!("{errors} of {count} calls since the start of this server failed, or were not answered in time."),
            "See the log of this server for the errors.",
        ));
    }
    found
}

fn of_this_server(facts: &Facts<'_>) -> Vec<FindingBody> {
    let mut found = Vec::new();
    if facts.leases_end_with_server {
        found.push(finding(
            Severity::Warning,
            "Leases end with this server",
            "On this store a lease lives with the session of the process that took it, which is this server.",
            "Run it alone, and let clients that must survive it use another store.",
        ));
    }
    for file in &facts.bad_files {
        found.push(finding(
            Severity::Warning,
            format!("The {file} file of this server cannot be used"),
            "It has changed, and what was read before stays in force.",
            "See the log of this server for what is wrong in it, and correct it.",
        ));
    }
    found
}

fn of_level(info: &BackendInfo) -> Option<FindingBody> {
    (info.guarantee == Guarantee::BestEffort).then(|| {
        finding(
            Severity::Info,
            "Two holders are possible on this store",
            format!("Its level is best-effort: {}. A token can become smaller when {}.", info.because, info.tokens_break_when),
            "Check the fencing token where the work is written (docs/fencing.md), or choose a store with a higher level.",
        )
    })
}

#[cfg(test)]
mod tests {
    use leasehold_api::store::QuorumBody;

    use super::*;

    fn health(state: StoreState, quorum: Option<QuorumBody>) -> Health {
        Health { state, sentence: String::new(), nodes: None, quorum, failed: None }
    }

    fn facts<'a>(info: &'a BackendInfo, health: &'a Health) -> Facts<'a> {
        let every = Duration::from_secs(2);
        Facts {
            info,
            health,
            nodes: &[],
            calls: &[],
            failing: None,
            every: (every, every),
            truncated: false,
            leases_end_with_server: false,
            bad_files: Vec::new(),
        }
    }

    fn told(facts: &Facts<'_>) -> Vec<(Severity, String)> {
        findings(facts).into_iter().map(|finding| (finding.severity, finding.title)).collect()
    }

    #[test]
    fn a_store_that_is_well_has_no_findings() {
        let info = BackendInfo::new("postgres", Guarantee::Database);
        assert_eq!(told(&facts(&info, &health(StoreState::Healthy, None))), []);
        let info = BackendInfo::new("redis", Guarantee::BestEffort);
        let found = told(&facts(&info, &health(StoreState::Healthy, None)));
        assert_eq!(found, [(Severity::Info, "Two holders are possible on this store".to_owned())]);
    }

    #[test]
    fn dead_servers_and_wrong_clocks_are_told_the_worst_first() {
        let info = BackendInfo::new("redlock", Guarantee::Quorum);
        let node = |name: &str, counts, ahead| NodeBody {
            name: name.to_owned(),
            counts,
            stands_by: false,
            why: None,
            round_trip_ms: None,
            clock_ahead_ms: ahead,
        };
        let nodes = [node("a", false, None), node("b", true, Some(-2500.0)), node("c", true, Some(400.0))];
        let degraded = health(StoreState::Degraded, Some(QuorumBody::of(3, 2)));
        let found = findings(&Facts { nodes: &nodes, ..facts(&info, &degraded) });
        let titles: Vec<_> = found.iter().map(|finding| finding.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "a is down or has no vote",
                "The clock of b differs",
                "If one more server fails, nothing is granted"
            ]
        );
        assert!(found[1].detail.contains("2.5s behind"), "{}", found[1].detail);
        let down = health(StoreState::Down, Some(QuorumBody::of(3, 1)));
        let found = told(&Facts { nodes: &nodes[..1], truncated: true, ..facts(&info, &down) });
        assert_eq!(found[0], (Severity::Critical, "a is down or has no vote".to_owned()));
        assert_eq!(found[1], (Severity::Critical, "There is no majority".to_owned()));
        assert_eq!(found[2].0, Severity::Warning);
    }

    #[test]
    fn slow_and_failing_calls_are_told_once_there_are_enough() {
        let info = BackendInfo::new("postgres", Guarantee::Database);
        let calls = |verb: &str, count, errors, p99| CallsBody {
            verb: verb.to_owned(),
            count,
            errors,
            p50_ms: Some(1.0),
            p99_ms: Some(p99),
        };
        let all = [
            calls("renew", 1000, 0, 1500.0),
            calls("wait", 1000, 0, 20_000.0),
            calls("acquire", 99, 99, 9000.0),
            calls("release", 1000, 11, 5.0),
        ];
        let healthy = health(StoreState::Healthy, None);
        let found = told(&Facts { calls: &all, ..facts(&info, &healthy) });
        let titles: Vec<_> = found.iter().map(|(_, title)| title.as_str()).collect();
        assert_eq!(titles, ["`renew` is slow", "`release` fails often"]);
    }
}
