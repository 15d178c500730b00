//! The tower layer that checks the fencing token of each request.
//!
//! 1. Ask `names` for the resource of the request. Without a resource, the request is not fenced.
//! 2. Read the pass from the headers. Without a token, refuse the request if it may change something.
//! 3. Take the lock of the resource, so that requests are handled in the order in which they were admitted.
//! 4. Apply the rule to the stored mark. Refuse the request, or call the handler while the lock is held.

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
    resource_locks::{ResourceLock, ResourceLocks},
};
use crate::observe;

/// Checks the fencing token of each request before its handler.
///
/// `names` returns the resource of a request: `None` means that the request is not fenced, an error becomes a response 400. It
/// gets the path as the client sent it. Decode it with [`percent_decode`](super::percent_decode), as your router does:
/// otherwise `/orders/7` and `/orders/%37` are two resources. The admitted [`Pass`] is added to the extensions of the request,
/// for a handler whose own database has a fence.
///
/// # Guarantees
/// A request with a stale token does not reach the handler. In this process, requests for one resource are handled one after
/// the other, in the order in which they were admitted. This does not cover other processes, nor work that a handler leaves
/// running after its response. If several processes serve a resource, or the effect is in a database, let the database check
/// the pass as well.
///
/// ```
/// use leasehold_fence::{Resource, http::{FenceLayer, SqliteMarks, percent_decode}};
///
/// let marks = SqliteMarks::new(rusqlite::Connection::open_in_memory()?)?; // use a file in production
/// let fence = FenceLayer::new(marks, |request| match request.uri.path().strip_prefix("/orders/") {
///     Some(id) => Resource::new("order", &percent_decode(id)?).map(Some),
///     None => Ok(None),
/// });
/// let app: axum::Router = axum::Router::new()
///     .route("/orders/{id}", axum::routing::put(async || "done"))
///     .layer(fence);
/// # drop(app);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FenceLayer<N> {
    fence: Arc<LayerSettings<N>>,
}

struct LayerSettings<N> {
    marks: Box<dyn Marks>,
    names: N,
    /// `None` if requests for one resource may run at the same time.
    locks: Option<Arc<ResourceLocks>>,
}

impl<N> FenceLayer<N>
where
    N: Fn(&Parts) -> Result<Option<Resource>> + Send + Sync + 'static,
{
    /// A layer that stores tokens in `marks` and asks `names` for the resource of a request.
    pub fn new(marks: impl Marks, names: N) -> FenceLayer<N> {
        let fence = LayerSettings { marks: Box::new(marks), names, locks: Some(Arc::default()) };
        FenceLayer { fence: Arc::new(fence) }
    }

    /// Lets requests for one resource run at the same time. For handlers that check the pass again together with the effect.
    /// Call it before the layer is used: a layer that was cloned or applied is not changed.
    #[must_use]
    pub fn concurrent(self) -> FenceLayer<N> {
        let fence = match Arc::try_unwrap(self.fence) {
            Ok(fence) => Arc::new(LayerSettings { locks: None, ..fence }),
            Err(shared) => shared,
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
    fence: Arc<LayerSettings<N>>,
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
        // `poll_ready` was called on `self.inner`, so that one must serve this request. A clone need not be ready.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            match fence.check(&parts).await {
                Ok(Admitted { pass, lock }) => {
                    if let Some(pass) = pass {
                        parts.extensions.insert(pass);
                    }
                    let response = inner.call(Request::from_parts(parts, body)).await;
                    drop(lock);
                    response
                }
                Err(problem) => Ok(problem.into_response()),
            }
        })
    }
}

/// An admitted request: its pass, and the lock that it holds until the handler has answered.
struct Admitted {
    pass: Option<Pass>,
    lock: Option<ResourceLock>,
}

impl<N: Fn(&Parts) -> Result<Option<Resource>>> LayerSettings<N> {
    async fn check(&self, parts: &Parts) -> Result<Admitted, Problem> {
        let resource = (self.names)(parts).map_err(|error| Problem::bad(error.to_string()))?;
        let Some(resource) = resource else { return Ok(Admitted { pass: None, lock: None }) };
        let Some(pass) = headers::read(&parts.headers, &resource)? else {
            // The methods that HTTP calls safe change nothing.
            let changes =
                ![Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(&parts.method);
            return if changes { Err(Problem::missing()) } else { Ok(Admitted { pass: None, lock: None }) };
        };
        // Lock before the check: otherwise handlers could run in another order than their passes were admitted.
        let lock = match &self.locks {
            Some(locks) => Some(locks.lock(&resource).await),
            None => None,
        };
        match self.marks.judge(&pass).await {
            Ok(Ok(_)) => Ok(Admitted { pass: Some(pass), lock }),
            Ok(Err(refusal)) => {
                drop(observe::refused(&pass, refusal, DOWNSTREAM));
                Err(Problem::refused(refusal))
            }
            Err(error) => Err(Problem::unavailable(&error)),
        }
    }
}
