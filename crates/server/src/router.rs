//! From a request to its route.

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use hyper::{
    Method, Request, Response, Version,
    body::{Body as _, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    http::request::Parts,
};
use leasehold_api::{Problem, ProblemKind, REQUEST_HEADER, REQUEST_ID_MAX, routes as paths};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::{
    access::{Caller, Role, SessionCookie},
    answer::{Answer, ResponseBody},
    body::{self, Body},
    dashboard, guard,
    hangup::Hangup,
    routes,
    server::Shared,
    spans,
};

/// The routes of the API. Each has a file in `routes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Acquire,
    Renew,
    Release,
    Wait,
    Resource,
    Resources,
    Audit,
    Leaks,
    Orders,
    Overview,
    Events,
    Info,
    Metrics,
    Terraform,
    Timeline,
    Deadlocks,
    Jobs,
    Store,
    Login,
    Logout,
}

impl Route {
    const ALL: [(Route, &'static str); 20] = [
        (Route::Acquire, paths::ACQUIRE),
        (Route::Renew, paths::RENEW),
        (Route::Release, paths::RELEASE),
        (Route::Wait, paths::WAIT),
        (Route::Resource, paths::RESOURCE),
        (Route::Resources, paths::RESOURCES),
        (Route::Audit, paths::AUDIT),
        (Route::Leaks, paths::LEAKS),
        (Route::Orders, paths::ORDERS),
        (Route::Overview, paths::OVERVIEW),
        (Route::Events, paths::EVENTS),
        (Route::Info, paths::INFO),
        (Route::Metrics, paths::METRICS),
        (Route::Terraform, paths::TERRAFORM),
        (Route::Timeline, paths::TIMELINE),
        (Route::Deadlocks, paths::DEADLOCKS),
        (Route::Jobs, paths::JOBS),
        (Route::Store, paths::STORE),
        (Route::Login, paths::LOGIN),
        (Route::Logout, paths::LOGOUT),
    ];

    /// The route at this path, with its path.
    fn at(path: &str) -> Option<(Route, &'static str)> {
        Route::ALL.into_iter().find(|(_, at)| *at == path)
    }

    /// `POST` changes something, or has a secret in its body; `GET` only reads.
    fn method(self) -> Method {
        match self {
            Route::Acquire
            | Route::Renew
            | Route::Release
            | Route::Wait
            | Route::Orders
            | Route::Terraform
            | Route::Login
            | Route::Logout => Method::POST,
            Route::Resource
            | Route::Resources
            | Route::Audit
            | Route::Leaks
            | Route::Overview
            | Route::Events
            | Route::Timeline
            | Route::Deadlocks
            | Route::Jobs
            | Route::Store
            | Route::Info
            | Route::Metrics => Method::GET,
        }
    }

    /// All methods that the route takes.
    fn methods(self) -> Vec<&'static str> {
        match self.method() {
            _ if self == Route::Terraform => routes::terraform::METHODS.to_vec(),
            Method::POST => vec!["POST"],
            _ => vec!["GET"],
        }
    }

    /// The role that its callers need. `None` if it is open to everyone.
    fn role(self) -> Option<Role> {
        Some(match self {
            Route::Login | Route::Logout => return None,
            Route::Acquire | Route::Renew | Route::Release | Route::Wait | Route::Terraform => Role::Client,
            Route::Resource
            | Route::Resources
            | Route::Audit
            | Route::Overview
            | Route::Events
            | Route::Timeline
            | Route::Deadlocks
            | Route::Jobs
            | Route::Store
            | Route::Info
            | Route::Metrics => Role::Viewer,
            Route::Leaks | Route::Orders => Role::Operator,
        })
    }
}

/// What a connection may ask for, by the address that it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    /// The routes of the API.
    Api,
    /// `/metrics`, `/healthz` and `/readyz`, without a token.
    Metrics,
}

/// A route of the server: for tests and documents that must have all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteInfo {
    /// Its path.
    pub path: &'static str,
    /// The methods that it takes.
    pub methods: Vec<&'static str>,
    /// The role that its callers need. `None` if it is open to everyone.
    pub role: Option<Role>,
}

/// All routes, with those that are open to everyone.
pub(crate) fn all_routes() -> Vec<RouteInfo> {
    let guarded =
        Route::ALL.map(|(route, path)| RouteInfo { path, methods: route.methods(), role: route.role() });
    let open = routes::open::PATHS.map(|path| RouteInfo {
        path,
        methods: routes::open::METHODS.to_vec(),
        role: None,
    });
    guarded.into_iter().chain(open).collect()
}

