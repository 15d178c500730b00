//! Takes samples of all resources of the store: for `/v1/overview` and `/v1/events`.
//!
//! 1. One task reads the list of resources, and keeps it as a [`Sample`].
//! 2. It compares the sample with the one before ([`changes`]), numbers what has changed ([`history`]) and counts it ([`activity`]).
//! 3. While somebody asks, it takes a sample every two seconds, but spends a tenth of the time at most ([`pace`]).
//! 4. When nobody has asked for a minute, it takes one every 30 seconds, and spends a hundredth of the time at most (ADR 0097). The first
//!    request after that waits for a new sample. With `idle_every: None` it takes none, forgets the history, and streams from before read
//!    anew.
//!
//! A change that starts and ends between two samples is not seen.

mod activity;
mod changes;
mod deadlocks;
mod history;
mod pace;
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
use pace::Pace;
use sample::Reading;
pub(crate) use sample::{Sample, Search};

use crate::{access::Scope, config::Sampling, store::Store, store_health::StoreHealth};

/// The most resources of a sample.
const RESOURCES_MAX: usize = 200_000;
/// How many of the newest operators' commands are read, to tell an eviction from a release.
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
    /// Apart from `state`, because summing up an hour takes long.
    activity: Mutex<Activity>,
    /// Somebody asks again.
    asked: Arc<Notify>,
    /// Counts samples, also those that failed.
    samples: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    /// `None` while the sampler is stopped, and before its first sample.
    sample: Option<Arc<Sample>>,
    /// Since when it has taken samples without a break.
    since: WallTime,
    /// The same as a minute since the server's start.
    first_minute: u64,
    /// Why the newest sample failed.
    failed: Option<Error>,
    history: History,
    pace: Pace,
}

/// What the sampler knows.
#[derive(Debug)]
pub(crate) struct Latest {
    pub(crate) sample: Arc<Sample>,
    pub(crate) since: WallTime,
    /// The time between two samples.
    pub(crate) every: Duration,
    /// A resource is stuck when a claim has waited this long.
    pub(crate) stuck_after: Duration,
    /// The kind of error of the newest sample, if it failed.
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
        let started = Instant::now();
        let pace = Pace::new(config.every, config.idle_every, started);
        let since = environment.wall();
        let state = State { sample: None, since, first_minute: 0, failed: None, history, pace };
        let sampler = Arc::new(Sampler {
            config,
            store,
            health,
            environment,
            processes: ProcessTable::of_this_host(),
            started,
            state: Mutex::new(state),
            activity: Mutex::default(),
            asked: Arc::default(),
            samples: watch::Sender::new(0),
        });
        tokio::spawn(run(Arc::downgrade(&sampler)));
        sampler
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody wants to know: samples are taken often from now on.
    pub(crate) fn ask(&self) {
        if self.state().pace.ask(Instant::now()) {
            self.asked.notify_one();
        }
    }

    /// The latest sample. Waits for the first one, and for a new one if nobody has asked for a while.
    ///
    /// # Errors
    /// That of the store.
    pub(crate) async fn latest(&self) -> Result<Latest, Problem> {
        let mut samples = self.samples.subscribe();
        self.ask();
        loop {
            {
                let state = self.state();
                if let Some(sample) = state.sample.as_ref().filter(|_| !state.pace.is_old()) {
                    return Ok(Latest {
                        sample: Arc::clone(sample),
                        since: state.since,
                        every: state.pace.every(Instant::now()),
                        stuck_after: self.config.stuck_after,
                        failing: state.failed.as_ref().map(|error| error.kind().as_str().to_owned()),
                        event_id: state.history.id(state.history.last()),
                    });
                }
            }
            // The store's own timeout bounds this.
            let _ = samples.changed().await;
            let state = self.state();
            if let Some(error) = state.failed.as_ref().filter(|_| state.sample.is_none()) {
                return Err(Problem::from(error));
            }
        }
    }

    /// A receiver that changes with every sample, also one that failed.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.samples.subscribe()
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

    /// What a stream that has read up to this number is told of the newest sample. `None` if there is none, or if there are newer changes.
    pub(crate) fn sampled(&self, number: u64) -> Option<SampledBody> {
        let state = self.state();
        let is_told = state.history.last() <= number && !state.pace.is_old();
        let sample = state.sample.as_ref().filter(|_| is_told)?;
        Some(SampledBody {
            age_ms: fields::ms_up(sample.age()),
            every_ms: fields::ms_up(state.pace.every(Instant::now())),
            event_id: state.history.id(number),
            failing: state.failed.as_ref().map(|error| error.kind().as_str().to_owned()),
        })
    }

