//! The response to a refused request: a problem as in RFC 9457.

use ::http::{HeaderValue, Response, StatusCode, header};
use leasehold_core::Error;

use crate::rule::Refusal;

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    name: &'static str,
    title: &'static str,
    detail: String,
    numbers: Vec<(&'static str, String)>,
}

impl Problem {
    fn new(
        status: StatusCode,
        name: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem { status, name, title, detail: detail.into(), numbers: Vec::new() }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad-pass", "The pass is invalid", detail)
    }

    pub(super) fn missing() -> Problem {
        let detail = "send the fencing token of your lease as Fencing-Token, and the hash of its owner as Fencing-Owner";
        Problem::new(StatusCode::PRECONDITION_REQUIRED, "no-pass", "A fencing token is required", detail)
    }

    pub(super) fn refused(refusal: Refusal) -> Problem {
        let detail = format!("{}; do not try again with this token", Error::from(refusal));
        let (presented, other) = match refusal {
            Refusal::Stale { presented, highest } => (presented, ("highest", highest)),
            Refusal::Former { presented, ceiling } => (presented, ("ceiling", ceiling)),
        };
        // As strings: some JSON readers have no numbers of 53 bits.
        let numbers = vec![("presented", presented.to_string()), (other.0, other.1.to_string())];
        let status = StatusCode::PRECONDITION_FAILED;
        Problem { numbers, ..Problem::new(status, "stale-token", "The fencing token is stale", detail) }
    }

    /// The cause goes only to the log, because it may name hosts and files.
    pub(super) fn unavailable(error: &Error) -> Problem {
        tracing::error!(target: "leasehold", kind = error.kind().as_str(), error = ?error, "the fence cannot read its marks, and refuses requests");
        let detail = "the fence cannot read its marks at the moment; nothing was done; try again later";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no-marks", "The fence is closed", detail)
    }

    pub(super) fn into_response<B: From<String>>(self) -> Response<B> {
        let mut body = serde_json::json!({
            "type": format!("urn:leasehold:problem:{}", self.name),
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        for (name, number) in self.numbers {
            body[name] = number.into();
        }
        let mut response = Response::new(B::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        // The next request may have a newer token: no cache may answer it with this response.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
