//! Looks at all resources of the store again and again, while somebody wants to know: for `/v1/overview` and `/v1/events`.
//!
//! 1. One task reads the list of resources, and keeps it as a [`Sample`].
//! 2. It compares the sample with the one before ([`changes`]), numbers what has changed ([`history`]) and counts it ([`activity`]).
//! 3. It looks every two seconds, or after ten times as long as a look takes, if that is more: so it takes a tenth of the time at most.
//! 4. When nobody has asked for a minute, it stops. The next request waits for a new sample, and streams from before read anew.
//!
//! It sees what it samples: a lease that comes and goes in between leaves no change.

mod activity;
mod changes;
mod deadlocks;
mod history;
mod row;
mod sample;
pub(crate) mod timeline;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use leasehold_api::{
    Problem,
    events::{ResyncReason, SampledBody},
    fields,
    overview::{LastHourBody, RATE_MINUTE_MS, RatesBody},
};
use leasehold_core::{
    AuditRecord, Environment, Error, ErrorKind, Listing, Page, Query, Result, Snapshot, WallTime,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use activity::Activity;
pub(crate) use history::Next;
use history::{Found, History};
use leasehold_support::processes::ProcessTable;
use sample::Look;
pub(crate) use sample::{Sample, Search};

use crate::{
    access::Scope,
    config::{SampleWhen, Sampling},
    store::Store,
    store_health::StoreHealth,
};

/// After this long without a request the sampler stops.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// A look may take one part of so many of the time.
const SHARE_OF_TIME: u32 = 10;
/// The most resources of a sample.
const RESOURCES_MAX: usize = 200_000;
/// How many of the newest operators' commands are looked at.
const AUDIT_MAX: u32 = 100;

/// The sampler of a server.
#[derive(Debug)]
pub(crate) struct Sampler {
    config: Sampling,
    store: Store,
    /// Its servers are asked while somebody wants to know.
    health: Arc<StoreHealth>,
    environment: Arc<dyn Environment>,
    processes: ProcessTable,
    started: Instant,
    state: Mutex<State>,
    /// Somebody has asked.
    asked: Notify,
    /// Counts looks at the store, whether they worked or not.
    looked: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    /// `None` while the sampler is stopped, and before its first sample.
    sample: Option<Arc<Sample>>,
    /// Since when it has looked without a break.
    since: WallTime,
    /// The same as a minute since the server's start.
    first_minute: u64,
    /// Why the last look failed.
    failed: Option<Error>,
    history: History,
    activity: Activity,
    asked_at: Option<Instant>,
    /// The time from the beginning of one look to the next.
    every: Duration,
}

/// What the sampler knows.
#[derive(Debug)]
pub(crate) struct Latest {
    pub(crate) sample: Arc<Sample>,
    pub(crate) since: WallTime,
    /// How often it looks.
    pub(crate) every: Duration,
    /// A resource is stuck when a claim has waited this long.
    pub(crate) stuck_after: Duration,
    /// The kind of error of the last look, if it failed.
    pub(crate) failing: Option<String>,
    /// The id of the newest change.
    pub(crate) event_id: String,
}

impl Sampler {
    /// Starts the task. It ends when the last reference is gone.
    pub(crate) fn start(
        store: Store,
        health: Arc<StoreHealth>,
        environment: Arc<dyn Environment>,
        config: Sampling,
    ) -> Arc<Sampler> {
        let mut server = [0; 4];
        environment.fill(&mut server);
        let history = History::new(format!("{:08x}", u32::from_ne_bytes(server)), config.changes);
        let (since, asked_at) = (environment.wall(), None);
        let state = State {
            sample: None,
            since,
            first_minute: 0,
            failed: None,
            history,
            activity: Activity::default(),
            asked_at,
            every: config.every,
        };
        let sampler = Arc::new(Sampler {
            config,
            store,
            health,
            environment,
            processes: ProcessTable::of_this_host(),
            started: Instant::now(),
            state: Mutex::new(state),
            asked: Notify::new(),
            looked: watch::Sender::new(0),
        });
        tokio::spawn(run(Arc::downgrade(&sampler)));
        sampler
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody wants to know: keeps the sampler awake.
    pub(crate) fn ask(&self) {
        self.state().asked_at = Some(Instant::now());
        self.asked.notify_one();
    }

    /// Whether samples are wanted. The one place that decides it.
    fn is_wanted(&self) -> bool {
        match self.config.when {
            SampleWhen::Always => true,
            SampleWhen::Asked => self.state().asked_at.is_some_and(|at| at.elapsed() < IDLE_AFTER),
        }
    }

    /// The latest sample. Waits for the first one.
    ///
    /// # Errors
    /// That of the store.
    pub(crate) async fn latest(&self) -> Result<Latest, Problem> {
        let mut looked = self.looked.subscribe();
        self.ask();
        loop {
            {
                let state = self.state();
                if let Some(sample) = &state.sample {
                    return Ok(Latest {
                        sample: Arc::clone(sample),
                        since: state.since,
                        every: state.every,
                        stuck_after: self.config.stuck_after,
                        failing: state.failed.as_ref().map(|error| error.kind().as_str().to_owned()),
                        event_id: state.history.id(state.history.last()),
                    });
                }
            }
            // The store's own timeout bounds this.
            let _ = looked.changed().await;
            let state = self.state();
            if let Some(error) = state.failed.as_ref().filter(|_| state.sample.is_none()) {
                return Err(Problem::from(error));
            }
        }
    }

    /// A receiver that sees every look at the store.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.looked.subscribe()
    }

    /// Where a stream begins, with this `Last-Event-ID`: the number of a change, and why earlier ones may be missing.
    pub(crate) fn begin(&self, last_id: Option<&str>) -> (u64, Option<ResyncReason>) {
        let state = self.state();
        match state.history.begin(last_id) {
            Ok(number) => (number, None),
            Err(reason) => (state.history.last(), Some(reason)),
        }
    }

    /// What comes after the change with this number.
    pub(crate) fn after(&self, number: u64, scope: Scope<'_>) -> Next {
        self.state().history.after(number, scope)
    }

    /// What a stream that has read up to this number is told of the newest look. `None` if there was none, or if there are newer changes.
    pub(crate) fn sampled(&self, number: u64) -> Option<SampledBody> {
        let state = self.state();
        let sample = state.sample.as_ref().filter(|_| state.history.last() <= number)?;
        Some(SampledBody {
            age_ms: fields::ms_up(sample.age()),
            every_ms: fields::ms_up(state.every),
            event_id: state.history.id(number),
            failing: state.failed.as_ref().map(|error| error.kind().as_str().to_owned()),
        })
    }

    /// What happened in the last hour, of what the caller may see.
    pub(crate) fn last_hour(&self, scope: Scope<'_>) -> (LastHourBody, RatesBody) {
        let state = self.state();
        state.activity.last_hour(scope, (state.first_minute, self.minute(Instant::now())))
    }

    /// Which minute since the server's start it is.
    fn minute(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_secs() * 1000 / RATE_MINUTE_MS
    }

    /// The id of the change with this number.
    pub(crate) fn id(&self, number: u64) -> String {
        self.state().history.id(number)
    }

    /// Reads all resources.
    async fn read(&self) -> Result<(Vec<Snapshot>, bool)> {
        let (mut all, mut listing) = (Vec::new(), Listing::of(""));
        loop {
            let page = self.store.inspect(&Query::Resources(listing.clone())).await?;
            let Page::Resources { mut snapshots, next } = page else { return Ok((all, false)) };
            all.append(&mut snapshots);
            match next {
                Some(_) if all.len() >= RESOURCES_MAX => return Ok((all, true)),
                Some(next) => listing = listing.after(next),
                None => return Ok((all, false)),
            }
        }
    }

    /// Takes a sample, and compares it with the one before.
    async fn look(&self) {
        let started = Instant::now();
        match self.look_once().await {
            Ok((sample, changes)) => {
                let minute = self.minute(sample.taken_at);
                let mut state = self.state();
                match changes {
                    Some(found) => state.history.add(found),
                    None => (state.since, state.first_minute) = (sample.wall, minute),
                }
                (state.sample, state.failed) = (Some(sample), None);
            }
            Err(error) => {
                tracing::warn!(%error, "the resources could not be listed: the overview is that of the last look");
                self.state().failed = Some(error);
            }
        }
        self.state().every = self.config.every.max(started.elapsed() * SHARE_OF_TIME);
        self.looked.send_modify(|count| *count += 1);
    }

    /// A sample, and the changes since the one before, if there is one. They are counted.
    async fn look_once(&self) -> Result<(Arc<Sample>, Option<Found>)> {
        let (before, usual_holds) = {
            let state = self.state();
            (state.sample.clone(), state.activity.usual_holds())
        };
        let (snapshots, truncated) = self.read().await?;
        let look = Look {
            truncated,
            stuck_after: self.config.stuck_after,
            takes_orders: self.store.takes_orders(),
            usual_holds,
            processes: self.processes.clone(),
            ..Look::of(snapshots, Instant::now(), self.environment.wall())
        };
        let earlier = before.clone();
        let sample = Arc::new(beside_requests(move || Sample::new(look, earlier.as_deref())).await?);
        let Some(before) = before else { return Ok((sample, None)) };
        let (earlier, later) = (Arc::clone(&before), Arc::clone(&sample));
        let audit = match beside_requests(move || changes::has_early_end(&earlier, &later)).await? {
            true => self.audit().await,
            false => Vec::new(),
        };
        let later = Arc::clone(&sample);
        let changes = beside_requests(move || changes::between(&before, &later, &audit)).await?;
        let most = {
            let mut state = self.state();
            state.activity.add(self.minute(sample.taken_at), &changes);
            state.history.most()
        };
        let found = beside_requests(move || Found::of(changes, most)).await?;
        Ok((sample, Some(found)))
    }

    /// The newest operators' commands. Without them an eviction looks like a release: no reason to fail.
    async fn audit(&self) -> Vec<AuditRecord> {
        let query = Query::Audit(Listing::of("").limit(AUDIT_MAX));
        self.store.inspect(&query).await.map(Page::into_records).unwrap_or_default()
    }

    /// Nobody has asked for a while.
    fn stop(&self) {
        let mut state = self.state();
        state.failed = None;
        if state.sample.take().is_some() {
            state.history.forget();
            state.activity.forget();
        }
    }
}

/// Computes something on a thread of its own: with many resources it takes long, and requests are not to wait for it.
async fn beside_requests<T: Send + 'static>(compute: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let failed =
        |error| Error::new(ErrorKind::Unavailable, format!("a sample could not be compared: {error}"));
    tokio::task::spawn_blocking(compute).await.map_err(failed)
}

async fn run(sampler: Weak<Sampler>) {
    /// How often a stopped sampler looks whether its server is still there.
    const STOPPED: Duration = Duration::from_secs(5);
    loop {
        let Some(sampler) = sampler.upgrade() else { return };
        if !sampler.is_wanted() {
            sampler.stop();
            let _ = tokio::time::timeout(STOPPED, sampler.asked.notified()).await;
            continue;
        }
        let started = Instant::now();
        let health = Arc::clone(&sampler.health);
        // A server that does not answer must not delay the look.
        let asking = tokio::spawn(async move { health.refresh().await });
        sampler.look().await;
        drop(asking);
        let next = started + sampler.state().every;
        drop(sampler);
        tokio::time::sleep_until(next).await;
    }
}
