//! Metrics in a file, in the text format of Prometheus. A command has no port to scrape, so the textfile
//! collector of a node exporter reads the file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

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

/// The upper bounds of the histogram buckets, in seconds.
const BUCKETS: [f64; 8] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];
