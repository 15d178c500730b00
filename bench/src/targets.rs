//! What leasehold wants to reach.

use crate::{
    figures::{heading, less_is_better, ratio, ratio_text, short, speed, summary},
    peers::{BARE, LEASEHOLD},
    results::{Results, Table},
    works::{WORKS, Work, work_named},
};

/// A target and how close the run came.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What is compared.
    pub name: String,
    /// What was measured; `None` if one of the sides was not run.
    pub measured: Option<String>,
    /// What is wanted.
    pub wanted: String,
    /// Whether the target was met. False if it was not measured.
    pub met: bool,
}

enum Rule {
    /// The speed of leasehold, with the peer as 1, in the main figure of the work.
    Speed(&'static str, f64),
    /// As [`Rule::Speed`], for each peer that was not named before.
    SpeedToOthers(&'static [&'static str], f64),
    /// The amount of a figure, with the peer as 1.
    Amount(&'static str, &'static str, f64),
    /// A figure of leasehold itself.
    Value(&'static str, f64),
}

const FENCED: &str = "Redisson RFencedLock";
const RSLOCK: &str = "rslock";

/// The targets by work.
const TARGETS: &[(&str, Rule)] = &[
    ("redis-pair-1", Rule::Amount("p50_us", BARE, 1.2)),
    ("redis-pair-1", Rule::Speed(RSLOCK, 0.8)),
    ("redis-pair-1", Rule::Speed(FENCED, 5.0)),
    ("redis-pair-1", Rule::SpeedToOthers(&[BARE, RSLOCK, FENCED], 1.0)),
    ("redis-pair-64", Rule::Speed(BARE, 0.95)),
    ("redis-pair-64", Rule::Amount("server_cpu_us", BARE, 1.5)),
    ("redis-pair-64", Rule::Speed(RSLOCK, 0.8)),
    ("redis-pair-64", Rule::Speed(FENCED, 5.0)),
    ("redis-pair-64", Rule::SpeedToOthers(&[BARE, RSLOCK, FENCED], 1.0)),
    ("redis-handover-16-0ms", Rule::SpeedToOthers(&[], 1.0)),
    ("redis-handover-16-1ms", Rule::SpeedToOthers(&[], 1.0)),
    ("redis-handover-4x4-0ms", Rule::Value("changes_per_second", 9200.0)),
    ("redis-handover-4x4-0ms", Rule::SpeedToOthers(&[], 1.0)),
    ("redis-handover-4x4-1ms", Rule::SpeedToOthers(&[], 1.0)),
    ("redis-fair-10", Rule::Value("commands", 20.0)),
    ("redis-fair-1000", Rule::Value("commands", 20.0)),
    ("redis-fair-5000", Rule::Value("commands", 20.0)),
    ("redis-keep-100000", Rule::Value("client_core_percent", 3.0)),
    ("redlock-up-1", Rule::Speed(RSLOCK, 0.9)),
    ("redlock-up-64", Rule::Speed(RSLOCK, 0.9)),
    ("redlock-down-1", Rule::SpeedToOthers(&[], 1.0)),
    ("redlock-down-64", Rule::SpeedToOthers(&[], 1.0)),
    ("redlock-slow-1", Rule::SpeedToOthers(&[], 1.0)),
    ("redlock-slow-64", Rule::SpeedToOthers(&[], 1.0)),
    ("postgres-pair-64", Rule::Speed("ShedLock-like statement", 2.0)),
    ("postgres-handover-16-0ms", Rule::SpeedToOthers(&[], 1.0)),
    ("postgres-handover-4x4-0ms", Rule::SpeedToOthers(&[], 1.0)),
    ("postgres-handover-4x4-1ms", Rule::SpeedToOthers(&[], 1.0)),
    ("etcd-pair-1", Rule::SpeedToOthers(&[], 1.0)),
    ("etcd-pair-64", Rule::SpeedToOthers(&[], 1.0)),
    ("zookeeper-pair-1", Rule::SpeedToOthers(&[], 1.0)),
    ("zookeeper-pair-64", Rule::SpeedToOthers(&[], 1.0)),
    ("zookeeper-handover-16-0ms", Rule::SpeedToOthers(&[], 1.0)),
    ("zookeeper-handover-16-1ms", Rule::SpeedToOthers(&[], 1.0)),
    ("zookeeper-handover-4x4-0ms", Rule::SpeedToOthers(&[], 1.0)),
    ("zookeeper-handover-4x4-1ms", Rule::SpeedToOthers(&[], 1.0)),
    ("shell-file", Rule::Amount("p50_us", "flock", 2.0)),
];

/// The outcome of every target of the works that were measured.
pub fn outcomes(results: &Results) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (name, rule) in TARGETS {
        let (Some(table), Some(work)) = (results.table(name), work_named(name)) else { continue };
        match rule {
            Rule::Speed(peer, least) => outcomes.push(speed_to(work, table, peer, *least)),
            Rule::SpeedToOthers(named, least) => {
                let others = work.peers.iter().map(|peer| peer.name);
                let others = others.filter(|peer| !peer.starts_with(LEASEHOLD) && !named.contains(peer));
                outcomes.extend(others.map(|peer| speed_to(work, table, peer, *least)));
            }
            Rule::Amount(figure, peer, most) => outcomes.push(amount_of(work, table, (figure, peer), *most)),
            Rule::Value(figure, limit) => outcomes.push(value_of(work, table, figure, *limit)),
        }
    }
    outcomes
}

