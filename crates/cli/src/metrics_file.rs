//! Metrics in a file, in Prometheus's text format: for a node exporter, since a command has no port to scrape.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::exit::Failure;

/// Where metrics are kept.
pub(crate) struct MetricsFile {
    path: PathBuf,
    metrics: PrometheusHandle,
}

impl MetricsFile {
    /// Counts from now on. The file is written once at the beginning, so that a wrong name is found out at once.
    pub(crate) fn start(path: &Path) -> Result<MetricsFile, Failure> {
        let failed = |what: String| Failure::config(what).hint("name another file with --metrics-file");
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Prefix("leasehold_".to_owned()), &BUCKETS)
            .map_err(|error| Failure::internal(error.to_string()))?
            .build_recorder();
        let file = MetricsFile { path: path.to_owned(), metrics: recorder.handle() };
        metrics::set_global_recorder(recorder).map_err(|error| Failure::internal(error.to_string()))?;
        file.write().map_err(|error| failed(format!("{}: cannot be written: {error}", path.display())))?;
        Ok(file)
    }

    /// Puts a new file in the place of the old one: a reader sees the one or the other, whole.
    pub(crate) fn write(&self) -> io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(format!(".{}", std::process::id())); // not .prom: a node exporter leaves it alone
        fs::write(&beside, self.metrics.render())?;
        fs::rename(&beside, &self.path).inspect_err(|_| drop(fs::remove_file(&beside)))
    }
}

const BUCKETS: [f64; 8] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];
