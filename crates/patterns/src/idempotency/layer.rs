//! The tower layer.
//!
//! What happens to a request:
//!
//! 1. A method other than `POST` and `PATCH`, or a request without a key, passes through (a missing key is
//!    refused if it is required).
//! 2. The body is read, up to 1 MiB, because its hash is part of the fingerprint.
//! 3. The key is claimed in the store ([`Keys::begin`]). If that does not succeed, the layer responds itself:
//!    with the stored response, or with 409, 422 or 503.
//! 4. The handler runs. Meanwhile the layer renews the claim, at every third of [`KeyLifetimes::hold`].
//! 5. The response is stored, then sent. A failure to store it is only logged: the client gets its response.

use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body::Body;
use http_body_util::{BodyExt as _, Limited};
use leasehold::{Environment as _, Error, ErrorKind, System};
use leasehold_support::race::{Either, first};
use tower_layer::Layer;
use tower_service::Service;

use super::{BeginOutcome, Fingerprint, KeyClaim, KeyLifetimes, Keys, header as key_header, stored_response};

/// The header of a response that was sent before: `Idempotency-Replayed: true`.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The shortest time between two renewals of a claim.
const RENEW_MIN: Duration = Duration::from_millis(10);

/// The most bytes in the body of a request.
const BODY_MAX: usize = 1 << 20;
/// The most bytes in the body of a response: the limit of the store, less 8 KiB for the status and headers.
const RESPONSE_BODY_MAX: usize = super::RESPONSE_MAX - 8192;
/// The longest `Retry-After`: most requests end much sooner than their claim.
const RETRY_AFTER_MAX_SECONDS: u64 = 5;

type Scope = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// Carries out each `POST` and `PATCH` with an `Idempotency-Key` once, and repeats the first response for its
/// repetitions.
///
/// | status | when |
/// |---|---|
/// | 400 | the key is not valid, or there is none where one is [required](IdempotencyLayer::required) |
/// | 409 | the first request with this key still runs; `Retry-After` says when to ask again |
/// | 413 | the body of the request has more than 1 MiB |
/// | 422 | the key was used for another request |
/// | 503 | the store of keys cannot be reached: nothing was done |
///
/// It stores the key, a hash of method, path and body, and the status, body and a few headers of the response
/// (type, language, encoding, `ETag`, `Last-Modified`, `Location`). It never stores the request or cookies.
///
/// It needs tokio, as the stores do: the layer renews its claim while the handler runs.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let directory = tempfile::tempdir().unwrap(); let path = directory.path().join("keys.db");
/// use leasehold_patterns::idempotency::{IdempotencyLayer, SqliteKeys};
///
/// let layer = IdempotencyLayer::new(SqliteKeys::open(&path).await?)
///     .required()
///     .scope(|request| request.extensions.get::<String>().cloned()); // the customer, set by authentication
/// let app: axum::Router = axum::Router::new()
///     .route("/payments", axum::routing::post(async || "paid"))
///     .layer(layer);
/// # drop(app);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    settings: LayerSettings,
}

#[derive(Clone)]
struct LayerSettings {
    keys: Arc<dyn Keys>,
    lifetimes: KeyLifetimes,
    required: bool,
    /// Whether responses of 500 and above are not stored, so that the client can try again.
    retries_failures: bool,
    scope: Arc<Scope>,
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("keys", &self.settings.keys).finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// A layer that stores keys there.
    pub fn new(keys: impl Keys + 'static) -> IdempotencyLayer {
        let (keys, lifetimes) = (Arc::new(keys), KeyLifetimes::default());
        let scope = Arc::new(|_: &Parts| None);
        let settings = LayerSettings { keys, lifetimes, required: false, retries_failures: false, scope };
        IdempotencyLayer { settings }
    }

    /// How long a claim lasts without being renewed, and how long a response is stored. Default: a minute,
    /// and a day.
    #[must_use]
    pub fn lifetimes(mut self, lifetimes: KeyLifetimes) -> IdempotencyLayer {
        self.settings.lifetimes = lifetimes;
        self
    }

    /// Refuses a `POST` or `PATCH` without a key. Default: it passes through.
    #[must_use]
    pub fn required(mut self) -> IdempotencyLayer {
        self.settings.required = true;
        self
    }

