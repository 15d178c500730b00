//! Spans: one for each request, and one below it for each call of the store. No span has a name of a resource, an owner or a token.
//!
//! They cost next to nothing unless something collects them: the log of `-vv`, or [traces](crate::Traces) with the feature `otel`.

use hyper::http::request::Parts;
use leasehold_core::Verb;
use tracing::{Span, field::Empty};

/// The span of a request on this route.
pub(crate) fn request(head: &Parts, route: &str) -> Span {
    let span = tracing::debug_span!(
        target: "leasehold",
        "http.request",
        otel.kind = "server",
        otel.name = %format_args!("{} {route}", head.method),
        otel.status_code = Empty,
        http.request.method = head.method.as_str(),
        http.route = route,
        http.response.status_code = Empty,
        leasehold.problem = Empty,
    );
    #[cfg(feature = "otel")]
    crate::traces::continue_trace(&span, &head.headers);
    span
}

/// Says in the span of a request how it was answered.
pub(crate) fn answered(span: &Span, status: u16, problem: Option<&str>) {
    // OpenTelemetry has signed numbers only; others become text.
    span.record("http.response.status_code", i64::from(status));
    if let Some(problem) = problem {
        span.record("leasehold.problem", problem);
    }
    if status >= 500 {
        span.record("otel.status_code", "ERROR");
    }
}

/// The span of a call of the store.
pub(crate) fn store_call(verb: Verb, backend: &'static str) -> Span {
    // The name of a span must be a constant, so there is one for each verb.
    macro_rules! span {
        ($name:literal) => {
            tracing::debug_span!(target: "leasehold", $name, otel.kind = "client", verb = verb.as_str(), backend)
        };
    }
    match verb {
        Verb::Acquire => span!("store.acquire"),
        Verb::Renew => span!("store.renew"),
        Verb::Release => span!("store.release"),
        Verb::Wait => span!("store.wait"),
        Verb::Inspect => span!("store.inspect"),
        Verb::Order => span!("store.order"),
        _ => span!("store.call"),
    }
}
