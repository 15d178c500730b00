//! The backend: each verb is one script.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Backend, BackendInfo, Blocked, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, Error,
    ErrorKind, FailureDomain, Grant, Guarantee, OperatorAction, OperatorCommand, OwnerToken, Page, Query,
    ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Verb, Verdict, WhenBlocked,
    async_trait,
};
use redis::{Cmd, RedisWrite as _, Value};

use crate::{
    NAME,
    cluster::Node,
    config::{Config, Replicas},
    error::Fault,
    keys::{CHANNELS, Keys},
    replicas::Written,
    reply::Fields,
    route::{Journey, Route},
    script::{self, Script},
    sentinel,
    wait::Ear,
};
use leasehold_support::race::first;

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
/// let lease = Client::new(Arc::new(redis)).lease("report", "42").acquire().await?;
/// println!("token {}", lease.token());
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub struct Redis {
    pub(crate) info: BackendInfo,
    pub(crate) route: Route,
    ear: Ear,
    environment: Arc<dyn Environment>,
}

/// While nobody hears, whoever waits asks again this often.
const POLL_WHEN_DEAF: Duration = Duration::from_millis(500);
/// How often an eviction follows a seat that passes from hand to hand before it gives up.
const CHASE_MAX: u32 = 16;

impl Redis {
    /// Connects. Later on, a connection that is lost is made anew by whoever needs it.
    ///
    /// # Errors
    /// `Unavailable` if the server does not answer or is a replica; `Denied` if it refuses the user or the password;
    /// `Unsupported` if it is too old, or a node of a cluster and the URL does not say so, or the URL wants TLS and this build or process has none.
    ///
    /// # Cancel safety
    /// Dropped part-way, nothing is left but perhaps a connection that the server closes.
    pub async fn connect(config: Config, environment: Arc<dyn Environment>) -> Result<Redis> {
        let mut id = [0; 8];
        environment.fill(&mut id);
        let client = format!("{:016x}", u64::from_be_bytes(id));
        let redis = Redis {
            info: info(&config),
            ear: Ear::new(client, config.cluster),
            route: Route::open(config, Arc::clone(&environment)).await.map_err(Fault::into_error)?,
            environment,
        };
        match &redis.route {
            Route::Cluster(cluster) => cluster.tell(redis.ear.follower()),
            Route::One(node) if node.link.config.service.is_some() => {
                let (link, follower) = (Arc::downgrade(&node.link), redis.ear.follower());
                let follow = sentinel::follow(link, follower, Arc::clone(&redis.environment));
                redis.environment.spawn(Box::pin(follow));
            }
            Route::One(_) => {}
        }
        Ok(redis)
    }

    /// A call of a script on one resource; its own keys and arguments follow.
    pub(crate) fn call(&self, script: &Script, resource: &Resource, owner: &str, keys: usize) -> Cmd {
        let mut call = script.call(keys);
        Keys::of(resource).push_all(&mut call, owner);
        call
    }

    /// The arguments that every script on one resource begins with.
    pub(crate) fn common(&self, call: &mut Cmd, resource: &Resource) {
        call.arg(resource.key());
        match self.route {
            Route::One(_) => call.arg(CHANNELS),
            Route::Cluster(_) => call.arg(Keys::of(resource).channels()),
        };
        call.arg(self.ear.client());
    }