    /// Does not store responses of 500 and above: the next request with the key is carried out. Use it for
    /// handlers that have no effect when they fail. Default: every response is stored, because a request that
    /// failed may have had an effect.
    #[must_use]
    pub fn retry_failures(mut self) -> IdempotencyLayer {
        self.settings.retries_failures = true;
        self
    }

    /// The scope of a key, such as the customer: the same key in two scopes is two keys. Default: one scope
    /// for all.
    #[must_use]
    pub fn scope(
        mut self,
        scope: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> IdempotencyLayer {
        self.settings.scope = Arc::new(scope);
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotent<S>;
    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent { settings: self.settings.clone(), inner }
    }
}

/// A service behind an [`IdempotencyLayer`].
#[derive(Clone)]
pub struct Idempotent<S> {
    settings: LayerSettings,
    inner: S,
}

impl<S> fmt::Debug for Idempotent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent").field("keys", &self.settings.keys).finish_non_exhaustive()
    }
}

/// What the layer does with a request.
enum LayerDecision<B> {
    /// Pass it to the handler without a key.
    PassThrough(Request<B>),
    /// Carry it out under this claim.
    Execute(KeyClaim, Parts, Bytes),
    /// Respond without the handler.
    Respond(Response<Bytes>),
}

impl<S, B, R> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
    R: Body + From<Bytes> + Send + 'static,
    R::Data: Send,
    R::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let settings = self.settings.clone();
        // `poll_ready` was called on this service; a clone of it may not be ready.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(async move {
            match settings.decide(request).await {
                LayerDecision::PassThrough(request) => inner.call(request).await,
                LayerDecision::Respond(response) => Ok(response.map(R::from)),
                LayerDecision::Execute(claim, parts, body) => {
                    let request = Request::from_parts(parts, B::from(body));
                    let execution = async {
                        let response = inner.call(request).await?;
                        Ok(settings.store_response(&claim, response).await.map(R::from))
                    };
                    settings.renew_while(&claim, execution).await
                }
            }
        })
    }
}

