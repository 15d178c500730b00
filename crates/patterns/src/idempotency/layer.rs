//! The tower layer.

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

use super::{Begun, Fingerprint, Keys, Terms, answer, header as key_header};

/// Stands on an answer that was given before: `Idempotency-Replayed: true`.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// How soon after one another a request says that it still runs.
const RENEW_MIN: Duration = Duration::from_millis(10);

/// Bytes of a request's body.
const BODY_MAX: usize = 1 << 20;

type Scope = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// Carries out each `POST` and `PATCH` with an `Idempotency-Key` once, and answers its repetitions as the first.
///
/// | status | when |
/// |---|---|
/// | 400 | the key makes no sense, or there is none where one is [required](IdempotencyLayer::required) |
/// | 409 | the first request with this key is still running; `Retry-After` says when to ask again |
/// | 413 | the request has more than 1 MiB |
/// | 422 | the key was used for another request |
/// | 503 | the keys cannot be reached: nothing was done |
///
/// What is stored: the key, a hash of method, path and body, and of the answer its status, body and a few headers
/// (type, language, encoding, `ETag`, `Last-Modified`, `Location`). Never the request, and never cookies.
///
/// It runs on tokio, as the stores do: the layer renews what it holds while the handler runs.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let directory = tempfile::tempdir().unwrap(); let path = directory.path().join("keys.db");
/// use leasehold_patterns::idempotency::{IdempotencyLayer, SqliteKeys};
///
/// let layer = IdempotencyLayer::new(SqliteKeys::open(&path).await?)
///     .required()
///     .scope(|request| request.extensions.get::<String>().cloned()); // the customer, as authentication has found out
/// let app: axum::Router = axum::Router::new()
///     .route("/payments", axum::routing::post(async || "paid"))
///     .layer(layer);
/// # drop(app);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    rules: Rules,
}

#[derive(Clone)]
struct Rules {
    keys: Arc<dyn Keys>,
    terms: Terms,
    required: bool,
    retries_failures: bool,
    scope: Arc<Scope>,
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("keys", &self.rules.keys).finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// A layer that remembers keys there.
    pub fn new(keys: impl Keys + 'static) -> IdempotencyLayer {
        let (keys, terms) = (Arc::new(keys), Terms::default());
        let scope = Arc::new(|_: &Parts| None);
        IdempotencyLayer { rules: Rules { keys, terms, required: false, retries_failures: false, scope } }
    }

    /// How long nothing may be heard of a request, and how long answers are kept. Default: a minute, and a day.
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> IdempotencyLayer {
        self.rules.terms = terms;
        self
    }

    /// Refuses a `POST` or `PATCH` without a key. Default: it is let through.
    #[must_use]
    pub fn required(mut self) -> IdempotencyLayer {
        self.rules.required = true;
        self
    }

    /// Does not store answers of 500 and above: the next request with the key is carried out. For handlers that leave no
    /// effect behind when they fail. Default: every answer is stored, because a failure may have had its effect.
    #[must_use]
    pub fn retry_failures(mut self) -> IdempotencyLayer {
        self.rules.retries_failures = true;
        self
    }

    /// Whose key it is: the same key of two customers is two keys. Default: everyone's.
    #[must_use]
    pub fn scope(
        mut self,
        scope: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> IdempotencyLayer {
        self.rules.scope = Arc::new(scope);
        self
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotent<S>;
    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent { rules: self.rules.clone(), inner }
    }
}

/// A service behind an [`IdempotencyLayer`].
#[derive(Clone)]
pub struct Idempotent<S> {
    rules: Rules,
    inner: S,
}

impl<S> fmt::Debug for Idempotent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotent").field("keys", &self.rules.keys).finish_non_exhaustive()
    }
}

/// A request may pass, or is answered here.
enum Judged<B> {
    Unkeyed(Request<B>),
    Keyed(super::Run, Parts, Bytes),
    Answered(Response<Bytes>),
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
        let rules = self.rules.clone();
        // The one that is ready serves this request; a clone need not be.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(async move {
            match rules.judge(request).await {
                Judged::Unkeyed(request) => inner.call(request).await,
                Judged::Answered(answer) => Ok(answer.map(R::from)),
                Judged::Keyed(run, parts, body) => {
                    let request = Request::from_parts(parts, B::from(body));
                    let carry_out = async {
                        let response = inner.call(request).await?;
                        Ok(rules.remember(&run, response).await.map(R::from))
                    };
                    rules.hold(&run, carry_out).await
                }
            }
        })
    }
}

