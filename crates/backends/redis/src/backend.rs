//! The backend: [`Redis`], and the trait [`Backend`] over the verbs, which have a file each.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, Error, ErrorKind,
    FailureDomain, Guarantee, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal,
    Resource, Result, Verb, Verdict, async_trait,
};
use redis::{Cmd, Value};

use crate::{
    NAME,
    config::{Config, Replicas},
    contended::ContendedResources,
    error::StoreError,
    keys::{KEY_TYPES, Keys, WAKEUP_CHANNEL_PREFIX},
    list::ListedResources,
    listener::WakeupListener,
    router::Router,
    script::Script,
    sentinel,
};

/// Leases in Redis.
///
/// ```no_run
/// # async fn example() -> Result<(), leasehold_core::Error> {
/// use leasehold::{Client, System};
/// use leasehold_redis::{Config, Redis};
/// use std::sync::Arc;
///
/// let config = Config::parse("redis://127.0.0.1/")?;
/// let redis = Redis::connect(config, Arc::new(System::current())).await?;
/// let leases = Client::new(Arc::new(redis));
/// leases.lease("report", "42").run(async |lease| println!("token {}", lease.token())).await?;
/// # Ok(()) }
/// ```
pub struct Redis {
    pub(crate) info: BackendInfo,
    pub(crate) router: Router,
    pub(crate) listener: WakeupListener,
    pub(crate) contended: ContendedResources,
    pub(crate) listed: ListedResources,
    pub(crate) environment: Arc<dyn Environment>,
}

impl Redis {
    /// Connects. If a connection is lost later, the next call makes a new one.
    ///
    /// # Cancel safety
    /// If this is dropped part-way, at most a connection is left, which the server closes.
    ///
    /// # Errors
    /// `Unavailable` if the server does not answer or is a replica; `Denied` if it refuses the user or the
    /// password; `Unsupported` if the server is too old, if it is a node of a cluster and the URL does not
    /// say so, or if the URL wants TLS and this build has none.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Redis> {
        // From the secure source of randomness: two clients with one id would get each other's wake-ups.
        let mut id = [0; 8];
        environment.fill(&mut id);
        let client_id = format!("{:016x}", u64::from_be_bytes(id));
        let redis = Redis {
            info: info(&config),
            listener: WakeupListener::new(client_id, config.cluster),
            contended: ContendedResources::default(),
            listed: ListedResources::default(),
            router: Router::open(config, Arc::clone(&environment)).await.map_err(StoreError::into_error)?,
            environment,
        };
        match &redis.router {
            Router::Cluster(cluster) => cluster.set_observer(redis.listener.observer()),
            Router::Single(node) if node.connections.config.service.is_some() => {
                let (connections, observer) = (Arc::downgrade(&node.connections), redis.listener.observer());
                let watch = sentinel::watch_primary(connections, observer, Arc::clone(&redis.environment));
                redis.environment.spawn(Box::pin(watch));
            }
            Router::Single(_) => {}
        }
        Ok(redis)
    }

    /// A call of a script with the first nine keys of `scripts/resource.lua`. Further keys and the arguments
    /// follow.
    pub(crate) fn call(&self, script: &Script, resource: &Resource, owner: &str, key_count: usize) -> Cmd {
        let mut call = script.call(key_count);
        Keys::of(resource).push_all(&mut call, owner);
        call
    }

    /// Adds the arguments that every script on one resource begins with. The third one is the id of the listener, with a `+`
    /// if it receives the wake-ups for this resource now.
    pub(crate) fn push_common_arguments(&self, call: &mut Cmd, resource: &Resource) {
        call.arg(resource.key());
        match self.router {
            Router::Single(_) => call.arg(WAKEUP_CHANNEL_PREFIX),
            Router::Cluster(_) => call.arg(Keys::of(resource).wakeup_channel_prefix()),
        };
        if self.listener.is_connected(resource) {
            call.arg(format!("+{}", self.listener.client_id()));
        } else {
            call.arg(self.listener.client_id());
        }
    }

    /// If the server says that a key has a wrong type, finds out which key.
    pub(crate) async fn name_wrong_type(
        &self,
        claim: ClaimRef,
        reply: Result<Value, StoreError>,
    ) -> Result<Value, StoreError> {
        match reply {
            // Boxed below, because that future is large and hardly ever needed.
            Err(error) if error.is_wrong_type() => {
                Err(Box::pin(self.find_wrong_type(&claim)).await.unwrap_or(error))
            }
            reply => reply,
        }
    }

    async fn find_wrong_type(&self, claim: &ClaimRef) -> Option<StoreError> {
        let keys = Keys::of(&claim.resource).all(claim.owner);
        let questions: Vec<Cmd> = keys.iter().map(|key| Cmd::new().arg("TYPE").arg(key).to_owned()).collect();
        let node = self.router.node(&claim.resource).ok()?;
        let connection = node.connections.get().await.ok()?;
        let types = node.connections.send_all(&connection, &questions).await;
        // Not the owner key: there, any other type is a foreign lock.
        keys.into_iter().zip(types).zip(KEY_TYPES).skip(1).find_map(|((key, reply), expected)| {
            let Ok(Value::SimpleString(found)) = reply else { return None };
            let is_wrong = found != expected && found != "none";
            is_wrong.then(|| {
                let message = format!(
                    "key {key} is a {found}, not a {expected}: leasehold did not write it; rename or delete it"
                );
                // A script may have written other keys before it came to this one.
                StoreError::Translated(Error::new(ErrorKind::Corrupt, message).with_effect(Effect::Unknown))
            })
        })
    }
}

