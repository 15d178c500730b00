//! Sends a request, and checks that the answer belongs to it.
//!
//! 1. Every request carries an id. Renewals and releases use a pool of connections of their own.
//! 2. An answer must have the headers of a leasehold server, the id of its request, and the id of the store of the first answer.
//!    Its body is bounded.
//! 3. If anything is wrong, or the caller goes away before the answer, the connection is not used again: the answer may still
//!    come, and would be taken for that of the next request.
//! 4. After an answer of another store, no grant is believed for a while: another client of the same address may hold the same lease
//!    on that store.
//! 5. Nothing is sent twice, with one exception: after the server has refused the token, and the file has another one by now.

use std::{
    fmt,
    future::Future,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    HeaderMap, Method, Request, Response,
    body::Incoming,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT},
};
use hyper_util::client::legacy::{
    Client,
    connect::{CaptureConnection, capture_connection},
};
use leasehold_api::{API_HEADER, JSON, Problem, REQUEST_HEADER, STORE_HEADER, fields::StoreId};
use leasehold_core::{Environment, Error, RequestId, RequestIds, Result, Timestamp, WallTime};
use leasehold_support::race::{Either, first};
use serde::de::DeserializeOwned;

use crate::{config::Config, connector::Connector, credentials::Credentials, error};

/// The largest body of an answer: a page of a thousand resources with long notes.
const ANSWER_MAX: usize = 64 << 20;
/// Less than the minute after which the server closes an idle connection, so that no request meets a closed one.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Idle connections that are kept.
const IDLE_CONNECTIONS_MAX: usize = 8;
const UNAUTHENTICATED: u16 = 401;
/// How long no grant is believed after an answer of another store.
const TWO_STORES_FOR: Duration = Duration::from_secs(60);

type Pool = Client<Connector, Full<Bytes>>;

/// Which connections a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    /// Claims, waits, queries, orders.
    Claims,
    /// Renewals and releases. Nothing else delays them.
    Leases,
}

/// A request to the server.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) pool: PoolKind,
    method: Method,
    /// With its query.
    path: String,
    body: Bytes,
    /// How long the answer may take.
    at_most: Duration,
    /// It may be sent again after the server refused the token.
    may_repeat: bool,
    /// A caller that goes away is no sign of a dead connection: waits are dropped all the time.
    is_wait: bool,
}

impl Call {
    pub(crate) fn get(path: String, at_most: Duration) -> Call {
        let (pool, method, body) = (PoolKind::Claims, Method::GET, Bytes::new());
        Call { pool, method, path, body, at_most, may_repeat: true, is_wait: false }
    }

    pub(crate) fn post(path: &str, body: Vec<u8>, at_most: Duration) -> Call {
        let (pool, method, body) = (PoolKind::Claims, Method::POST, Bytes::from(body));
        Call { pool, method, path: path.to_owned(), body, at_most, may_repeat: true, is_wait: false }
    }

    pub(crate) fn on(self, pool: PoolKind) -> Call {
        Call { pool, ..self }
    }

    pub(crate) fn never_repeated(self) -> Call {
        Call { may_repeat: false, ..self }
    }

    pub(crate) fn waiting(self) -> Call {
        Call { is_wait: true, ..self }
    }
}

/// An answer of our server, on our store, to our request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
    connection: ConnectionGuard,
    /// Its request had a token.
    has_token: bool,
}

/// Takes a connection out of its pool when it is dropped, unless it is to be kept.
struct ConnectionGuard {
    captured: CaptureConnection,
    is_kept: bool,
}

impl ConnectionGuard {
    /// Whether there was a connection. Without one nothing was sent.
    fn was_connected(&self) -> bool {
        self.captured.connection_metadata().is_some()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        if let Some(connection) = self.captured.connection_metadata().as_ref() {
            connection.poison();
        }
    }
}

impl Answer {
    /// The connection is not used again: the answer does not fit the request.
    pub(crate) fn distrust(&mut self) {
        self.connection.is_kept = false;
    }

    /// The document of a refusal.
    ///
    /// # Errors
    /// If the answer has none.
    pub(crate) fn problem(&self) -> Result<Problem, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// The body of a reply, or the error of a refusal.
    ///
    /// # Errors
    /// The error of the refusal. `Unavailable` with the effect unknown if the body cannot be read.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, server: &str) -> Result<T> {
        let read = match self.status {
            200..300 => serde_json::from_slice(&self.body).map(Ok),
            UNAUTHENTICATED => {
                self.problem().map(|problem| Err(error::refused_token(server, &problem, self.has_token)))
            }
            400.. => self.problem().map(|problem| Err(Error::from(&problem))),
            status => return Err(error::not_leasehold(server, status)),
        };
        read.unwrap_or_else(|why| {
            self.distrust();
            Err(error::unreadable(server, &why))
        })
    }
}

/// The connections to one server, or to several behind one address.
pub(crate) struct Connections {
    pub(crate) config: Arc<Config>,
    /// The address, for messages and for requests.
    pub(crate) server: String,
    environment: Arc<dyn Environment>,
    claims: Pool,
    leases: Pool,
    request_ids: RequestIds,
    credentials: Credentials,
    /// The store of the first answer.
    store: OnceLock<StoreId>,
    /// When another store has answered last.
    another_store_at: Mutex<Option<Timestamp>>,
}

