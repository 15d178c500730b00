//! Metrics in a file, in the text format of Prometheus. A command has no port to scrape, so the textfile
//! collector of a node exporter reads the file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use metrics::{Key, Label, Level, Metadata};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::exit::Failure;

/// The recorder of the metrics, and the file that they are written to.
pub(crate) struct MetricsFile {
    path: PathBuf,
    metrics: PrometheusHandle,
}

impl MetricsFile {
    /// Starts to record. Writes the file at once, so that a wrong path is reported before the command runs.
    pub(crate) fn start(path: &Path) -> Result<MetricsFile, Failure> {
        let failed = |what: String| Failure::config(what).hint("name another file with --metrics-file");
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Prefix("leasehold_".to_owned()), &BUCKETS)
            .map_err(|error| Failure::internal(error.to_string()))?
            .build_recorder();
        let file = MetricsFile { path: path.to_owned(), metrics: recorder.handle() };
        metrics::set_global_recorder(recorder).map_err(|error| Failure::internal(error.to_string()))?;
        leasehold::describe_metrics();
        file.write().map_err(|error| {
            failed(format!("the metrics file {} cannot be written: {error}", path.display()))
        })?;
        Ok(file)
    }

    /// Replaces the file atomically: a reader sees the old or the new file, never a part.
    pub(crate) fn write(&self) -> io::Result<()> {
        let mut temporary = self.path.clone().into_os_string();
        // A node exporter reads only files whose name ends in .prom, so not this one.
        temporary.push(format!(".{}", std::process::id()));
        fs::write(&temporary, self.metrics.render())?;
        fs::rename(&temporary, &self.path).inspect_err(|_| drop(fs::remove_file(&temporary)))
    }
}

/// Adds the counters of a metrics file to those of this process: the file of an earlier process that did the same work, or of a
/// child process that has ended. Its gauges and histograms are not used.
pub(crate) fn add_counters(text: &str) {
    let mut counter = None;
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            counter = described.strip_suffix(" counter");
        } else if let Some(name) = counter
            && let Some((labels, value)) = line.strip_prefix(name).and_then(labels_and_value)
        {
            let key = Key::from_parts(name.to_owned(), labels);
            let metadata = Metadata::new(module_path!(), Level::INFO, None);
            metrics::with_recorder(|recorder| recorder.register_counter(&key, &metadata).increment(value));
        }
    }
}

/// Parses `{kind="x",backend="redis"} 5`.
fn labels_and_value(text: &str) -> Option<(Vec<Label>, u64)> {
    let Some(mut rest) = text.strip_prefix('{') else { return Some((Vec::new(), text.trim().parse().ok()?)) };
    let mut labels = Vec::new();
    while !rest.starts_with('}') {
        let (name, quoted) = rest.trim_start_matches(',').split_once("=\"")?;
        let (mut value, mut letters) = (String::new(), quoted.char_indices());
        let end = loop {
            match letters.next()? {
                (end, '"') => break end,
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, letter) => value.push(letter),
            }
        };
        labels.push(Label::new(name.to_owned(), value));
        rest = &quoted[end + 1..];
    }
    Some((labels, rest[1..].trim().parse().ok()?))
}

/// The upper bounds of the histogram buckets, in seconds.
const BUCKETS: [f64; 8] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_back_from_a_file() {
        assert_eq!(labels_and_value(" 7"), Some((vec![], 7)));
        let labels = vec![Label::new("kind", "x"), Label::new("job", "a\"b,c}\\\n")];
        assert_eq!(labels_and_value("{kind=\"x\",job=\"a\\\"b,c}\\\\\\n\"} 12"), Some((labels, 12)));
        for wrong in ["", "_bucket{le=\"1\"} 3", "{kind=\"x} 1", "{kind=\"x\"} many"] {
            assert_eq!(labels_and_value(wrong), None, "{wrong}");
        }
    }
}