fn info(config: &Config) -> BackendInfo {
    let mut info = BackendInfo::new(NAME, Guarantee::BestEffort);
    info.because = "the server answers before its replicas know: a failover can grant twice".into();
    info.tokens_break_when = if config.service.is_some() || config.cluster {
        "the clocks of two primaries differ by more than a minute, or data is lost while the last token is ahead of \
         the clock"
            .into()
    } else {
        "the server's clock goes back and its data is lost, or a failover is faster than its clocks are apart"
            .into()
    };
    // On a cluster the keys of a script must be in one slot, and with `replicas=` each grant has its own connection.
    if !config.cluster && config.replicas == Replicas::None {
        info.limits.gather = GATHERED_MAX;
        info.limits.calls_in_flight = CALLS_IN_FLIGHT;
    }
    info
}

/// How many claims, or releases, one script carries out. The server serves no other client meanwhile.
const GATHERED_MAX: usize = 16;
/// How many calls are under way before the engine gathers: while the server works on one, the next has arrived, and the
/// client reads the replies to the one before. With 2, 64 tasks make a quarter fewer pairs.
const CALLS_IN_FLIGHT: usize = 3;

/// A hundred years. With longer times, sums in Lua would no longer be exact.
const MILLIS_MAX: u64 = 100 * 366 * 86_400_000;

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(MILLIS_MAX)
}

/// As [`millis`], and at least 1: Redis refuses an expiry of 0.
pub(crate) fn at_least_one_milli(duration: Duration) -> u64 {
    millis(duration).max(1)
}

/// The argument for a note: an `n` and the note, or nothing. So an empty note differs from none.
pub(crate) fn note_argument(note: Option<&[u8]>) -> Vec<u8> {
    note.map(|note| [b"n", note].concat()).unwrap_or_default()
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("router", &self.router).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Redis {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.router.failure_domain(resource)
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let at =
            |error: StoreError, claim: &Claim| error.into_error().at(Verb::Acquire, NAME).on(&claim.resource);
        match claims {
            [claim] => vec![self.try_acquire(claim).await.map_err(|error| at(error, claim))],
            claims => {
                let outcomes = self.acquire_batch(claims).await.into_iter().zip(claims);
                outcomes.map(|(outcome, claim)| outcome.map_err(|error| at(error, claim))).collect()
            }
        }
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.renew_batch(requests).await
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        let at = |error: StoreError, request: &ReleaseRequest| {
            error.into_error().at(Verb::Release, NAME).on(&request.resource)
        };
        match requests {
            [request] => vec![self.try_release(request).await.map_err(|error| at(error, request))],
            requests => {
                let outcomes = self.release_batch(requests).await.into_iter().zip(requests);
                outcomes.map(|(outcome, request)| outcome.map_err(|error| at(error, request))).collect()
            }
        }
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let at = |error: StoreError| {
            error.into_error().with_effect(Effect::None).at(Verb::Wait, NAME).on(&claim.resource)
        };
        self.wait_at_most(claim, *since, at_most).await.map_err(at)
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let at = |error: StoreError| error.into_error().with_effect(Effect::None).at(Verb::Inspect, NAME);
        self.try_inspect(query).await.map_err(at)
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        let at = |error: StoreError| error.into_error().at(Verb::Order, NAME).on(&command.resource);
        self.try_order(command).await.map_err(at)
    }
}
