//! The backend and its connections. Each verb is in the file of its name.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_api::{info::InfoReply, routes};
use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, Error, FailureDomain,
    OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Verb,
    Verdict, async_trait,
};

use crate::{
    NAME,
    config::Config,
    connection::{Call, Connections, PoolKind},
    wait_requests::WaitRequests,
};

/// How many calls of a verb may be under way before the engine gathers: each has a connection of its own.
const CALLS_IN_FLIGHT: usize = 4;

/// Leases over HTTP, from a leasehold server.
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold_core::Error> {
/// use leasehold::{Client, System};
/// use leasehold_http::{Config, Http};
/// use std::sync::Arc;
///
/// let config = Config::parse("https://leases.internal")?.token("lh_7f_…");
/// let http = Http::connect(config, Arc::new(System::current())).await?;
/// let lease = Client::new(Arc::new(http)).lease("report", "42").acquire().await?;
/// println!("token {}", lease.token());
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub struct Http {
    info: BackendInfo,
    pub(crate) connections: Arc<Connections>,
    pub(crate) wait_requests: Arc<WaitRequests>,
}

impl Http {
    /// Asks the server what it and its store are. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// `Unavailable` if the server does not answer, or something else does. `Denied` if it refuses the token, or if its certificate
    /// is not trusted. `Invalid` if a file cannot be read, or if the server does not answer for this host name. `Unsupported` for
    /// `https` in a build without TLS.
    ///
    /// # Cancel safety
    /// It leaves nothing behind if it is dropped part-way.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Http> {
        let connections = Arc::new(Connections::new(config, Arc::clone(&environment))?);
        let call = Call::get(routes::INFO.to_owned(), connections.config.timeout);
        let without_effect = |error: Error| error.with_effect(Effect::None);
        let mut answer = connections.call(&call).await.map_err(without_effect)?;
        let reply: InfoReply = answer.read(&connections.server).map_err(without_effect)?;
        // Renewals have a connection of their own. It is opened now, and shows whether another server at this address has another
        // store.
        connections.call(&call.on(PoolKind::Leases)).await.map_err(without_effect)?;
        let mut info = reply.backend_info();
        info.limits.calls_in_flight = CALLS_IN_FLIGHT;
        let wait_requests = WaitRequests::new(Arc::clone(&connections), environment, reply.limits.entries);
        Ok(Http { info, connections, wait_requests })
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// Adds the verb to an error that does not name one. One of the store behind the server does.
fn named(error: Error, verb: Verb) -> Error {
    if error.verb().is_some() { error } else { error.at(verb, NAME) }
}

/// Adds verb and resource to the errors of a list.
fn named_all<Q, T>(
    verb: Verb,
    requests: &[Q],
    resource: fn(&Q) -> &Resource,
    results: Vec<Result<T>>,
) -> Vec<Result<T>> {
    let with_name =
        |(request, result): (&Q, Result<T>)| result.map_err(|error| named(error, verb).on(resource(request)));
    requests.iter().zip(results).map(with_name).collect()
}

#[async_trait]
impl Backend for Http {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    /// All resources fail together, with the server. It splits a list by the failure domains of its store itself.
    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        named_all(Verb::Acquire, claims, |claim| &claim.resource, self.try_acquire(claims).await)
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        named_all(Verb::Renew, requests, |request| &request.resource, self.try_renew(requests).await)
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        named_all(Verb::Release, requests, |request| &request.resource, self.try_release(requests).await)
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let failed = |error: Error| named(error, Verb::Wait).with_effect(Effect::None).on(&claim.resource);
        self.try_wait(claim, *since, at_most).await.map_err(failed)
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let failed = |error: Error| named(error, Verb::Inspect).with_effect(Effect::None);
        self.try_inspect(query).await.map_err(failed)
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        let failed = |error: Error| named(error, Verb::Order).on(&command.resource);
        self.try_order(command).await.map_err(failed)
    }
}
