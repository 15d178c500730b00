//! The tower layer.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ::http::{Method, Request, Response, request::Parts};
use leasehold_core::{Pass, Resource, Result};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    DOWNSTREAM, headers,
    marks::Marks,
    problem::Problem,
    turns::{Turn, Turns},
};
use crate::observe;

/// Checks the fencing token of each request before its handler.
///
/// `names` says which resource a request is for: `None` lets it through unfenced, an error is answered with 400. It sees the
/// path as it was sent: decode it, as your router does, or `/orders/7` and `/orders/%37` are two resources. The admitted
/// [`Pass`] is put among the request's extensions, for a handler whose own database has a fence.
///
/// # Guarantees
/// A request with a stale token does not reach the handler. Requests of one resource are handled one after the other, by
/// this process: who was admitted earlier takes effect earlier. That ends at the process and at what a handler leaves
/// running behind its answer; where several processes serve a resource, or where the effect is in a database, let the
/// database check as well.
///
/// ```
/// use leasehold_support::url::decode;
/// use leasehold_fence::{Resource, http::{FenceLayer, SqliteMarks}};
///
/// let marks = SqliteMarks::new(rusqlite::Connection::open_in_memory()?)?; // a file, in earnest
/// let fence = FenceLayer::new(marks, |request| match request.uri.path().strip_prefix("/orders/") {
///     Some(id) => Resource::new("order", &decode(id)?).map(Some),
///     None => Ok(None),
/// });
/// let app: axum::Router = axum::Router::new()
///     .route("/orders/{id}", axum::routing::put(async || "done"))
///     .layer(fence);
/// # drop(app);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FenceLayer<N> {
    fence: Arc<Fence<N>>,
}

struct Fence<N> {
    marks: Box<dyn Marks>,
    names: N,
    turns: Option<Arc<Turns>>,
}

impl<N> FenceLayer<N>
where
    N: Fn(&Parts) -> Result<Option<Resource>> + Send + Sync + 'static,
{
    /// A layer that remembers tokens in `marks` and asks `names` which resource a request is for.
    pub fn new(marks: impl Marks, names: N) -> FenceLayer<N> {
        let fence = Fence { marks: Box::new(marks), names, turns: Some(Arc::default()) };
        FenceLayer { fence: Arc::new(fence) }
    }

    /// Lets requests of one resource run at the same time. For handlers that pass a fence of their own with the effect.
    #[must_use]
    pub fn concurrent(self) -> FenceLayer<N> {
        let fence = match Arc::try_unwrap(self.fence) {
            Ok(fence) => Arc::new(Fence { turns: None, ..fence }),
            Err(shared) => shared, // it has a service already: too late to change its ways
        };
        FenceLayer { fence }
    }
}

impl<N> Clone for FenceLayer<N> {
    fn clone(&self) -> FenceLayer<N> {
        FenceLayer { fence: Arc::clone(&self.fence) }
    }
}

impl<N, S> Layer<S> for FenceLayer<N> {
    type Service = Fenced<N, S>;
    fn layer(&self, inner: S) -> Fenced<N, S> {
        Fenced { fence: Arc::clone(&self.fence), inner }
    }
}

/// A service behind a [`FenceLayer`].
pub struct Fenced<N, S> {
    fence: Arc<Fence<N>>,
    inner: S,
}

impl<N, S: Clone> Clone for Fenced<N, S> {
    fn clone(&self) -> Fenced<N, S> {
        Fenced { fence: Arc::clone(&self.fence), inner: self.inner.clone() }
    }
}

impl<N, S, B, R> Service<Request<B>> for Fenced<N, S>
where
    N: Fn(&Parts) -> Result<Option<Resource>> + Send + Sync + 'static,
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let fence = Arc::clone(&self.fence);
        // The one that is ready serves this request; a clone need not be.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            match fence.check(&parts).await {
                Ok(Admitted { pass, turn }) => {
                    if let Some(pass) = pass {
                        parts.extensions.insert(pass);
                    }
                    let response = inner.call(Request::from_parts(parts, body)).await;
                    drop(turn);
                    response
                }
                Err(problem) => Ok(problem.into_response()),
            }
        })
    }
}

/// What a request that passes takes along.
struct Admitted {
    pass: Option<Pass>,
    turn: Option<Turn>,
}

impl<N: Fn(&Parts) -> Result<Option<Resource>>> Fence<N> {
    async fn check(&self, parts: &Parts) -> Result<Admitted, Problem> {
        let resource = (self.names)(parts).map_err(|error| Problem::bad(error.to_string()))?;
        let Some(resource) = resource else { return Ok(Admitted { pass: None, turn: None }) };
        let Some(pass) = headers::read(&parts.headers, &resource)? else {
            let changes =
                ![Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(&parts.method);
            return if changes { Err(Problem::missing()) } else { Ok(Admitted { pass: None, turn: None }) };
        };
        // The turn first: else the order of the verdicts would not be that of the handlers.
        let turn = match &self.turns {
            Some(turns) => Some(turns.take(&resource).await),
            None => None,
        };
        match self.marks.judge(&pass).await {
            Ok(Ok(_)) => Ok(Admitted { pass: Some(pass), turn }),
            Ok(Err(refusal)) => {
                drop(observe::refused(&pass, refusal, DOWNSTREAM));
                Err(Problem::refused(refusal))
            }
            Err(error) => Err(Problem::unavailable(&error)),
        }
    }
}