impl LayerSettings {
    /// Steps 1 to 3.
    async fn decide<B>(&self, request: Request<B>) -> LayerDecision<B>
    where
        B: Body,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        if !matches!(*request.method(), Method::POST | Method::PATCH) {
            return LayerDecision::PassThrough(request);
        }
        let key = match key_header::key(request.headers()) {
            Ok(Some(key)) => key,
            Ok(None) if self.required => {
                return refuse(StatusCode::BAD_REQUEST, "send an Idempotency-Key with this request");
            }
            Ok(None) => return LayerDecision::PassThrough(request),
            Err(why) => return refuse(StatusCode::BAD_REQUEST, why),
        };
        let (parts, body) = request.into_parts();
        let Ok(body) = Limited::new(body, BODY_MAX).collect().await else {
            return refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body of a request with an Idempotency-Key has at most 1 MiB",
            );
        };
        let body = body.to_bytes();
        // With the length of the scope, scope "a" and key "bc" differ from scope "ab" and key "c".
        let scope = (self.scope)(&parts).unwrap_or_default();
        let key = format!("{}:{scope}{key}", scope.len());
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let payload = Fingerprint::of([parts.method.as_str().as_bytes(), path.as_bytes(), &body]);
        match self.keys.begin(&key, &payload, &self.lifetimes).await {
            Ok(BeginOutcome::Claimed(claim)) => LayerDecision::Execute(claim, parts, body),
            Ok(BeginOutcome::Done(stored)) => replay(stored),
            Ok(BeginOutcome::OtherPayload) => {
                refuse(StatusCode::UNPROCESSABLE_ENTITY, "this Idempotency-Key was used for another request")
            }
            Ok(BeginOutcome::Running { retry_in }) => running(retry_in),
            Err(error) if error.kind() == ErrorKind::Invalid => {
                refuse(StatusCode::BAD_REQUEST, "this Idempotency-Key is too long together with its scope")
            }
            Err(error) => unavailable(&error),
        }
    }

    /// Step 4: renews the claim until the request has ended, which may take longer than
    /// [`KeyLifetimes::hold`].
    async fn renew_while<T>(&self, claim: &KeyClaim, execution: impl Future<Output = T>) -> T {
        let (environment, every) = (System::current(), (self.lifetimes.hold / 3).max(RENEW_MIN));
        let mut execution = pin!(execution);
        loop {
            if let Either::Left(done) = first(execution.as_mut(), environment.sleep(every)).await {
                return done;
            }
            match first(execution.as_mut(), self.keys.renew(claim, &self.lifetimes)).await {
                Either::Left(done) => return done,
                Either::Right(Ok(true)) => {}
                // Another request took the key over, so this response will not be stored. The handler is not
                // stopped, because its effect may be half done.
                Either::Right(Ok(false)) => return execution.await,
                Either::Right(Err(error)) => {
                    tracing::warn!(
                        target: "leasehold", %error,
                        "cannot renew the claim of an idempotency key, trying again"
                    );
                }
            }
        }
    }

    /// Step 5: stores the response, if the claim is still valid.
    async fn store_response<R>(&self, claim: &KeyClaim, response: Response<R>) -> Response<Bytes>
    where
        R: Body,
        R::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let (parts, body) = response.into_parts();
        let collected = Limited::new(body, RESPONSE_BODY_MAX).collect().await;
        let Ok(body) = collected.map(http_body_util::Collected::to_bytes) else {
            // The response could not be repeated, so it is not sent at all. The effect may have happened, so
            // the key stays used.
            tracing::error!(
                target: "leasehold",
                "the response to a request with an idempotency key cannot be stored: its body failed or has more than 1 MiB"
            );
            let problem = problem(StatusCode::INTERNAL_SERVER_ERROR, "the response cannot be stored");
            self.store(claim, &problem).await;
            return problem;
        };
        let response = Response::from_parts(parts, body);
        if self.retries_failures && response.status().is_server_error() {
            log_failure(self.keys.abandon(claim).await);
        } else {
            self.store(claim, &response).await;
        }
        response
    }

    async fn store(&self, claim: &KeyClaim, response: &Response<Bytes>) {
        let stored = stored_response::write(response.status(), response.headers(), response.body());
        log_failure(self.keys.finish(claim, &stored, &self.lifetimes).await);
    }
}

/// Logs that a response was not stored. The client gets it all the same.
fn log_failure(stored: Result<bool, Error>) {
    match stored {
        Ok(true) => {}
        Ok(false) => {
            tracing::warn!(
                target: "leasehold",
                "the response to a request with an idempotency key is not stored: another request took the key over"
            );
        }
        Err(error) => {
            tracing::error!(
                target: "leasehold", %error,
                "cannot store the response to a request with an idempotency key"
            );
        }
    }
}

fn replay<B>(stored: Vec<u8>) -> LayerDecision<B> {
    let Some(mut response) = stored_response::read(stored) else {
        return refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the stored response of this Idempotency-Key cannot be read",
        );
    };
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    LayerDecision::Respond(response)
}

fn running<B>(retry_in: Duration) -> LayerDecision<B> {
    let mut response =
        problem(StatusCode::CONFLICT, "the first request with this Idempotency-Key is still running");
    let seconds = HeaderValue::from(retry_in.as_secs().clamp(1, RETRY_AFTER_MAX_SECONDS));
    response.headers_mut().insert(header::RETRY_AFTER, seconds);
    LayerDecision::Respond(response)
}

/// The error goes to the log and not to the client, because it may name hosts and files.
fn unavailable<B>(error: &Error) -> LayerDecision<B> {
    tracing::error!(target: "leasehold", %error, "cannot read the idempotency keys");
    refuse(
        StatusCode::SERVICE_UNAVAILABLE,
        "the idempotency keys cannot be read at the moment; nothing was done",
    )
}

fn refuse<B>(status: StatusCode, detail: &str) -> LayerDecision<B> {
    LayerDecision::Respond(problem(status, detail))
}

/// A problem response (RFC 9457).
fn problem(status: StatusCode, detail: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or_default();
    // Neither the title nor the detail contains a quote, so they need no escaping.
    let body = format!(r#"{{"title":"{title}","status":{},"detail":"{detail}"}}"#, status.as_u16());
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
