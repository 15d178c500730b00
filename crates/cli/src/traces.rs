//! Traces of `leasehold serve` for an OpenTelemetry collector, in a build with the feature `otel`.

use tracing_subscriber::{Layer, Registry};

use crate::{args::Command, exit::Failure};

/// The layer that collects spans, if this is a server and the environment names a collector.
#[cfg(not(feature = "otel"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
pub(crate) fn layer(_: &Command) -> Result<Option<Box<dyn Layer<Registry> + Send + Sync>>, Failure> {
    Ok(None)
}

/// Sends what is left.
#[cfg(all(feature = "serve", not(feature = "otel")))]
pub(crate) fn end() {}

#[cfg(feature = "otel")]
pub(crate) use with_collector::{end, layer};

#[cfg(feature = "otel")]
mod with_collector {
    use std::sync::{Mutex, PoisonError};

    use leasehold_server::Traces;

    use super::{Command, Failure, Layer, Registry};

    static TRACES: Mutex<Option<Traces>> = Mutex::new(None);

    /// The layer that collects spans, if this is a server and the environment names a collector.
    pub(crate) fn layer(
        command: &Command,
    ) -> Result<Option<Box<dyn Layer<Registry> + Send + Sync>>, Failure> {
        if !matches!(command, Command::Serve(_)) {
            return Ok(None);
        }
        let traces = Traces::from_environment().map_err(|error| Failure::config(error.to_string()))?;
        let layer = traces.as_ref().map(|traces| traces.layer::<Registry>().boxed());
        *TRACES.lock().unwrap_or_else(PoisonError::into_inner) = traces;
        Ok(layer)
    }

    /// Sends what is left.
    pub(crate) fn end() {
        if let Some(traces) = TRACES.lock().unwrap_or_else(PoisonError::into_inner).take() {
            traces.end();
        }
    }
}
