use std::collections::HashSet;

use super::*;
use crate::LeaseRequest;

fn every_answer() -> impl Iterator<Item = Answers> {
    let bits = |n: u32, bit: u32| n >> bit & 1 == 1;
    let lasts = [Duration::from_secs(1), Duration::from_secs(3600), Duration::from_secs(90_000)];
    let words = Protects::ALL.into_iter().flat_map(|p| Overlap::ALL.map(|o| (p, o)));
    words.flat_map(move |(protects, overlap)| {
        lasts.into_iter().flat_map(move |lasts| {
            (0..1024).map(move |n| Answers {
                protects,
                overlap,
                duplicates: bits(n, 0),
                idempotent: bits(n, 1),
                fence: bits(n, 2),
                survive: bits(n, 3),
                lasts,
                split: bits(n, 4),
                conditional: bits(n, 5),
                consensus: bits(n, 6),
                redis_only: bits(n, 7),
                regions: bits(n, 8),
                audit: bits(n, 9),
            })
        })
    })
}

#[test]
fn every_row_fits_some_answers() {
    let used: HashSet<_> = every_answer().map(|answers| answers.advice().row.name).collect();
    for row in TABLE {
        assert!(used.contains(row.name), "{} fits no answers", row.name);
    }
}

/// Where an overlap does harm, a lease alone is never enough, whatever the other answers are.
#[test]
fn harm_is_never_left_to_a_lease_alone() {
    for answers in every_answer().filter(|answers| answers.overlap == Overlap::Harm) {
        let row = answers.advice().row;
        let fenced = row.role == Role::Fenced && row.least >= Guarantee::Database;
        assert!(
            (matches!(row.role, Role::PreGuard | Role::No) || fenced) && row.transaction,
            "{answers:?}: {}",
            row.name
        );
    }
}

/// A stricter answer never leads to a weaker backend or a weaker role.
#[test]
fn stricter_answers_never_weaken_the_advice() {
    let strength = |advice: &Advice| match advice.row.role {
        Role::Enough if advice.row.purpose == Purpose::Efficiency => 0,
        Role::Enough | Role::Fenced if !advice.row.transaction => 1,
        Role::Enough | Role::Fenced | Role::PreGuard | Role::No => 2,
    };
    for answers in every_answer() {
        let advice = answers.advice();
        for stricter in [
            Answers { overlap: Overlap::Damage.max(answers.overlap), ..answers },
            Answers { overlap: Overlap::Harm, ..answers },
            Answers { duplicates: false, ..answers },
            Answers { audit: true, ..answers },
            Answers { regions: true, ..answers },
        ] {
            assert!(strength(&stricter.advice()) >= strength(&advice), "{answers:?}\n{stricter:?}");
        }
        let surviving = Answers { survive: true, ..answers }.advice();
        assert!(surviving.least >= advice.least, "{answers:?}");
        assert!(surviving.row.role == Role::No || surviving.least >= Guarantee::Quorum, "{answers:?}");
        assert!(surviving.backends.iter().all(|one| one.survives), "{answers:?}");
    }
}

/// One host or one Redis server was advised for leases that must survive the failure of a server.
#[test]
fn the_example_names_a_backend_that_fits() {
    for answers in every_answer() {
        let advice = answers.advice();
        let snippet = advice.snippet();
        for backend in BACKENDS.iter().filter(|one| snippet.contains(one.url)) {
            assert_eq!(backend.scheme, advice.backends[0].scheme, "{answers:?}\n{snippet}");
        }
        if answers.survive {
            assert!(!snippet.contains("redis://") && !snippet.contains("sqlite:"), "{answers:?}\n{snippet}");
        }
        if answers.redis_only {
            assert!(advice.backends.iter().all(|one| one.scheme.starts_with("red")), "{answers:?}");
        } else {
            assert!(advice.row.role == Role::No || !advice.backends.is_empty(), "{answers:?}");
        }
        if advice.row.shares {
            assert!(advice.backends.iter().all(|one| one.scheme != "redlock"), "{answers:?}");
        }
    }
}