    fn acquire_call(&self, claim: &Claim, lead: u64) -> Cmd {
        let (owner, resource) = (claim.owner.reveal(), &claim.resource);
        let mut keys = Keys::of(resource);
        let mut call = script::ACQUIRE.call(10);
        keys.push_all(&mut call, &owner);
        let from = claim.takes_over_from.map(|from| from.owner.reveal()).unwrap_or_default();
        call.arg(keys.grave(if from.is_empty() { &owner } else { &from }));
        self.common(&mut call, resource);
        call.arg(&owner).arg(claim.share.weight()).arg(claim.share.capacity());
        call.arg(millis(claim.ttl)).arg(millis(claim.place_ttl));
        call.arg(u8::from(claim.when_blocked == WhenBlocked::Queue)).write_arg_fmt(&claim.holder);
        match &claim.note {
            None => call.arg(""),
            Some(note) => call.arg([b"n", &**note].concat()),
        };
        call.arg(claim.floor.map_or(0, leasehold_core::FencingToken::get)).arg(lead).arg(&from);
        match claim.takes_over_from.and_then(|from| from.tombstone) {
            None => call.arg(-1),
            Some(tombstone) => call.arg(millis(tombstone)),
        };
        call.arg(self.info.limits.queue);
        call
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Verdict, Fault> {
        let most = self.info.limits.note;
        if claim.note.as_ref().is_some_and(|note| note.len() > most) {
            let message = format!("a note has at most {most} bytes");
            return Err(Fault::Refused(Error::new(ErrorKind::Limit, message)));
        }
        if self.route.config().replicas != Replicas::None {
            return Box::pin(self.acquire_replicated(claim)).await;
        }
        // Listens before it asks: then nothing can be missed between the answer and the wait.
        let queues = claim.when_blocked == WhenBlocked::Queue && !self.ear.is_deaf(&claim.resource);
        let waiting = queues.then(|| self.ear.begin(claim.reference()));
        let make = |lead| Cow::Owned(self.acquire_call(claim, lead));
        let answer = self.route.run(&claim.resource, &script::ACQUIRE, &make).await;
        if matches!(&answer, Err(fault) if fault.is_try_again()) && self.can_do_without_the_others(claim) {
            return Box::pin(self.acquire_owner_alone(claim)).await;
        }
        let verdict = verdict(claim, self.named(claim.reference(), answer).await?)?;
        if let (Verdict::Blocked(blocked), Some(waiting)) = (&verdict, waiting)
            && blocked.queued
        {
            self.ear.keep_letters(waiting, blocked.cursor, self.environment.now(), claim.place_ttl);
        }
        Ok(verdict)
    }

    /// Gives it up again if too few replicas have it.
    async fn acquire_replicated(&self, claim: &Claim) -> Result<Verdict, Fault> {
        let mut journey = Journey::begin(self.environment.now());
        let (node, answer, written) = loop {
            let node = self.route.node(&claim.resource)?;
            let (answer, written) = match self.acquire_acknowledged(&node, claim).await {
                Ok((answer, written)) => (answer, Some(written)),
                Err(fault) => (Err(fault), None),
            };
            match &answer {
                Err(fault) if self.route.goes_on(&claim.resource, &node, fault, &mut journey).await => {}
                _ => break (node, answer, written),
            }
        };
        let answer = answer.inspect_err(|fault| self.route.learn(&claim.resource, &node, fault));
        let answer = answer.map_err(|fault| self.route.in_words(fault));
        let verdict = verdict(claim, self.named(claim.reference(), answer).await?)?;
        let Verdict::Granted(grant) = verdict else { return Ok(verdict) };
        let why = match written.as_ref().map(Written::enough) {
            Some(Ok(acks)) => return Ok(Verdict::Granted(grant.acknowledged(acks))),
            Some(Err(why)) => why,
            None => return Err(Fault::Strange("a grant has no answer".to_owned())),
        };
        let request =
            ReleaseRequest::new(claim.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(claim.ttl));
        let effect = if self.try_release(&request).await.is_ok() { Effect::None } else { Effect::Unknown };
        Err(why(effect))
    }

    async fn acquire_acknowledged(
        &self,
        node: &Node,
        claim: &Claim,
    ) -> Result<(Result<Value, Fault>, Written), Fault> {
        let wire = node.pool.take(&node.link).await?;
        node.pool.await_replicas(&wire, &node.link).await?;
        let calls = vec![self.acquire_call(claim, wire.lead())];
        let mut keys = Keys::of(&claim.resource);
        let done = node.pool.run(wire, &node.link, &script::ACQUIRE, calls, keys.mark()).await;
        let mut done = done.inspect_err(|_| node.pool.clear())?;
        let answer = done.answers.pop().unwrap_or_else(|| Err(Fault::Strange("no answer came".to_owned())));
        Ok((answer, done))
    }

    /// Finds out which key is of a wrong type, if one is.
    async fn named(&self, claim: ClaimRef, answer: Result<Value, Fault>) -> Result<Value, Fault> {
        match answer {
            Err(fault) if fault.is_wrong_type() => {
                Err(Box::pin(self.name_wrong_type(&claim)).await.unwrap_or(fault))
            }
            answer => answer,
        }
    }

    async fn name_wrong_type(&self, claim: &ClaimRef) -> Option<Fault> {
        let keys = Keys::of(&claim.resource).all(claim.owner);
        let asks: Vec<Cmd> = keys.iter().map(|key| Cmd::new().arg("TYPE").arg(key).to_owned()).collect();
        let node = self.route.node(&claim.resource).ok()?;
        let wire = node.link.wire().await.ok()?;
        let due = ["string", "string", "zset", "hash", "zset", "zset", "hash", "zset", "stream", "string"];
        let types = node.link.pipe(&wire, &asks).await;
        keys.into_iter().zip(types).zip(due).find_map(|((key, answer), due)| {
            let Ok(Value::SimpleString(found)) = answer else { return None };
            let wrong = found != due && found != "none";
            let message = || format!("{key} is a {found}, not a {due}: leasehold did not write it");
            wrong.then(|| {
                let error = Error::new(ErrorKind::Corrupt, message());
                Fault::Refused(error.with_effect(Effect::Unknown))
            })
        })
    }

    fn release_call(&self, request: &ReleaseRequest) -> Cmd {
        let owner = request.owner.reveal();
        let mut call = self.call(&script::RELEASE, &request.resource, &owner, 9);
        self.common(&mut call, &request.resource);
        call.arg(&owner);
        match request.tombstone {
            None => call.arg(-1),
            Some(tombstone) => call.arg(millis(tombstone)),
        };
        match request.keep_for.filter(|keep_for| !keep_for.is_zero()) {
            None => call.arg(0),
            Some(keep_for) => call.arg(at_least_a_milli(keep_for)),
        };
        call
    }

    async fn try_release(&self, request: &ReleaseRequest) -> Result<Released, Fault> {
        let make = |_| Cow::Owned(self.release_call(request));
        let answer = match self.route.run(&request.resource, &script::RELEASE, &make).await {
            Err(fault) if fault.is_try_again() => {
                return Box::pin(self.release_owner_alone(request, fault)).await;
            }
            answer => answer,
        };
        let claim = ClaimRef { resource: request.resource.clone(), owner: request.owner };
        match Fields::of(self.named(claim, answer).await?)?.int()? {
            1 => Ok(Released::Now),
            _ => Ok(Released::AlreadyGone),
        }
    }

    async fn wait_for_news(&self, claim: &ClaimRef, since: Cursor, at_most: Duration) -> Result<(), Fault> {
        if let Some(waiting) = self.ear.take_letters(claim, since) {
            waiting.woken().await;
            return Ok(());
        }
        let waiting = self.ear.begin(claim.clone());
        self.ear.attend(&self.route, &claim.resource, &self.environment);
        let patience = self.environment.sleep(self.route.config().connect_timeout);
        first(self.ear.hears(&claim.resource), patience).await;
        let owner = claim.owner.reveal();
        let mut call = self.call(&script::WATCH, &claim.resource, &owner, 9);
        self.common(&mut call, &claim.resource);
        call.arg(&owner).arg(format!("{:012x}", since.0)).arg(at_least_a_milli(at_most));
        let moving = match self.route.run(&claim.resource, &script::WATCH, &|_| Cow::Borrowed(&call)).await {
            Err(fault) if fault.is_try_again() => true,
            Err(fault) => return Err(fault),
            Ok(answer) => {
                match Fields::of(answer)?.int()? {
                    1 => return Ok(()),
                    0 => waiting.has_place(),
                    _ => {}
                }
                false
            }
        };
        if moving || self.ear.is_deaf(&claim.resource) {
            first(waiting.woken(), self.environment.sleep(POLL_WHEN_DEAF)).await;
        } else {
            waiting.woken().await;
        }
        Ok(())
    }

    async fn try_order(&self, order: &OperatorCommand) -> Result<CommandOutcome, Fault> {
        let number = match order.action {
            OperatorAction::Ask { within } => millis(within),
            OperatorAction::Pause { lasting } => millis(lasting),
            OperatorAction::Resize { capacity } => u64::from(capacity.get()),
            _ => 0,
        };
        let mut meant = String::new();
        for _ in 0..CHASE_MAX {
            let mut call = script::ORDER.call(10);
            let mut keys = Keys::of(&order.resource);
            keys.push_all(&mut call, &meant);
            call.arg(keys.audit());
            self.common(&mut call, &order.resource);
            call.arg(&meant).arg(order.token.map_or(0, leasehold_core::FencingToken::get));
            call.arg(&order.by).arg(&order.why).arg(order.action.as_str()).arg(number);
            let answer = self.route.run(&order.resource, &script::ORDER, &|_| Cow::Borrowed(&call)).await;
            let claim = ClaimRef { resource: order.resource.clone(), owner: OwnerToken::from_bytes([0; 16]) };
            let mut fields = Fields::of(self.named(claim, answer).await?)?;
            match fields.text()?.as_str() {
                "done" => return Ok(CommandOutcome::Done),
                "who" => meant = fields.text()?,
                _ => return Ok(CommandOutcome::HolderChanged { token: fields.maybe_token()? }),
            }
        }
        let message = "the holders change too fast: say which token you mean";
        Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message)))
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
    info
}