    /// What happened in the last hour, of what the caller may see.
    pub(crate) fn last_hour(&self, scope: Scope<'_>) -> (LastHourBody, RatesBody) {
        let minutes = (self.state().first_minute, self.minute(Instant::now()));
        self.activity().last_hour(scope, minutes)
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
    async fn sample(&self) {
        let started = Instant::now();
        let taken = self.take_sample().await;
        let mut state = self.state();
        match taken {
            Ok((sample, changes)) => {
                match changes {
                    Some(found) => state.history.add(found),
                    None => (state.since, state.first_minute) = (sample.wall, self.minute(sample.taken_at)),
                }
                (state.sample, state.failed) = (Some(sample), None);
                state.pace.sampled(started, started.elapsed());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot list the resources; the overview stays at the previous sample");
                state.failed = Some(error);
                state.pace.failed(started, started.elapsed());
            }
        }
        drop(state);
        self.samples.send_modify(|count| *count += 1);
    }

    /// A sample, and the changes since the one before, if there is one. They are counted.
    async fn take_sample(&self) -> Result<(Arc<Sample>, Option<Found>)> {
        let before = self.state().sample.clone();
        let usual_holds = self.activity().usual_holds();
        let (taken_at, wall) = (Instant::now(), self.environment.wall());
        let (snapshots, truncated) = self.read().await?;
        let reading = Reading {
            truncated,
            read_until: Instant::now(),
            stuck_after: self.config.stuck_after,
            takes_orders: self.store.takes_orders(),
            usual_holds,
            processes: self.processes.clone(),
            ..Reading::of(snapshots, taken_at, wall)
        };
        let earlier = before.clone();
        let sample = Arc::new(beside_requests(move || Sample::new(reading, earlier.as_deref())).await?);
        let Some(before) = before else { return Ok((sample, None)) };
        let (earlier, later) = (Arc::clone(&before), Arc::clone(&sample));
        let audit = match beside_requests(move || changes::has_end(&earlier, &later)).await? {
            true => self.audit().await,
            false => Vec::new(),
        };
        let later = Arc::clone(&sample);
        let changes = beside_requests(move || changes::between(&before, &later, &audit)).await?;
        self.activity().add(self.minute(sample.taken_at), &changes);
        let most = self.state().history.most();
        let found = beside_requests(move || Found::of(changes, most)).await?;
        Ok((sample, Some(found)))
    }

    /// The newest operators' commands. Without them an eviction is taken for a release, so an error is ignored.
    async fn audit(&self) -> Vec<AuditRecord> {
        let query = Query::Audit(Listing::of("").limit(AUDIT_MAX));
        self.store.inspect(&query).await.map(Page::into_records).unwrap_or_default()
    }

    /// Nobody has asked for a while, and no samples are taken until somebody does.
    fn stop(&self) {
        let mut state = self.state();
        state.failed = None;
        state.pace.stopped();
        if state.sample.take().is_some() {
            state.history.forget();
            self.activity().forget();
        }
    }
}

/// Computes something on a thread of its own: with many resources it takes long, and requests must not wait for it.
pub(crate) async fn beside_requests<T: Send + 'static>(
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let failed =
        |error| Error::new(ErrorKind::Unavailable, format!("a sample could not be compared: {error}"));
    tokio::task::spawn_blocking(compute).await.map_err(failed)
}

async fn run(sampler: Weak<Sampler>) {
    /// How often it checks that its server is still there.
    const CHECK_EVERY: Duration = Duration::from_secs(5);
    loop {
        let Some(sampler) = sampler.upgrade() else { return };
        let now = Instant::now();
        let (due, is_watched) = {
            let pace = &sampler.state().pace;
            (pace.due(now), pace.is_watched(now))
        };
        match due {
            Some(due) if due <= now => {
                let health = Arc::clone(&sampler.health);
                // A server that does not answer must not delay the sample.
                let asking = is_watched.then(|| tokio::spawn(async move { health.refresh().await }));
                sampler.sample().await;
                drop(asking);
            }
            due => {
                if due.is_none() {
                    sampler.stop();
                }
                let asked = Arc::clone(&sampler.asked);
                drop(sampler);
                let until = due.map_or(now + CHECK_EVERY, |due| due.min(now + CHECK_EVERY));
                let _ = tokio::time::timeout_at(until, asked.notified()).await;
            }
        }
    }
}