/// The methods of the route at this path: for the header `Allow`.
fn methods_at(path: &str) -> Option<String> {
    let route = all_routes().into_iter().find(|route| route.path == path)?;
    Some(route.methods.join(", "))
}

/// Who is at the other end of a connection.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) listener: ListenerKind,
    /// The names in its client certificate, which our own TLS has checked.
    pub(crate) certificate: Arc<[String]>,
    /// Tells when it has gone.
    pub(crate) hangup: Hangup,
}

/// What a route knows of its request.
pub(crate) struct Call<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) caller: Caller,
    pub(crate) peer: &'a Peer,
    /// When the request was read: before its body, so a little early, which is safe for `waited_ms`.
    pub(crate) read_at: Instant,
}

impl Call<'_> {
    /// The longest ttl of a claim: that of the store, or less for this caller.
    pub(crate) fn ttl_max(&self) -> Duration {
        let of_store = self.shared.backend.info().limits.ttl;
        self.caller.ttl_max().map_or(of_store, |most| most.min(of_store))
    }
}

/// What is left of the head of a request while it is answered. The head shares the read buffer of its connection: if it were kept, each
/// claim that waits would cost eight kilobytes more.
pub(crate) struct RequestSummary {
    method: Method,
    pub(crate) version: Version,
    /// The header with the id of the request, which the answer repeats.
    pub(crate) id: Option<HeaderValue>,
    /// Its path, if it is one of ours.
    path: Option<&'static str>,
}

impl RequestSummary {
    fn of(head: &Parts) -> RequestSummary {
        let id = head.headers.get(REQUEST_HEADER).filter(|id| id.len() <= REQUEST_ID_MAX);
        let path = head.uri.path();
        let open = || routes::open::PATHS.into_iter().find(|open| *open == path);
        RequestSummary {
            method: head.method.clone(),
            version: head.version,
            id: id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok()),
            path: Route::at(path).map(|(_, path)| path).or_else(open),
        }
    }
}

/// Answers a request.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    peer: &Peer,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let started = Instant::now();
    let (head, incoming) = request.into_parts();
    let summary = RequestSummary::of(&head);
    let mut log = RequestLog::default();
    let span = spans::request(&head, Route::at(head.uri.path()).map_or("other", |(_, path)| path));
    let open = routes::open::answer(shared, &head);
    let mut answer = match open {
        // The address for metrics has nothing else.
        _ if peer.listener == ListenerKind::Metrics && head.uri.path() == paths::OPENAPI => {
            metrics_only(shared, &head)
        }
        Some(answer) => answer,
        None if peer.listener == ListenerKind::Metrics => metrics_only(shared, &head),
        None => dispatch(shared, peer, head, incoming, &mut log).instrument(span.clone()).await.into(),
    };
    if answer.status == ProblemKind::MethodNotAllowed.status() && answer.allow.is_none() {
        answer.allow = summary.path.and_then(methods_at);
    }
    let (route, took) = (log.route.unwrap_or("other"), started.elapsed());
    spans::answered(&span, answer.status, answer.problem.as_deref());
    if log.route.is_some() || answer.status >= 400 {
        shared.metrics.answered(route, answer.status, answer.problem.as_deref(), took);
        log.write(&answer, &summary, peer, took);
    }
    answer.into_response(shared, summary)
}

/// What the access log says of a request: no name of a resource, no owner, no token.
#[derive(Default)]
struct RequestLog {
    route: Option<&'static str>,
    subject: Option<String>,
}

impl RequestLog {
    fn write(&self, answer: &Answer, request: &RequestSummary, peer: &Peer, took: Duration) {
        tracing::info!(
            method = %request.method,
            route = self.route.unwrap_or("other"),
            status = answer.status,
            problem = answer.problem.as_deref(),
            took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            peer = %peer.address.ip(),
            subject = self.subject.as_deref(),
            "request"
        );
    }
}

/// The work of a route.
type Answering<'a> = Pin<Box<dyn Future<Output = Result<Answer, Problem>> + Send + 'a>>;