pub(crate) fn verdict(claim: &Claim, answer: Value) -> Result<Verdict, Fault> {
    let mut fields = Fields::of(answer)?;
    match fields.text()?.as_str() {
        "granted" => {
            let grant = Grant::new(fields.token()?, fields.millis()?.unwrap_or_default());
            let ahead = fields.micros()?;
            if ahead > AHEAD_MAX {
                let resource = claim.resource.id_hash();
                tracing::warn!(%resource, ?ahead, "tokens of this resource are ahead of the server's clock");
            }
            Ok(Verdict::Granted(grant))
        }
        "blocked" => {
            let mut blocked = Blocked::default();
            blocked.queued = fields.int()? == 1;
            blocked.ahead = fields.count()?;
            blocked.changes_in = fields.millis()?;
            blocked.paused = fields.int()? == 1;
            blocked.cursor = fields.cursor()?;
            blocked.holders = fields.each(Fields::holder)?;
            Ok(Verdict::Blocked(blocked))
        }
        "buried" => Ok(Verdict::Cancelled),
        "mismatch" => Ok(Verdict::Mismatch { capacity: fields.count()? }),
        other => Err(Fault::Strange(format!("a claim was answered with {other:.20?}"))),
    }
}

/// A token further ahead of the clock than this is reported: if the data is lost now, tokens go back.
const AHEAD_MAX: Duration = Duration::from_secs(3600);

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(MILLIS_MAX)
}

