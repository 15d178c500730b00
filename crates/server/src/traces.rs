//! Traces for an OpenTelemetry collector: OTLP over plain HTTP, to a collector near by.
//!
//! The variables of OpenTelemetry say where and how much: `OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`),
//! `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_…`.
//!
//! Spans are sent from a thread of the exporter, in batches. A collector that is slow or gone delays no request.

use std::{
    env,
    io::{Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use bytes::Bytes;
use hyper::{HeaderMap, Request, Response};
use leasehold_core::{Error, ErrorKind, Result, async_trait};
use opentelemetry::{propagation::TextMapPropagator as _, trace::TracerProvider as _};
use opentelemetry_http::{HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// How long the collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends spans to a collector.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// To the collector that the environment names. `None` if it names none.
    ///
    /// # Errors
    /// `Invalid` if the endpoint cannot be used: it must begin with `http://`.
    pub fn from_environment() -> Result<Option<Traces>> {
        let endpoint = ENDPOINTS.into_iter().find_map(|name| Some((name, env::var(name).ok()?)));
        let Some((name, endpoint)) = endpoint.filter(|(_, endpoint)| !endpoint.is_empty()) else {
            return Ok(None);
        };
        if !endpoint.starts_with("http://") {
            let message = format!(
                "{name} is {endpoint:?}, and traces are sent over plain HTTP only: run a collector on this machine and write \
                 http://localhost:4318"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(PlainHttp)
            .with_protocol(Protocol::HttpBinary)
            .build()
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("{name}: {error}")))?;
        let mut resource = Resource::builder();
        if env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("leasehold");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Some(Traces { provider }))
    }

    /// The layer that collects the spans of leasehold.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let is_ours = |metadata: &tracing::Metadata<'_>| {
            metadata.is_span() && metadata.target().starts_with("leasehold")
        };
        let tracer = self.provider.tracer("leasehold");
        tracing_opentelemetry::layer()
            .with_tracer(tracer)
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(filter_fn(is_ours))
    }

    /// Sends what is left. Blocks for some seconds at most.
    pub fn end(self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// Makes the span a part of the trace that the header `traceparent` names.
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    if span.is_disabled() || !headers.contains_key("traceparent") {
        return;
    }
    let parent = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    let _ = span.set_parent(parent); // fails if nothing collects traces
}

/// One request on one connection. It is called from a thread of the exporter, so it may block.
#[derive(Debug)]
struct PlainHttp;

#[async_trait]
impl HttpClient for PlainHttp {
    async fn send_bytes(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, HttpError> {
        let uri = request.uri();
        let host = uri.host().ok_or("the endpoint has no host")?;
        let address = (host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80));
        let address = address.to_socket_addrs()?.next().ok_or("the host of the endpoint has no address")?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = uri.authority().map_or(host, |authority| authority.as_str());
        let mut head =
            format!("{} {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n", request.method());
        for (name, value) in request.headers() {
            head.push_str(&format!("{name}: {}\r\n", value.to_str()?));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", request.body().len()));
        stream.write_all(head.as_bytes())?;
        stream.write_all(request.body())?;
        // The status is all that matters.
        let mut answer = Vec::new();
        stream.take(4096).read_to_end(&mut answer)?;
        let line = String::from_utf8_lossy(&answer);
        let status: u16 = line.split(' ').nth(1).unwrap_or("").parse()?;
        Ok(Response::builder().status(status).body(Bytes::new())?)
    }
}