async fn dispatch(
    shared: &Arc<Shared>,
    peer: &Peer,
    head: Parts,
    incoming: Incoming,
    log: &mut RequestLog,
) -> Result<Answer, Problem> {
    let hosts = &shared.config.hosts;
    guard::check_host(&head.uri, &head.headers, hosts)?;
    if let Some(answer) = dashboard::answer(&head) {
        log.route = Some(dashboard::ROUTE);
        return Ok(answer);
    }
    let wrong_method =
        |methods: String| Problem::new(ProblemKind::MethodNotAllowed, format!("the route takes {methods}"));
    let no_route = || match methods_at(head.uri.path()) {
        Some(methods) => wrong_method(methods),
        None => Problem::new(ProblemKind::NotFound, format!("there is no {:.80}", head.uri.path())),
    };
    let (route, path) = Route::at(head.uri.path()).ok_or_else(no_route)?;
    log.route = Some(path);
    if !route.methods().contains(&head.method.as_str()) {
        return Err(wrong_method(route.methods().join(", ")));
    }
    let cookie = SessionCookie::of(&head.uri, &head.headers, shared.has_tls());
    let caller = match route.role() {
        Some(_) => shared.config.access.caller(&head.headers, cookie, &peer.certificate)?,
        None => Caller::anyone(),
    };
    log.subject = caller.subject().map(str::to_owned);
    let ends_lock = route == Route::Terraform && routes::terraform::is_unlock(&head.method);
    caller.count(ends_lock || matches!(route, Route::Renew | Route::Release))?;
    if caller.is_ambient {
        guard::check_browser(&head.uri, &head.headers, hosts)?;
    }
    if let Some(role) = route.role() {
        caller.check_role(role)?;
    }
    let call = Call { shared, caller, peer, read_at: Instant::now() };
    let body = match route.method() {
        Method::POST if has_body(route, &head, &incoming) => {
            body::read(&head.headers, incoming, &shared.body_memory, shared.config.timeouts.body).await?
        }
        _ => Body::default(),
    };
    let bytes = &body.bytes;
    peer.hangup.watch();
    let uri = &head.uri;
    // Boxed, so that a connection that does nothing is small, and one that waits holds only the future of its own route.
    let answering: Answering<'_> = match route {
        Route::Acquire => Box::pin(routes::acquire::answer(&call, bytes)),
        Route::Renew => Box::pin(routes::renew::answer(&call, bytes)),
        Route::Release => Box::pin(routes::release::answer(&call, bytes)),
        Route::Wait => Box::pin(routes::wait::answer(&call, bytes)),
        Route::Orders => Box::pin(routes::orders::answer(&call, bytes)),
        Route::Resource => Box::pin(routes::resource::answer(&call, body::query(uri)?)),
        Route::Resources => Box::pin(routes::resources::answer(&call, body::query(uri)?)),
        Route::Audit => Box::pin(routes::audit::answer(&call, body::query(uri)?)),
        Route::Leaks => Box::pin(routes::leaks::answer(&call, body::query(uri)?)),
        Route::Timeline => Box::pin(routes::timeline::answer(&call, body::query(uri)?)),
        Route::Deadlocks => Box::pin(routes::deadlocks::answer(&call)),
        Route::Jobs => Box::pin(routes::jobs::answer(&call)),
        Route::Store => return Ok(routes::store::answer(&call).await),
        Route::Overview => Box::pin(routes::overview::answer(&call, body::query(uri)?)),
        Route::Terraform => {
            Box::pin(routes::terraform::answer(&call, head.method.clone(), body::query(uri)?, bytes))
        }
        Route::Events => return routes::events::answer(&call, &head.headers),
        Route::Info => return Ok(routes::info::answer(&call)),
        Route::Login => return routes::login::log_in(&call, bytes, cookie),
        Route::Logout => return routes::login::log_out(bytes, cookie),
        Route::Metrics => return Ok(metrics(shared)),
    };
    drop(head);
    answering.await
}

/// Whether the request has a body. Some may have none: an unlock of Terraform, which is refused with what to do instead, and a log-out.
fn has_body(route: Route, head: &Parts, incoming: &Incoming) -> bool {
    let may_lack = match route {
        Route::Terraform => routes::terraform::is_unlock(&head.method),
        other => other == Route::Logout,
    };
    !may_lack || head.headers.contains_key(CONTENT_TYPE) || !incoming.is_end_stream()
}

fn metrics(shared: &Shared) -> Answer {
    let routes: Vec<_> = Route::ALL.into_iter().map(|(_, path)| path).chain([dashboard::ROUTE]).collect();
    routes::metrics::answer(shared, &routes)
}

/// The answer to a request at the address for metrics, if it is not one of `open`.
fn metrics_only(shared: &Shared, head: &Parts) -> Answer {
    if head.method == Method::GET && head.uri.path() == paths::METRICS {
        return metrics(shared);
    }
    let detail = "this address has only /metrics, /healthz and /readyz";
    Problem::new(ProblemKind::NotFound, detail).into()
}