pub(crate) fn at_least_a_milli(duration: Duration) -> u64 {
    millis(duration).max(1)
}

/// A hundred years: beyond, sums would no longer be exact.
const MILLIS_MAX: u64 = 100 * 366 * 86_400_000;

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("route", &self.route).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Redis {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.route.failure_domain(resource)
    }

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        let at = |fault: Fault| fault.into_error().at(Verb::Acquire, NAME).on(&claim.resource);
        self.try_acquire(claim).await.map_err(at)
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.renew_batch(held).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        let at = |fault: Fault| fault.into_error().at(Verb::Release, NAME).on(&request.resource);
        self.try_release(request).await.map_err(at)
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let woken = self.wait_for_news(claim, *since, at_most);
        match first(woken, self.environment.sleep(at_most)).await {
            leasehold_support::race::Either::Left(Err(fault)) => {
                let error = fault.into_error().with_effect(Effect::None);
                Err(error.at(Verb::Wait, NAME).on(&claim.resource))
            }
            _ => Ok(()),
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let at = |fault: Fault| fault.into_error().with_effect(Effect::None).at(Verb::Inspect, NAME);
        self.answer(query).await.map_err(at)
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let at = |fault: Fault| fault.into_error().at(Verb::Order, NAME).on(&order.resource);
        self.try_order(order).await.map_err(at)
    }
}
