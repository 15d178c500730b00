//! What is counted, and how it reads in Prometheus's text format. A port, summaries and all else that an exporter offers
//! would be the largest part of what the program is built from, for a file.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};

/// Everything that was counted so far.
#[derive(Clone, Default)]
pub(crate) struct Registry(Arc<Mutex<Metrics>>);

#[derive(Default)]
struct Metrics {
    counters: Families<AtomicU64>,
    /// The bits of a float.
    gauges: Families<AtomicU64>,
    histograms: Families<Distribution>,
}

/// By name, and by labels as they are written.
type Families<T> = BTreeMap<String, BTreeMap<String, Arc<T>>>;

/// Upper bounds, in seconds; one more bucket has none.
const BOUNDS: [f64; 8] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// How many came up to each bound, and to none of them; and their sum.
#[derive(Default)]
struct Distribution(Mutex<([u64; BOUNDS.len() + 1], f64)>);

impl HistogramFn for Distribution {
    fn record(&self, value: f64) {
        let bucket = BOUNDS.iter().position(|bound| value <= *bound).unwrap_or(BOUNDS.len());
        let (counts, sum) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts[bucket] += 1;
        *sum += value;
    }
}

impl Registry {
    fn metrics(&self) -> MutexGuard<'_, Metrics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As Prometheus reads it.
    pub(crate) fn render(&self) -> String {
        let metrics = self.metrics();
        let mut text = String::new();
        render(&mut text, "counter", &metrics.counters, |name, labels, count| {
            format!("{name}{} {}\n", in_braces(labels), count.load(Ordering::Relaxed))
        });
        render(&mut text, "gauge", &metrics.gauges, |name, labels, bits| {
            format!("{name}{} {}\n", in_braces(labels), f64::from_bits(bits.load(Ordering::Relaxed)))
        });
        render(&mut text, "histogram", &metrics.histograms, Distribution::rendered);
        text
    }
}

fn render<T>(
    text: &mut String,
    kind: &str,
    families: &Families<T>,
    rendered: impl Fn(&str, &str, &T) -> String,
) {
    for (name, all) in families {
        text.push_str(&format!("# TYPE {name} {kind}\n"));
        all.iter().for_each(|(labels, metric)| text.push_str(&rendered(name, labels, metric)));
        text.push('\n');
    }
}

impl Distribution {
    fn rendered(name: &str, labels: &str, distribution: &Distribution) -> String {
        let (counts, sum) = *distribution.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let (mut text, mut up_to) = (String::new(), 0);
        let comma = if labels.is_empty() { "" } else { "," };
        for (bound, count) in bounds.zip(counts) {
            up_to += count;
            text.push_str(&format!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {up_to}\n"));
        }
        let labels = in_braces(labels);
        text.push_str(&format!("{name}_sum{labels} {sum}\n{name}_count{labels} {up_to}\n"));
        text
    }
}

fn in_braces(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

/// The metric of this key, which may be new.
fn of<T: Default>(families: &mut Families<T>, key: &Key) -> Arc<T> {
    let family = families.entry(key.name().to_owned()).or_default();
    Arc::clone(family.entry(written(key.labels())).or_default())
}

/// `kind="report",backend="redis"`
fn written<'a>(labels: impl Iterator<Item = &'a Label>) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels = labels.map(|label| format!("{}=\"{}\"", label.key(), escaped(label.value())));
    labels.collect::<Vec<_>>().join(",")
}

impl Recorder for Registry {
    // Nothing of ours is described here: docs/observing.md does that.
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(of(&mut self.metrics().counters, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(of(&mut self.metrics().gauges, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(of(&mut self.metrics().histograms, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_reads_as_prometheus_has_it() {
        let registry = Registry::default();
        metrics::with_local_recorder(&registry, || {
            metrics::counter!("b_total", "kind" => "a\\\"\n").increment(2);
            metrics::counter!("b_total", "kind" => "a\\\"\n").increment(1);
            metrics::counter!("b_total", "kind" => "z", "backend" => "redis").absolute(7);
            metrics::gauge!("a_held").set(2.0);
            metrics::gauge!("a_held").decrement(0.5);
            for seconds in [0.001, 0.002, 1.0, 60.0] {
                metrics::histogram!("c_seconds", "kind" => "x").record(seconds);
            }
            metrics::histogram!("d_seconds").record(0.25);
        });
        let text = registry.render();
        let expected = "# TYPE b_total counter\nb_total{kind=\"a\\\\\\\"\\n\"} 3\nb_total{kind=\"z\",backend=\"redis\"} 7\n\n\
            # TYPE a_held gauge\na_held 1.5\n\n\
            # TYPE c_seconds histogram\n\
            c_seconds_bucket{kind=\"x\",le=\"0.001\"} 1\nc_seconds_bucket{kind=\"x\",le=\"0.005\"} 2\n\
            c_seconds_bucket{kind=\"x\",le=\"0.01\"} 2\nc_seconds_bucket{kind=\"x\",le=\"0.05\"} 2\n\
            c_seconds_bucket{kind=\"x\",le=\"0.1\"} 2\nc_seconds_bucket{kind=\"x\",le=\"0.5\"} 2\n\
            c_seconds_bucket{kind=\"x\",le=\"1\"} 3\nc_seconds_bucket{kind=\"x\",le=\"5\"} 3\n\
            c_seconds_bucket{kind=\"x\",le=\"+Inf\"} 4\n\
            c_seconds_sum{kind=\"x\"} 61.003\nc_seconds_count{kind=\"x\"} 4\n\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains("d_seconds_bucket{le=\"0.5\"} 1\n") && text.ends_with("d_seconds_count 1\n\n"),
            "{text}"
        );
    }
}
