//! Reading a request: its query and its body.

use std::{pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{HeaderMap, Uri, body::Body as HttpBody, header::CONTENT_TYPE};
use leasehold_api::{Problem, ProblemKind, bounds, list::Unreadable};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The bytes of a body that every request may have. What is more counts against [`ALL_BODIES`].
const SMALL_BODY: usize = 64 << 10;
/// The unit of that count.
const BLOCK: usize = 64 << 10;
/// How many blocks all bodies of a server may have at once: 128 MiB.
const ALL_BODIES: usize = (128 << 20) / BLOCK;

/// Bounds the memory for bodies: a thousand peers that each send most of a large one would take gigabytes.
#[derive(Debug)]
pub(crate) struct BodyMemory(Semaphore);

impl BodyMemory {
    pub(crate) fn new() -> BodyMemory {
        BodyMemory(Semaphore::new(ALL_BODIES))
    }
}

/// The body of a request, and its part of the memory for bodies.
#[derive(Default)]
pub(crate) struct Body<'a> {
    pub(crate) bytes: Bytes,
    _memory: Option<SemaphorePermit<'a>>,
}

/// The query of the URI.
pub(crate) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    let text = uri.query().unwrap_or("");
    serde_urlencoded::from_str(text)
        .map_err(|error| Problem::new(ProblemKind::Invalid, format!("the query: {error}")))
}

/// The body of the request, which must be JSON by its content type.
pub(crate) async fn read<'a, B>(
    headers: &HeaderMap,
    body: B,
    memory: &'a BodyMemory,
    at_most: Duration,
) -> Result<Body<'a>, Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    check_content_type(headers)?;
    if body.size_hint().lower() > bounds::BODY as u64 {
        return Err(too_large());
    }
    let read = tokio::time::timeout(at_most, collect(body, memory));
    read.await.unwrap_or_else(|_| {
        let detail = format!("the body did not arrive within {} s", at_most.as_secs());
        Err(Problem::new(ProblemKind::TooSlow, detail))
    })
}

async fn collect<B>(body: B, memory: &BodyMemory) -> Result<Body<'_>, Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let mut body = pin!(Limited::new(body, bounds::BODY));
    let (mut bytes, mut taken): (_, Option<SemaphorePermit<'_>>) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => too_large(),
            false => Problem::new(ProblemKind::Malformed, format!("the body was cut: {error}")),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        let large = (bytes.len() + data.len()).saturating_sub(SMALL_BODY).div_ceil(BLOCK);
        let missing = large - taken.as_ref().map_or(0, SemaphorePermit::num_permits);
        if missing > 0 {
            let more =
                u32::try_from(missing).ok().and_then(|missing| memory.0.try_acquire_many(missing).ok());
            let more = more.ok_or_else(too_many_large)?;
            match &mut taken {
                Some(taken) => taken.merge(more),
                None => taken = Some(more),
            }
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Body { bytes: bytes.freeze(), _memory: taken })
}

fn too_large() -> Problem {
    Problem::new(ProblemKind::TooLarge, format!("a body has at most {} bytes", bounds::BODY))
}

fn too_many_large() -> Problem {
    let mut problem = Problem::new(
        ProblemKind::Throttled,
        "the server is reading as many large bodies as it takes at once",
    );
    problem.retry_after_ms = Some(1000);
    problem
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

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[tokio::test]
    async fn large_bodies_share_what_memory_there_is_and_small_ones_need_none() {
        let memory = BodyMemory(Semaphore::new(3));
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, "application/json".parse().unwrap())]);
        let body = |blocks: usize| Full::new(Bytes::from(vec![b' '; blocks * BLOCK]));
        let read = async |blocks| read(&headers, body(blocks), &memory, Duration::from_secs(9)).await;
        let first = read(3).await.expect("two blocks above the small size");
        assert_eq!(first.bytes.len(), 3 * BLOCK);
        let refused = read(3).await.err().expect("one block is left");
        assert_eq!(refused.problem_kind(), ProblemKind::Throttled);
        assert!(read(1).await.is_ok(), "a small one");
        assert!(read(2).await.is_ok(), "one block");
        drop(first);
        assert!(read(3).await.is_ok(), "the memory is there again");
    }
}
