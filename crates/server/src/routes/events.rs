//! `GET /v1/events`: changes of resources, as server-sent events.
//!
//! A stream keeps the number of the last change that it has sent, and reads the next ones from the sampler's history when its connection
//! can take them. So a slow reader costs no memory: if the history has passed it, it is told to read the overview again; if it
//! does not read at all, the write timeout ends its connection.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{HeaderMap, body::Frame};
use leasehold_api::{
    Problem,
    events::{DRAINING, LAST_EVENT_ID, RESYNC, ResyncBody, SAMPLED},
};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::Instant,
};

use crate::{
    access::{Caller, Waiters},
    answer::Answer,
    listener::drained,
    router::Call,
    routes,
    sampler::Next,
    server::Shared,
};

/// A comment keeps proxies from ending a silent stream, and finds out whether the reader is there.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
/// How long a reader waits before it connects again, in milliseconds.
const RETRY_MS: u32 = 2000;

pub(crate) fn answer(call: &Call<'_>, headers: &HeaderMap) -> Result<Answer, Problem> {
    routes::refuse_while_draining(call.shared)?;
    let permit = routes::stream_permit(call)?;
    let last_id = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
    let sampler = &call.shared.sampler;
    let samples = sampler.follow();
    sampler.ask();
    let (position, reason) = sampler.begin(last_id);
    let mut first = format!("retry: {RETRY_MS}\n\n");
    if let Some(reason) = reason {
        first.push_str(&resync(call.shared, &ResyncBody { reason, changes: None }, position));
    }
    let events = EventStream {
        shared: Arc::clone(call.shared),
        caller: call.caller.clone(),
        position,
        samples,
        told: None,
        sent_at: Instant::now(),
        first: Some(first),
        is_over: false,
        _permit: permit,
    };
    let chunks = stream::unfold(events, |mut events| async move {
        let chunk = events.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(chunk))), events))
    });
    Ok(Answer::events(StreamBody::new(chunks).boxed_unsync()))
}

fn resync(shared: &Shared, body: &ResyncBody, position: u64) -> String {
    let data = serde_json::to_string(body).unwrap_or_default();
    format!("id: {}\nevent: {RESYNC}\ndata: {data}\n\n", shared.sampler.id(position))
}

struct EventStream {
    shared: Arc<Shared>,
    caller: Caller,
    /// The number of the last change that was read.
    position: u64,
    /// Changes with every sample.
    samples: watch::Receiver<u64>,
    /// The sample that the reader was last told of.
    told: Option<u64>,
    sent_at: Instant,
    /// What is sent before anything else.
    first: Option<String>,
    is_over: bool,
    _permit: (OwnedSemaphorePermit, Option<Waiters>),
}

impl EventStream {
    /// The next text to send. `None` at the end of the stream.
    async fn next(&mut self) -> Option<String> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        while !self.is_over {
            self.shared.sampler.ask();
            if self.caller.revoked().now_or_never().is_some() {
                return None;
            }
            if self.shared.is_draining() {
                self.is_over = true;
                return Some(format!("retry: {RETRY_MS}\nevent: {DRAINING}\ndata: {{}}\n\n"));
            }
            // Before the history is read: a sample that comes in between is seen.
            self.samples.mark_unchanged();
            let scope = self.caller.scope();
            match self.shared.sampler.after(self.position, scope) {
                Next::Changes(text, position) => {
                    self.position = position;
                    if !text.is_empty() {
                        return Some(self.send(text));
                    }
                }
                Next::Resync(reason, changes, position) => {
                    self.position = position;
                    let text = resync(&self.shared, &ResyncBody { reason, changes }, position);
                    return Some(self.send(text));
                }
                Next::Nothing => {
                    if let Some(text) = self.sampled() {
                        return Some(self.send(text));
                    }
                    if let Some(text) = self.wait().await {
                        return Some(text);
                    }
                }
            }
        }
        None
    }

    /// Tells of the newest sample, if that was not told yet: so the reader knows that the server is there, and how old its data is.
    fn sampled(&mut self) -> Option<String> {
        let sample = *self.samples.borrow();
        if self.told == Some(sample) {
            return None;
        }
        let body = self.shared.sampler.sampled(self.position)?;
        self.told = Some(sample);
        let data = serde_json::to_string(&body).unwrap_or_default();
        Some(format!("id: {}\nevent: {SAMPLED}\ndata: {data}\n\n", body.event_id))
    }

    fn send(&mut self, text: String) -> String {
        self.sent_at = Instant::now();
        text
    }

    /// Waits for a change. Gives a heartbeat if there is none for a while.
    async fn wait(&mut self) -> Option<String> {
        let heartbeat_at = self.sent_at + HEARTBEAT_EVERY;
        tokio::select! {
            _ = self.samples.changed() => None,
            () = drained(self.shared.draining.subscribe()) => None,
            () = self.caller.revoked() => {
                self.is_over = true;
                None
            }
            () = tokio::time::sleep_until(heartbeat_at) => Some(self.send(": ping\n\n".to_owned())),
        }
    }
}
