//! Metrics of the server, in the text format of Prometheus.
//!
//! All names are there from the start, with zeros: so a panel shows 0, and `increase()` sees the first one. No label has a name of a
//! resource, an owner or a subject.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_api::{ProblemKind, store::CallsBody};
use leasehold_core::Verb;

/// The upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
const VERBS: [Verb; 6] = [Verb::Acquire, Verb::Renew, Verb::Release, Verb::Wait, Verb::Inspect, Verb::Order];

/// What the server has counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    requests: BTreeMap<(&'static str, u16), u64>,
    seconds: BTreeMap<&'static str, Histogram>,
    problems: BTreeMap<&'static str, u64>,
    connections_refused: u64,
    store: BTreeMap<&'static str, Histogram>,
    store_failed: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Histogram {
    /// One for each bucket, and one for what is above all of them.
    counts: [u64; BUCKETS.len() + 1],
    sum: f64,
}

impl Histogram {
    fn record(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.counts[bucket] += 1;
        self.sum += seconds;
    }

    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// This part of all took at most so many milliseconds: estimated within a bucket, as Prometheus does. `None` if there are none.
    fn quantile_ms(&self, part: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let as_number = |count: u64| count as f64;
        let wanted = as_number(self.total()) * part;
        let (mut below, mut lower) = (0.0, 0.0);
        for (count, upper) in self.counts.iter().zip(BUCKETS) {
            let count = as_number(*count);
            if count > 0.0 && below + count >= wanted {
                return Some(1000.0 * (lower + (upper - lower) * (wanted - below) / count));
            }
            (below, lower) = (below + count, upper);
        }
        (self.total() > 0).then_some(1000.0 * lower)
    }

