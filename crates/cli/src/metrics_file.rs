//! Metrics in a file, in Prometheus's text format: for a node exporter, since a command has no port to scrape.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{exit::Failure, registry::Registry};

/// Where metrics are kept.
pub(crate) struct MetricsFile {
    path: PathBuf,
    metrics: Registry,
}

impl MetricsFile {
    /// Counts from now on. The file is written once at the beginning, so that a wrong name is found out at once.
    pub(crate) fn start(path: &Path) -> Result<MetricsFile, Failure> {
        let failed = |what: String| Failure::config(what).hint("name another file with --metrics-file");
        let file = MetricsFile { path: path.to_owned(), metrics: Registry::default() };
        metrics::set_global_recorder(file.metrics.clone())
            .map_err(|error| Failure::internal(error.to_string()))?;
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
