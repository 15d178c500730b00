//! Routes that are open to everyone, for every host.
//!
//! - `GET /healthz`: the process is alive.
//! - `GET /readyz`: it is started and does not drain. The store's outage does not make a server unready: then all servers would be,
//!   and a proxy would answer for them. It is in `info` and in every 503.
//! - `GET /openapi.json`: the same for all servers of this version.

use bytes::Bytes;
use hyper::http::request::Parts;
use leasehold_api::{JSON, routes};

use crate::{answer::Answer, server::Shared};

pub(crate) const PATHS: [&str; 3] = [routes::HEALTHZ, routes::READYZ, routes::OPENAPI];
pub(crate) const METHODS: [&str; 2] = ["GET", "HEAD"];

/// The answer, if it is one of these routes.
pub(crate) fn answer(shared: &Shared, head: &Parts) -> Option<Answer> {
    if !METHODS.contains(&head.method.as_str()) {
        return None;
    }
    match head.uri.path() {
        routes::READYZ if shared.is_draining() => Some(Answer::text(503, "draining\n")),
        routes::HEALTHZ | routes::READYZ => Some(Answer::text(200, "ok\n")),
        routes::OPENAPI => Some(Answer::text(200, Bytes::from_static(leasehold_api::OPENAPI)).of_type(JSON)),
        _ => None,
    }
}
