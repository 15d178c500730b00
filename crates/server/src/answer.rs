//! Writing an answer: a status, a body, and the headers that name the store.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Response, StatusCode, Version,
    header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use leasehold_api::{
    API_HEADER, DRAINING_HEADER, JSON, LEVEL_HEADER, PROBLEM_JSON, Problem, ProblemKind, REQUEST_HEADER,
    STORE_HEADER, VERSION, events::EVENT_STREAM, list::Entry,
};
use serde::Serialize;

use crate::{router::RequestSummary, server::Shared};

/// The body of a response: whole, or a stream.
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

fn whole(body: impl Into<Bytes>) -> ResponseBody {
    Full::new(body.into()).boxed_unsync()
}

/// An answer without the headers that all answers have.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Empty: there is no body.
    content_type: &'static str,
    body: ResponseBody,
    retry_after_s: Option<u64>,
    /// Headers of this answer alone: they replace those that all answers have.
    pub(crate) headers: HeaderMap,
    /// The methods that the route takes: the header `Allow`, which 405 must have.
    pub(crate) allow: Option<String>,
    /// The kind of problem, for metrics and the log.
    pub(crate) problem: Option<String>,
}

impl Answer {
    /// A reply with this status.
    pub(crate) fn json(status: u16, body: &impl Serialize) -> Answer {
        match serde_json::to_vec(body) {
            Ok(body) => Answer { content_type: JSON, ..Answer::text(status, body) },
            // A type of the API that cannot be written is a bug. The effect of the request is not known any more.
            Err(error) => Problem::new(ProblemKind::Internal, error.to_string())
                .with_effect(leasehold_core::Effect::Unknown)
                .into(),
        }
    }

    pub(crate) fn text(status: u16, body: impl Into<Bytes>) -> Answer {
        Answer {
            status,
            content_type: "text/plain; charset=utf-8",
            body: whole(body),
            retry_after_s: None,
            headers: HeaderMap::new(),
            allow: None,
            problem: None,
        }
    }

    /// An answer without a body.
    pub(crate) fn empty(status: u16) -> Answer {
        Answer::text(status, Bytes::new()).of_type("")
    }

    /// A stream of server-sent events.
    pub(crate) fn events(body: ResponseBody) -> Answer {
        Answer { body, ..Answer::text(200, Bytes::new()).of_type(EVENT_STREAM) }
    }

    /// Says when to ask again.
    #[must_use]
    pub(crate) fn retry_after(mut self, ms: u64) -> Answer {
        // Whole seconds, rounded up: a client that asks earlier asks in vain.
        self.retry_after_s = Some(ms.div_ceil(1000).max(1));
        self
    }

    #[must_use]
    pub(crate) fn of_type(mut self, content_type: &'static str) -> Answer {
        self.content_type = content_type;
        self
    }

    /// The response to this request.
    pub(crate) fn into_response(self, shared: &Shared, request: RequestSummary) -> Response<ResponseBody> {
        let mut response = Response::new(self.body);
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        if !self.content_type.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        headers.insert(API_HEADER, HeaderValue::from_static(VERSION));
        headers.insert(STORE_HEADER, shared.store_header.clone());
        headers.insert(LEVEL_HEADER, HeaderValue::from_static(shared.backend.info().guarantee.as_str()));
        if let Some(id) = request.id {
            headers.insert(REQUEST_HEADER, id);
        }
        if self.content_type == EVENT_STREAM {
            // A proxy that compresses, and nginx, would keep events back until a buffer is full.
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
            headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(methods) = self.allow.and_then(|methods| HeaderValue::from_str(&methods).ok()) {
            headers.insert(ALLOW, methods);
        }
        headers.extend(self.headers);
        if shared.is_draining() {
            headers.insert(DRAINING_HEADER, HeaderValue::from_static("true"));
            // HTTP/2 has no such header: there, GOAWAY ends the connection.
            if request.version != Version::HTTP_2 {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
        }
        response
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Answer {
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut answer = Answer::text(problem.status, body).of_type(PROBLEM_JSON);
        answer.problem = Some(problem.kind);
        match problem.retry_after_ms {
            Some(ms) => answer.retry_after(ms),
            None => answer,
        }
    }
}

impl<T: Serialize> From<Entry<T>> for Answer {
    fn from(entry: Entry<T>) -> Answer {
        match entry {
            Entry::Reply(status, reply) => Answer::json(status, &reply),
            Entry::Problem(problem) => (*problem).into(),
        }
    }
}

impl<T: Into<Answer>> From<Result<T, Problem>> for Answer {
    fn from(result: Result<T, Problem>) -> Answer {
        match result {
            Ok(reply) => reply.into(),
            Err(problem) => problem.into(),
        }
    }
}
