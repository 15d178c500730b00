//! The backend itself: what it consists of, and the verbs of the contract. Each verb has a file of its own.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, Error, FailureDomain,
    OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Verb,
    Verdict, async_trait,
};
use leasehold_support::race::{Either, first};

use crate::{
    NAME, config::Config, connections::Connections, listener::WakeupListener, statements::Statements,
};

/// Leases in PostgreSQL.
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold_core::Error> {
/// use leasehold::{Client, System};
/// use leasehold_postgres::{Config, Postgres};
/// use std::sync::Arc;
///
/// let config = Config::parse("postgres://app@127.0.0.1/app?password_file=/run/secrets/db")?;
/// let postgres = Postgres::connect(config, Arc::new(System::current())).await?;
/// let lease = Client::new(Arc::new(postgres)).lease("report", "42").acquire().await?;
/// println!("token {}", lease.token());
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub struct Postgres {
    pub(crate) connections: Arc<Connections>,
    pub(crate) statements: Statements,
    pub(crate) listener: WakeupListener,
    pub(crate) environment: Arc<dyn Environment>,
}

impl Postgres {
    /// Connects, and creates the tables if they do not exist. A connection that is lost later is replaced by the next
    /// request that needs one.
    ///
    /// # Cancel safety
    /// The tables may still be created.
    ///
    /// # Errors
    /// `Unavailable` if no server answers or takes writes; `Denied` if it refuses the user or the password, or the role
    /// may not create or use the tables; `Invalid` if the database does not exist; `Unsupported` if the server is too old,
    /// the tables are of a newer release, or the URL asks for TLS and this build or the server has none.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Postgres> {
        let connections = Arc::new(Connections::new(config, Arc::clone(&environment)));
        let functions = connections.start().await.map_err(|error| error.with_effect(Effect::None))?;
        let statements = Statements::new(&connections.config.schema, functions);
        let listener = WakeupListener::new(environment.random(), &connections.config.schema, functions);
        Ok(Postgres { connections, statements, listener, environment })
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("connections", &self.connections).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Postgres {
    fn info(&self) -> &BackendInfo {
        self.connections.info()
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        self.acquire_all(claims).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.renew_all(requests).await
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        self.release_all(requests).await
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let wakeup = self.wait_for_wakeup(claim, *since, at_most);
        match first(wakeup, self.environment.sleep(at_most)).await {
            Either::Left(Err(error)) => {
                Err(error.with_effect(Effect::None).at(Verb::Wait, NAME).on(&claim.resource))
            }
            _ => Ok(()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let in_context = |error: Error| error.with_effect(Effect::None).at(Verb::Inspect, NAME);
        self.try_inspect(query).await.map_err(in_context)
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let in_context = |error: Error| error.at(Verb::Order, NAME).on(&order.resource);
        self.try_order(order).await.map_err(in_context)
    }
}
