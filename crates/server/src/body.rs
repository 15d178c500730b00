//! Reading a request: its query and its body.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{HeaderMap, Uri, body::Body, header::CONTENT_TYPE};
use leasehold_api::{Problem, ProblemKind, bounds, list::Unreadable};
use serde::de::DeserializeOwned;

/// The query of the URI.
pub(crate) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    let text = uri.query().unwrap_or("");
    serde_urlencoded::from_str(text)
        .map_err(|error| Problem::new(ProblemKind::Invalid, format!("the query: {error}")))
}

/// The body of the request, which must be JSON by its content type.
pub(crate) async fn read<B>(headers: &HeaderMap, body: B, at_most: Duration) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes>,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    check_content_type(headers)?;
    let too_large =
        || Problem::new(ProblemKind::TooLarge, format!("a body has at most {} bytes", bounds::BODY));
    if body.size_hint().lower() > bounds::BODY as u64 {
        return Err(too_large());
    }
    let read = tokio::time::timeout(at_most, Limited::new(body, bounds::BODY).collect());
    match read.await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(Problem::new(ProblemKind::Malformed, format!("the body was cut: {error}"))),
        Err(_) => {
            let detail = format!("the body did not arrive within {} s", at_most.as_secs());
            Err(Problem::new(ProblemKind::TooSlow, detail))
        }
    }
}

/// Only JSON: a page of another site can send a form or plain text without asking the server first, but not this.
fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let name = given.split(';').next().unwrap_or("").trim();
    if name.eq_ignore_ascii_case(leasehold_api::JSON) {
        return Ok(());
    }
    Err(Problem::new(ProblemKind::NotJson, format!("the content type is {:?}", shortened(given))))
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The problem with a body that could not be read.
pub(crate) fn unreadable(error: &Unreadable) -> Problem {
    match error {
        Unreadable::Syntax(error) => {
            Problem::new(ProblemKind::Malformed, format!("the body is not JSON: {error}"))
        }
        Unreadable::Form(error) => Problem::new(ProblemKind::Invalid, error.to_string()),
    }
}