    fn write(&self, text: &mut String, name: &str, label: &str) {
        let mut total = 0;
        for (count, bound) in self
            .counts
            .iter()
            .zip(BUCKETS.map(|bound| bound.to_string()).into_iter().chain(["+Inf".to_owned()]))
        {
            total += count;
            let _ = writeln!(text, "{name}_bucket{{{label},le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(text, "{name}_sum{{{label}}} {}\n{name}_count{{{label}}} {total}", self.sum);
    }
}

/// What is not counted, but measured when metrics are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauges {
    pub(crate) waiting: usize,
    pub(crate) connections: usize,
    pub(crate) draining: bool,
    /// What has changed on disk and cannot be read.
    pub(crate) bad_files: [(&'static str, bool); 2],
}

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request was answered. `problem` is the kind of its problem document.
    pub(crate) fn answered(&self, route: &'static str, status: u16, problem: Option<&str>, took: Duration) {
        let mut counts = self.counts();
        *counts.requests.entry((route, status)).or_default() += 1;
        counts.seconds.entry(route).or_default().record(took);
        if let Some(kind) = problem {
            counts.refused(kind);
        }
    }

    /// An entry of a list was refused.
    pub(crate) fn refused(&self, kind: &str) {
        self.counts().refused(kind);
    }

    /// A connection was closed at once, because there are too many.
    pub(crate) fn connection_refused(&self) {
        self.counts().connections_refused += 1;
    }

    /// A call of the store was answered, or given up.
    pub(crate) fn called(&self, verb: Verb, took: Duration, failed: bool) {
        let mut counts = self.counts();
        counts.store.entry(verb.as_str()).or_default().record(took);
        if failed {
            *counts.store_failed.entry(verb.as_str()).or_default() += 1;
        }
    }

    /// The calls of the store since the start, by verb.
    pub(crate) fn store_calls(&self) -> Vec<CallsBody> {
        let counts = self.counts();
        let of = |verb: Verb| {
            let histogram = counts.store.get(verb.as_str()).copied().unwrap_or_default();
            CallsBody {
                verb: verb.as_str().to_owned(),
                count: histogram.total(),
                errors: counts.store_failed.get(verb.as_str()).copied().unwrap_or(0),
                p50_ms: histogram.quantile_ms(0.5),
                p99_ms: histogram.quantile_ms(0.99),
            }
        };
        VERBS.map(of).to_vec()
    }

    /// The text of `/metrics`, with these routes.
    pub(crate) fn render(&self, routes: &[&'static str], gauges: Gauges) -> String {
        let counts = self.counts();
        let mut text = String::new();
        counts.write_requests(&mut text, routes);
        counts.write_connections(&mut text);
        counts.write_store_calls(&mut text);
        for (name, help, value) in [
            ("leasehold_http_waiting", "Claims that wait in open requests.", gauges.waiting),
            ("leasehold_http_connections", "Open connections.", gauges.connections),
            ("leasehold_http_draining", "1 while the server drains.", usize::from(gauges.draining)),
        ] {
            write_head(&mut text, name, "gauge", help);
            let _ = writeln!(text, "{name} {value}");
        }
        let name = "leasehold_http_bad_file";
        let help = "1 while a file has changed and cannot be used: what was read before stays in force.";
        write_head(&mut text, name, "gauge", help);
        for (file, is_bad) in gauges.bad_files {
            let _ = writeln!(text, "{name}{{file=\"{file}\"}} {}", u8::from(is_bad));
        }
        text
    }
}

fn write_head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

impl Counts {
    fn refused(&mut self, kind: &str) {
        if let Some(kind) = ProblemKind::named(kind) {
            *self.problems.entry(kind.as_str()).or_default() += 1;
        }
    }

    fn write_requests(&self, text: &mut String, routes: &[&'static str]) {
        let name = "leasehold_http_requests_total";
        write_head(text, name, "counter", "Requests, by route and status.");
        for route in routes.iter().filter(|route| !self.requests.keys().any(|(known, _)| known == *route)) {
            let _ = writeln!(text, "{name}{{route=\"{route}\",status=\"200\"}} 0");
        }
        for ((route, status), count) in &self.requests {
            let _ = writeln!(text, "{name}{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        let name = "leasehold_http_request_seconds";
        let help = "How long requests took, with the time that their claims waited.";
        write_head(text, name, "histogram", help);
        for route in routes {
            let histogram = self.seconds.get(route).copied().unwrap_or_default();
            histogram.write(text, name, &format!("route=\"{route}\""));
        }
        let name = "leasehold_http_refused_total";
        write_head(
            text,
            name,
            "counter",
            "Requests and entries of lists that were refused, by the kind of their problem.",
        );
        for kind in ProblemKind::ALL {
            let count = self.problems.get(kind.as_str()).copied().unwrap_or(0);
            let _ = writeln!(text, "{name}{{kind=\"{}\"}} {count}", kind.as_str());
        }
    }

    fn write_connections(&self, text: &mut String) {
        let name = "leasehold_http_connections_refused_total";
        write_head(
            text,
            name,
            "counter",
            "Connections that were closed at once, because there were too many.",
        );
        let _ = writeln!(text, "{name} {}", self.connections_refused);
    }

    fn write_store_calls(&self, text: &mut String) {
        let name = "leasehold_store_call_seconds";
        write_head(text, name, "histogram", "How long calls of the store took, by verb.");
        for verb in VERBS {
            let histogram = self.store.get(verb.as_str()).copied().unwrap_or_default();
            histogram.write(text, name, &format!("verb=\"{}\"", verb.as_str()));
        }
        let name = "leasehold_store_call_failures_total";
        let help = "Calls of the store that failed or were not answered in time, by verb.";
        write_head(text, name, "counter", help);
        for verb in VERBS {
            let count = self.store_failed.get(verb.as_str()).copied().unwrap_or(0);
            let _ = writeln!(text, "{name}{{verb=\"{}\"}} {count}", verb.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_estimated_within_their_bucket() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ms(0.5), None);
        (0..100).for_each(|_| histogram.record(Duration::from_millis(4)));
        assert_eq!(histogram.quantile_ms(0.5), Some(3.75), "the middle of 2.5 to 5 ms");
        (0..10).for_each(|_| histogram.record(Duration::from_secs(40)));
        assert_eq!(histogram.quantile_ms(0.99), Some(30_000.0), "above all buckets");
    }
}