impl Connections {
    /// Prepares the connections. The first request opens one.
    ///
    /// # Errors
    /// If the token or a certificate cannot be read, or if this build has no TLS.
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Result<Connections> {
        let config = Arc::new(config);
        let connector = Connector::new(&config, &environment)?;
        let pool = || {
            Client::builder(Executor(Arc::clone(&environment)))
                .pool_idle_timeout(IDLE_MAX)
                .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
                .build(connector.clone())
        };
        Ok(Connections {
            server: config.address(),
            claims: pool(),
            leases: pool(),
            request_ids: RequestIds::starting_at(environment.random()),
            credentials: Credentials::new(config.token.clone())?,
            store: OnceLock::new(),
            another_store_at: Mutex::default(),
            environment,
            config,
        })
    }

    pub(crate) fn wall(&self) -> WallTime {
        self.environment.wall()
    }

    /// The store of the first answer.
    pub(crate) fn store(&self) -> Option<&StoreId> {
        self.store.get()
    }

    /// Sends the request, and returns the answer to it.
    ///
    /// # Errors
    /// If there is no such answer. The error has its effect.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer> {
        let answer = self.send(call).await?;
        if answer.status == UNAUTHENTICATED && call.may_repeat && self.credentials.reload() {
            return self.send(call).await;
        }
        Ok(answer)
    }

    async fn send(&self, call: &Call) -> Result<Answer> {
        let id = self.request_ids.next();
        let mut request = self.request(call, id)?;
        let captured = capture_connection(&mut request);
        let mut connection = ConnectionGuard { captured, is_kept: call.is_wait };
        let pool = if call.pool == PoolKind::Leases { &self.leases } else { &self.claims };
        let exchange = async {
            let response = pool.request(request).await.map_err(|error| self.failed(&error))?;
            self.read(response, id).await
        };
        let answered = first(exchange, self.environment.sleep(call.at_most)).await;
        connection.is_kept = false; // until the answer has passed all checks
        match answered {
            Either::Left(Ok((status, body))) => {
                connection.is_kept = true;
                Ok(Answer { status, body, connection, has_token: self.credentials.header().is_some() })
            }
            Either::Left(Err(error)) => Err(error),
            Either::Right(()) if connection.was_connected() => {
                Err(error::no_answer(&self.server, call.at_most))
            }
            Either::Right(()) => Err(error::no_connection(&self.server, call.at_most)),
        }
    }

    fn request(&self, call: &Call, id: RequestId) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.server, call.path))
            .header(REQUEST_HEADER, id.to_string())
            .header(USER_AGENT, concat!("leasehold/", env!("CARGO_PKG_VERSION")));
        if call.method == Method::POST {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static(JSON));
        }
        if let Some(token) = self.credentials.header() {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(call.body.clone()));
        // The address was checked, and everything else is ours: this would be a bug.
        request.map_err(|why| error::unreadable(&self.server, &why).with_effect(leasehold_core::Effect::None))
    }

    fn failed(&self, error: &hyper_util::client::legacy::Error) -> Error {
        if error.is_connect() {
            error::cannot_connect(&self.server, error)
        } else {
            error::broken(&self.server, error)
        }
    }

    async fn read(&self, response: Response<Incoming>, id: RequestId) -> Result<(u16, Bytes)> {
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        self.check_headers(&head.headers, status, id)?;
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        let body = body.map_err(|why| error::broken(&self.server, &*why))?;
        Ok((status, body.to_bytes()))
    }

    fn check_headers(&self, headers: &HeaderMap, status: u16, id: RequestId) -> Result<()> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let is_ours = text(API_HEADER).is_some_and(|version| version.starts_with("1."));
        let (Some(store), true) = (text(STORE_HEADER), is_ours) else {
            return Err(error::not_leasehold(&self.server, status));
        };
        id.check_text(text(REQUEST_HEADER).unwrap_or("").as_bytes(), &self.server)?;
        let named: StoreId = store.parse().map_err(|why: Error| error::unreadable(&self.server, &why))?;
        let ours = self.store.get_or_init(|| named.clone());
        if *ours == named {
            return Ok(());
        }
        *self.another_store_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.environment.now());
        Err(error::another_store(&self.server, ours, store))
    }

    /// Whether all answers of the last time came from one store.
    ///
    /// # Errors
    /// `Unavailable`, without an effect, if they did not.
    pub(crate) fn check_one_store(&self) -> Result<()> {
        let seen = *self.another_store_at.lock().unwrap_or_else(PoisonError::into_inner);
        match seen {
            Some(at) if self.environment.now() < at.after(TWO_STORES_FOR) => {
                Err(error::two_stores(&self.server, TWO_STORES_FOR))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Runs the tasks of the connections where the client's other tasks run.
#[derive(Clone)]
struct Executor(Arc<dyn Environment>);

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(Box::pin(task));
    }
}