fn speed_to(work: &Work, table: &Table, peer: &str, least: f64) -> Outcome {
    let measured =
        table.ours().zip(table.row(peer)).and_then(|(ours, theirs)| speed(ours, theirs, work.main_figure()));
    Outcome {
        name: format!("{}: speed, {peer} = 1", work.name),
        measured: measured.map(ratio_text),
        wanted: format!("≥ {least}"),
        met: measured.is_some_and(|measured| measured >= least),
    }
}

fn amount_of(work: &Work, table: &Table, (figure, peer): (&str, &str), most: f64) -> Outcome {
    let measured = table.ours().zip(table.row(peer)).and_then(|(ours, theirs)| ratio(ours, theirs, figure));
    Outcome {
        name: format!("{}: {}, {peer} = 1", work.name, heading(figure)),
        measured: measured.map(ratio_text),
        wanted: format!("≤ {most}"),
        met: measured.is_some_and(|measured| measured <= most),
    }
}

fn value_of(work: &Work, table: &Table, figure: &str, limit: f64) -> Outcome {
    let measured = table.ours().and_then(|ours| summary(ours, figure)).map(|summary| summary.median);
    let less = less_is_better(figure);
    Outcome {
        name: format!("{}: {}", work.name, heading(figure)),
        measured: measured.map(short),
        wanted: format!("{} {}", if less { "≤" } else { "≥" }, short(limit)),
        met: measured.is_some_and(|measured| if less { measured <= limit } else { measured >= limit }),
    }
}

/// Whether every target names a work and peers that exist.
#[doc(hidden)]
pub fn unknown_names() -> Vec<String> {
    let known = |work: &str, peer: &str| {
        WORKS.iter().any(|other| other.name == work && other.peers.iter().any(|other| other.name == peer))
    };
    let names = TARGETS.iter().flat_map(|(work, rule)| {
        let peers: Vec<&str> = match rule {
            Rule::Speed(peer, _) | Rule::Amount(_, peer, _) => vec![peer],
            Rule::SpeedToOthers(named, _) => named.to_vec(),
            Rule::Value(..) => Vec::new(),
        };
        peers.into_iter().map(|peer| ((*work).to_owned(), peer.to_owned())).collect::<Vec<_>>()
    });
    names.filter(|(work, peer)| !known(work, peer)).map(|(work, peer)| format!("{work}: {peer}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn every_target_names_works_and_peers_that_exist() {
        assert_eq!(unknown_names(), Vec::<String>::new());
        assert!(TARGETS.iter().all(|(work, _)| work_named(work).is_some()));
    }

    #[test]
    fn targets_are_met_or_missed_or_not_measured() {
        let outcomes = outcomes(&sample());
        let outcome = |name: &str| outcomes.iter().find(|outcome| outcome.name == name).unwrap();
        let time = outcome("redis-pair-1: p50 µs, bare scripts = 1");
        assert_eq!((time.measured.as_deref(), time.met), (Some("1.25"), false));
        let cpu = outcome("redis-pair-64: server CPU µs, bare scripts = 1");
        assert_eq!((cpu.measured.as_deref(), cpu.met), (Some("1.25"), true));
        let other = outcome("redis-pair-1: speed, redsync = 1");
        assert_eq!((other.measured.clone(), other.met), (None, false));
        assert!(
            outcomes.iter().all(|outcome| outcome.name.starts_with("redis-pair")),
            "only what was measured"
        );
    }
}
