//! Metrics, logs and spans: every name and field is there, and no secret is.
//!
//! One test, because a recorder and a subscriber are global.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex},
};

use common::{Fault, TestBed, seconds};
use leasehold::{Client, FencingToken, StaleTokenReport};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const COUNTERS: [&str; 8] = [
    "leasehold_acquire_total",
    "leasehold_release_total",
    "leasehold_extend_total",
    "leasehold_lost_total",
    "leasehold_stale_release_total",
    "leasehold_contention_total",
    "leasehold_acquire_retries_total",
    "leasehold_fencing_rejected_total",
];
const HISTOGRAMS: [&str; 4] = [
    "leasehold_acquire_seconds",
    "leasehold_wait_seconds",
    "leasehold_hold_seconds",
    "leasehold_renewal_margin_seconds",
];
const GAUGES: [&str; 3] = ["leasehold_held", "leasehold_waiting", "leasehold_leaked"];
const LABELS: [&str; 5] = ["kind", "backend", "outcome", "reason", "downstream"];

const ID: &str = "alice@example.org";

/// Causes every kind of event: granted, contended, renewed, failed, lost, stale, handed over. Returns the secrets that must
/// not be logged.
async fn cause_every_event(bed: &TestBed, client: &Client) -> Vec<String> {
    let lease = client.lease("user", ID).acquire().await.unwrap();
    let secret = lease.owner_token().reveal();
    let waiter = tokio::spawn(client.lease("user", ID).wait_forever().acquire());
    let other = tokio::spawn(bed.client().lease("user", ID).wait(seconds(2)).acquire());
    bed.advance(seconds(3)).await;
    assert!(other.await.unwrap().is_err());
    bed.advance(seconds(9)).await;
    lease.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    drop(next);
    let lost = client.lease("user", ID).acquire().await.unwrap();
    bed.probe.set_fault(Fault::Unavailable);
    assert!(client.lease("user", "x").try_acquire().await.is_err());
    bed.advance(seconds(31)).await;
    bed.probe.set_fault(Fault::None);
    lost.release().await.unwrap();
    let (low, high) = (FencingToken::new(3).unwrap(), FencingToken::new(4).unwrap());
    let resource = leasehold::Resource::new("user", ID).unwrap();
    let (presented, highest, downstream) = (low, high, "orders");
    client.report_stale_token(StaleTokenReport { resource: &resource, presented, highest, downstream });
    bed.settle().await;
    vec![secret]
}

/// A log can only be searched and summed by numbers with a unit.
fn assert_durations_are_numbers(text: &str) {
    let fields = [
        ("acquired", "waited_ms"),
        ("contended", "waited_ms"),
        ("failed", "waited_ms"),
        ("lost", "held_ms"),
        ("released", "held_ms"),
        ("renewed", "margin_ms"),
        ("renewal_failed", "left_ms"),
    ];
    for (event, field) in fields {
        let line = text.lines().find(|line| line.contains(&format!("event=\"{event}\""))).unwrap();
        let value =
            line.split_once(&format!("{field}=")).unwrap_or_else(|| panic!("{field} is not in {line}")).1;
        let value = value.split(' ').next().unwrap();
        assert!(value.parse::<u64>().is_ok(), "{field} is {value:?} in {line}");
    }
}

#[tokio::test]
async fn everything_is_counted_and_logged_without_ids_or_secrets() {
    let recorder = DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    recorder.install().unwrap();
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let bed = TestBed::new();
    let secrets = cause_every_event(&bed, &bed.client()).await;

    let mut values: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (key, unit, help, value) in snapshots.snapshot().into_vec() {
        let name = key.key().name().to_owned();
        let help = help.unwrap_or_else(|| panic!("{name} has no help"));
        assert!(help.ends_with('.') && help.len() > 20, "{name}: {help}");
        let unit_is_seconds = unit.unwrap_or_else(|| panic!("{name} has no unit")) == metrics::Unit::Seconds;
        assert_eq!(unit_is_seconds, name.ends_with("_seconds"), "the unit of {name}");
        names.insert(name);
        let labels: Vec<_> = key.key().labels().map(|l| (l.key().to_owned(), l.value().to_owned())).collect();
        for (label, value) in &labels {
            assert!(LABELS.contains(&label.as_str()), "{label} is not a bounded label");
            assert!(!value.contains("alice"), "an id in a label: {value}");
        }
        let number = match value {
            DebugValue::Counter(n) => n as f64,
            DebugValue::Gauge(n) => n.0,
            DebugValue::Histogram(all) => all.len() as f64,
        };
        let outcome = labels.into_iter().find(|(label, _)| label == "outcome" || label == "reason");
        values.entry(key.key().name().to_owned()).or_default().push((outcome.unwrap_or_default().1, number));
    }
    let expected: BTreeSet<_> =
        COUNTERS.iter().chain(&HISTOGRAMS).chain(&GAUGES).map(|n| (*n).to_owned()).collect();
    assert_eq!(names, expected);
    let count = |name: &str, outcome: &str| {
        values[name].iter().filter(|(o, _)| o == outcome || outcome.is_empty()).map(|(_, n)| n).sum::<f64>()
    };
    assert!(count("leasehold_acquire_total", "granted") >= 3.0);
    assert!(count("leasehold_acquire_total", "contended") >= 1.0);
    assert!(count("leasehold_acquire_total", "failed") >= 1.0);
    assert!(
        count("leasehold_extend_total", "extended") >= 1.0
            && count("leasehold_extend_total", "failed") >= 1.0
    );
    assert_eq!(count("leasehold_lost_total", "expired"), 1.0);
    assert_eq!(count("leasehold_stale_release_total", ""), 1.0);
    assert_eq!(count("leasehold_fencing_rejected_total", ""), 1.0);
    for gauge in GAUGES {
        assert_eq!(count(gauge, ""), 0.0, "{gauge} returns to 0");
    }
    for histogram in HISTOGRAMS {
        assert!(count(histogram, "") >= 1.0, "{histogram}");
    }

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for field in ["event=", "kind=", "id_hash=", "owner_prefix=", "token=", "ttl_ms=", "backend="] {
        assert!(text.contains(field), "{field} is missing from the log");
    }
    for event in ["acquired", "lost", "renewal_failed", "released", "contended", "stale_token_refused"] {
        assert!(text.contains(&format!("event=\"{event}\"")), "{event} is missing from the log");
    }
    for span in ["leasehold.acquire{", "leasehold.renew{", "leasehold.release{", "leasehold.wait{"] {
        assert!(text.contains(span), "there is no span {span}");
    }
    assert_durations_are_numbers(&text);
    assert!(
        !text.contains("alice"),
        "an id in the log: {}",
        text.lines().find(|l| l.contains("alice")).unwrap()
    );
    for secret in secrets {
        assert!(!text.contains(&secret), "a whole owner token in the log");
    }
}