#[test]
fn a_strict_lease_without_a_fence_gets_a_backend_that_correctness_accepts() {
    for answers in every_answer() {
        let advice = answers.advice();
        if advice.row.role == Role::Enough && advice.row.purpose == Purpose::Correctness {
            assert!(advice.least >= Purpose::Correctness.least(), "{answers:?}");
        }
    }
}

#[test]
fn the_known_cases_are_classified() {
    let row = |name: &str| {
        let case = CASES.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case {name}"));
        (case.answers.advice().row.name, case.answers.duplicates)
    };
    let table = [
        ("cache-rebuild", "lease", true),
        ("index-refresh", "lease", true),
        ("nightly-cleanup", "singleton-job", true),
        ("tenant-exports", "semaphore", true),
        ("report-export", "fenced-job", false),
        ("reminder-email", "idempotent-effect", false),
        ("order-status", "conditional-update", false),
        ("onboarding-workflow", "workflow", false),
        ("third-party-call", "strict-lease", false),
        ("monthly-invoices", "transaction", false),
        ("payment-capture", "transaction", false),
        ("legal-assignment", "transaction", false),
        ("inventory", "transaction", false),
        ("ticketing", "transaction", false),
        ("auction-settlement", "transaction", false),
    ];
    for (name, expected, duplicates) in table {
        assert_eq!(row(name), (expected, duplicates), "{name}");
    }
}

#[test]
fn names_are_unique_and_every_row_has_an_example() {
    let names: HashSet<_> =
        TABLE.iter().map(|row| row.name).chain(CASES.iter().map(|case| case.name)).collect();
    assert_eq!(names.len(), TABLE.len() + CASES.len());
    for row in TABLE {
        let snippet = row.snippet();
        assert!(snippet.lines().count() >= 2 && !snippet.contains("```"), "{}: {snippet}", row.name);
        assert!(!row.still.is_empty() && row.because.ends_with('.'), "{}", row.name);
    }
}

#[test]
fn choices_have_the_names_of_the_variants() {
    let names = |name: &str| {
        let question = QUESTIONS.iter().find(|question| question.name == name);
        question.map(|question| question.choices.iter().map(|choice| choice.name).collect::<Vec<_>>())
    };
    assert_eq!(names("protects").unwrap(), Protects::ALL.map(Protects::as_str));
    assert_eq!(names("overlap").unwrap(), Overlap::ALL.map(Overlap::as_str));
    assert_eq!(QUESTIONS.len(), 13);
}

#[test]
fn a_ttl_is_the_sum_renewed_at_a_third_and_stopped_at_a_sixth() {
    let seconds = Duration::from_secs;
    let advice = ttl(seconds(24), seconds(5), seconds(1));
    assert_eq!((advice.ttl, advice.renew_every, advice.stop_below), (seconds(30), seconds(10), seconds(5)));
    assert!(advice.remarks.is_empty());
    assert_eq!(ttl(Duration::ZERO, Duration::ZERO, Duration::ZERO).ttl, <LeaseRequest>::TTL_MIN);
    assert_eq!(ttl(seconds(3600), Duration::ZERO, Duration::ZERO).renew_every, seconds(60));
    for long in [seconds(601), seconds(90_000), Duration::MAX] {
        let advice = ttl(long, seconds(5), seconds(1));
        assert!(advice.remarks[0].contains("durable job"), "{advice:?}");
        assert!(advice.ttl <= <LeaseRequest>::TTL_MAX);
    }
}

#[test]
fn the_percentile_is_by_nearest_rank() {
    let millis = |n| Duration::from_millis(n);
    assert_eq!(p999(&[]), None);
    assert_eq!(p999(&[millis(7)]), Some(millis(7)));
    let samples: Vec<_> = (1..=999).rev().map(millis).collect();
    assert_eq!(p999(&samples), Some(millis(999)));
    let samples: Vec<_> = (1..=10_000).map(millis).collect();
    assert_eq!(p999(&samples), Some(millis(9990)));
}

#[test]
fn backends_are_listed_from_a_level_up() {
    assert_eq!(backends(Guarantee::Database), "sqlite, postgres, etcd or zookeeper");
    assert_eq!(backends(Guarantee::Consensus), "etcd or zookeeper");
}