impl Rules {
    async fn judge<B>(&self, request: Request<B>) -> Judged<B>
    where
        B: Body,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        if !matches!(*request.method(), Method::POST | Method::PATCH) {
            return Judged::Unkeyed(request);
        }
        let key = match key_header::key(request.headers()) {
            Ok(Some(key)) => key,
            Ok(None) if self.required => {
                return refuse(StatusCode::BAD_REQUEST, "send an Idempotency-Key with this request");
            }
            Ok(None) => return Judged::Unkeyed(request),
            Err(why) => return refuse(StatusCode::BAD_REQUEST, why),
        };
        let (parts, body) = request.into_parts();
        let Ok(body) = Limited::new(body, BODY_MAX).collect().await else {
            return refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                "a request with an Idempotency-Key has at most 1 MiB",
            );
        };
        let body = body.to_bytes();
        // The length of the scope keeps it from running into the key.
        let scope = (self.scope)(&parts).unwrap_or_default();
        let key = format!("{}:{scope}{key}", scope.len());
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let payload = Fingerprint::of([parts.method.as_str().as_bytes(), path.as_bytes(), &body]);
        match self.keys.begin(&key, &payload, &self.terms).await {
            Ok(Begun::Run(run)) => Judged::Keyed(run, parts, body),
            Ok(Begun::Done(stored)) => replay(stored),
            Ok(Begun::OtherPayload) => {
                refuse(StatusCode::UNPROCESSABLE_ENTITY, "this Idempotency-Key was used for another request")
            }
            Ok(Begun::Running { again_in }) => running(again_in),
            Err(error) if error.kind() == ErrorKind::Invalid => {
                refuse(StatusCode::BAD_REQUEST, "this Idempotency-Key is too long for whom it is from")
            }
            Err(error) => unavailable(&error),
        }
    }

    /// Says that the request still runs, until it has ended: it may well take longer than a dead one is waited for.
    async fn hold<T>(&self, run: &super::Run, carry_out: impl Future<Output = T>) -> T {
        let (environment, every) = (System::current(), (self.terms.hold / 3).max(RENEW_MIN));
        let mut carry_out = pin!(carry_out);
        loop {
            if let Either::Left(done) = first(carry_out.as_mut(), environment.sleep(every)).await {
                return done;
            }
            match first(carry_out.as_mut(), self.keys.renew(run, &self.terms)).await {
                Either::Left(done) => return done,
                Either::Right(Ok(true)) => {}
                // Its answer will not be stored. What it does may be half done: it is not stopped.
                Either::Right(Ok(false)) => return carry_out.await,
                Either::Right(Err(error)) => {
                    tracing::warn!(target: "leasehold", %error, "a request with an idempotency key cannot say that it still runs");
                }
            }
        }
    }

    /// Stores the answer, if it is still ours to store.
    async fn remember<R>(&self, run: &super::Run, response: Response<R>) -> Response<Bytes>
    where
        R: Body,
        R::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let (parts, body) = response.into_parts();
        let collected = Limited::new(body, super::ANSWER_MAX - 8192).collect().await;
        let Ok(body) = collected.map(http_body_util::Collected::to_bytes) else {
            // It cannot be given again, so it is not given at all. The effect may have happened: nobody takes this over.
            tracing::error!(target: "leasehold", "an answer to a request with an idempotency key is broken or has over 1 MiB");
            let problem = problem(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be stored");
            self.store(run, &problem).await;
            return problem;
        };
        let response = Response::from_parts(parts, body);
        if self.retries_failures && response.status().is_server_error() {
            told(self.keys.abandon(run).await);
        } else {
            self.store(run, &response).await;
        }
        response
    }

    async fn store(&self, run: &super::Run, response: &Response<Bytes>) {
        let answer = answer::write(response.status(), response.headers(), response.body());
        told(self.keys.finish(run, &answer, &self.terms).await);
    }
}

/// The client gets its answer all the same.
fn told(stored: Result<bool, Error>) {
    match stored {
        Ok(true) => {}
        Ok(false) => {
            tracing::warn!(target: "leasehold", "a request with an idempotency key ended late: another one took it over");
        }
        Err(error) => {
            tracing::error!(target: "leasehold", %error, "an answer to a request with an idempotency key is not stored");
        }
    }
}

fn replay<B>(stored: Vec<u8>) -> Judged<B> {
    let Some(mut response) = answer::read(stored) else {
        return refuse(
            StatusCode::INTERNAL_SERVER_ERROR,
            "what is stored for this Idempotency-Key is not an answer",
        );
    };
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Judged::Answered(response)
}

fn running<B>(again_in: Duration) -> Judged<B> {
    let mut response =
        problem(StatusCode::CONFLICT, "the first request with this Idempotency-Key is still running");
    let seconds = HeaderValue::from(again_in.as_secs().clamp(1, 5)); // it will most likely be sooner
    response.headers_mut().insert(header::RETRY_AFTER, seconds);
    Judged::Answered(response)
}

/// Why is for the log: it may name hosts and files.
fn unavailable<B>(error: &Error) -> Judged<B> {
    tracing::error!(target: "leasehold", %error, "idempotency keys cannot be read");
    refuse(
        StatusCode::SERVICE_UNAVAILABLE,
        "the idempotency keys cannot be read at the moment; nothing was done",
    )
}

fn refuse<B>(status: StatusCode, detail: &str) -> Judged<B> {
    Judged::Answered(problem(status, detail))
}

/// A problem, as RFC 9457 has them.
fn problem(status: StatusCode, detail: &str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or_default();
    // Neither has a quote in it.
    let body = format!(r#"{{"title":"{title}","status":{},"detail":"{detail}"}}"#, status.as_u16());
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
