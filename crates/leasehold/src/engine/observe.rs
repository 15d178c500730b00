//! Events, metrics and traces, from one place. Nobody listening costs next to nothing.
//!
//! Labels are bounded: the kind of a resource is chosen by developers, its id is not, so ids are hashed in logs and
//! absent from metrics.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_core::{
    EndReason, Environment, Error, ErrorKind, Event, EventKind, FencingToken, OwnerToken, Released, Resource,
    Verb,
};
use metrics::{Counter, Gauge, Histogram, SharedString};
use tokio::sync::broadcast;

use super::tenure::Tenure;

/// How many events a slow listener may fall behind.
const EVENTS_MAX: usize = 1024;
/// How many kinds have metrics of their own; later ones count as `other`.
const KINDS_MAX: usize = 256;

pub(crate) struct Observer {
    backend: &'static str,
    environment: Arc<dyn Environment>,
    events: broadcast::Sender<Event>,
    kinds: Mutex<HashMap<Arc<str>, Arc<KindMetrics>>>,
}

impl Observer {
    pub(crate) fn new(backend: &'static str, environment: Arc<dyn Environment>) -> Observer {
        let (events, _) = broadcast::channel(EVENTS_MAX);
        Observer { backend, environment, events, kinds: Mutex::default() }
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    pub(crate) fn span(&self, verb: Verb, resource: Option<&Resource>) -> tracing::Span {
        let span = tracing::debug_span!(
            target: "leasehold",
            "call",
            verb = verb.as_str(),
            backend = self.backend,
            kind = tracing::field::Empty,
            id_hash = tracing::field::Empty,
        );
        if !span.is_disabled()
            && let Some(resource) = resource
        {
            span.record("kind", resource.kind());
            span.record("id_hash", resource.id_hash());
        }
        span
    }

    /// The handles of one kind. They are resolved once: install a recorder before the first claim.
    pub(crate) fn metrics(&self, resource: &Resource) -> Arc<KindMetrics> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(metrics) = kinds.get(resource.kind()) {
            return Arc::clone(metrics);
        }
        let kind: Arc<str> = if kinds.len() < KINDS_MAX { resource.kind().into() } else { "other".into() };
        let metrics = kinds.entry(Arc::clone(&kind));
        Arc::clone(metrics.or_insert_with(|| Arc::new(KindMetrics::new(&kind, self.backend))))
    }

    pub(crate) fn acquired(&self, tenure: &Tenure, waited: Duration, behind: u32, how: How) {
        let metrics = &tenure.metrics;
        metrics.granted.increment(1);
        metrics.wait.record(waited);
        metrics.held.increment(1);
        let How { handed_over, acks } = how;
        self.event(tenure, EventKind::Acquired { waited, behind, handed_over, acks });
    }

    pub(crate) fn contended(&self, resource: &Resource, owner: OwnerToken, waited: Duration) {
        let metrics = self.metrics(resource);
        metrics.contended.increment(1);
        metrics.wait.record(waited);
        self.emit(&About::claim(resource, owner), || EventKind::Contended { waited });
    }

    pub(crate) fn failed(&self, resource: &Resource, owner: OwnerToken, waited: Duration, error: &Error) {
        let metrics = self.metrics(resource);
        metrics.failed.increment(1);
        metrics.wait.record(waited);
        self.emit(&About::claim(resource, owner), || EventKind::Failed { waited, error: error.clone() });
    }

    pub(crate) fn lost(&self, tenure: &Tenure, why: EndReason) {
        let metrics = &tenure.metrics;
        metrics.lost(why).increment(1);
        metrics.held.decrement(1);
        let held_for = tenure.held_for();
        metrics.hold.record(held_for);
        self.event(tenure, EventKind::Lost { why, held_for });
    }

    /// Its time as a holder is over by its own wish; what the backend says of it comes later.
    pub(crate) fn ended(&self, tenure: &Tenure) {
        let metrics = &tenure.metrics;
        metrics.held.decrement(1);
        metrics.hold.record(tenure.held_for());
    }

    pub(crate) fn released(&self, tenure: &Tenure, answer: Released, dropped: bool) {
        let metrics = &tenure.metrics;
        match answer {
            Released::AlreadyGone => {
                metrics.released_gone.increment(1);
                metrics.stale_release.increment(1);
            }
            Released::Now | Released::StillHeld => metrics.released.increment(1),
        }
        self.emit(&About::tenure(tenure), || EventKind::Released {
            answer,
            dropped,
            held_for: tenure.held_for(),
        });
    }

    pub(crate) fn release_failed(&self, resource: &Resource) {
        self.metrics(resource).release_failed.increment(1);
    }

    pub(crate) fn renewed(&self, tenure: &Tenure, margin: Duration, late: bool) {
        let metrics = &tenure.metrics;
        metrics.extended.increment(1);
        metrics.renewal_margin.record(margin);
        self.event(tenure, EventKind::Renewed { margin, late });
    }

    pub(crate) fn renewal_failed(&self, tenure: &Tenure, error: ErrorKind, failures: u32, left: Duration) {
        tenure.metrics.extend_failed.increment(1);
        self.event(tenure, EventKind::RenewalFailed { error, failures, left });
    }

    pub(crate) fn buried(&self, resource: &Resource, owner: OwnerToken) {
        self.emit(&About::claim(resource, owner), || EventKind::Cancelled);
    }

    pub(crate) fn leaked(&self, resource: &Resource, owner: OwnerToken, error: ErrorKind) {
        self.metrics(resource).leaked.increment(1);
        self.emit(&About::claim(resource, owner), || EventKind::Leaked { error });
    }

    pub(crate) fn stale_token(
        &self,
        resource: &Resource,
        presented: FencingToken,
        highest: FencingToken,
        downstream: &'static str,
    ) {
        let kind: SharedString = resource.kind().to_owned().into();
        metrics::counter!("leasehold_fencing_rejected_total", "kind" => kind, "backend" => self.backend, "downstream" => downstream)
            .increment(1);
        let nobody = OwnerToken::from_bytes([0; 16]);
        let about = About { token: Some(presented), ..About::claim(resource, nobody) };
        self.emit(&about, || EventKind::StaleTokenRefused { presented, highest, downstream });
    }

    pub(crate) fn event(&self, tenure: &Tenure, kind: EventKind) {
        self.emit(&About::tenure(tenure), || kind);
    }

    fn emit(&self, about: &About<'_>, kind: impl FnOnce() -> EventKind) {
        let listeners = self.events.receiver_count() > 0;
        if !listeners && !tracing::enabled!(target: "leasehold", tracing::Level::WARN) {
            return;
        }
        let kind = kind();
        self.trace(about, &kind);
        if listeners {
            let event = Event::new(self.environment.wall(), about.resource.clone(), kind);
            let event = event.of(about.owner.prefix(), about.token);
            drop(self.events.send(event)); // errs only when the last listener has just gone
        }
    }

    fn trace(&self, about: &About<'_>, kind: &EventKind) {
        macro_rules! log {
            ($level:expr) => {
                tracing::event!(
                    target: "leasehold",
                    $level,
                    event = kind.as_str(),
                    kind = about.resource.kind(),
                    id_hash = about.resource.id_hash(),
                    owner_prefix = about.owner.prefix(),
                    token = about.token.map(FencingToken::get),
                    ttl_ms = about.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
                    backend = self.backend,
                    detail = %Detail(kind),
                )
            };
        }
        match kind {
            EventKind::Lost { .. }
            | EventKind::RenewalFailed { .. }
            | EventKind::Evicting
            | EventKind::Leaked { .. }
            | EventKind::StaleTokenRefused { .. }
            | EventKind::Released { answer: Released::AlreadyGone, .. } => log!(tracing::Level::WARN),
            EventKind::Asked(_) | EventKind::Failed { .. } => log!(tracing::Level::INFO),
            _ => log!(tracing::Level::DEBUG),
        }
    }
}

/// Whom an event is about.
struct About<'a> {
    resource: &'a Resource,
    owner: OwnerToken,
    token: Option<FencingToken>,
    ttl: Option<Duration>,
}

impl<'a> About<'a> {
    fn claim(resource: &'a Resource, owner: OwnerToken) -> About<'a> {
        About { resource, owner, token: None, ttl: None }
    }

    fn tenure(tenure: &'a Tenure) -> About<'a> {
        let (token, ttl) = (Some(tenure.token), Some(tenure.ttl()));
        About { resource: &tenure.resource, owner: tenure.owner, token, ttl }
    }
}

/// An event for a log: an error without its resource, whose id must not be seen there.
struct Detail<'a>(&'a EventKind);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            EventKind::Failed { waited, error } => {
                write!(
                    f,
                    "Failed {{ waited: {waited:?}, kind: {}, effect: {:?} }}",
                    error.kind().as_str(),
                    error.effect()
                )
            }
            kind => write!(f, "{kind:?}"),
        }
    }
}

/// How a grant came about.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    pub(crate) handed_over: bool,
    pub(crate) acks: Option<u32>,
}

/// The handles of one kind of resource.
pub(crate) struct KindMetrics {
    granted: Counter,
    contended: Counter,
    failed: Counter,
    released: Counter,
    released_gone: Counter,
    release_failed: Counter,
    stale_release: Counter,
    extended: Counter,
    extend_failed: Counter,
    pub(crate) contention: Counter,
    pub(crate) retries: Counter,
    lost: [(EndReason, Counter); 5],
    pub(crate) acquire: Histogram,
    wait: Histogram,
    hold: Histogram,
    renewal_margin: Histogram,
    held: Gauge,
    pub(crate) waiting: Gauge,
    leaked: Gauge,
}

impl KindMetrics {
    fn new(kind: &Arc<str>, backend: &'static str) -> KindMetrics {
        let kind = || SharedString::from_shared(Arc::clone(kind));
        macro_rules! metric {
            ($make:ident, $name:literal $(, $label:literal => $value:expr)?) => {
                metrics::$make!($name, "kind" => kind(), "backend" => backend $(, $label => $value)?)
            };
        }
        let lost = [
            EndReason::Expired,
            EndReason::NotOurs,
            EndReason::Evicted,
            EndReason::MaxHold,
            EndReason::NoProgress,
        ];
        KindMetrics {
            granted: metric!(counter, "leasehold_acquire_total", "outcome" => "granted"),
            contended: metric!(counter, "leasehold_acquire_total", "outcome" => "contended"),
            failed: metric!(counter, "leasehold_acquire_total", "outcome" => "failed"),
            released: metric!(counter, "leasehold_release_total", "outcome" => "released"),
            released_gone: metric!(counter, "leasehold_release_total", "outcome" => "already_gone"),
            release_failed: metric!(counter, "leasehold_release_total", "outcome" => "failed"),
            stale_release: metric!(counter, "leasehold_stale_release_total"),
            extended: metric!(counter, "leasehold_extend_total", "outcome" => "extended"),
            extend_failed: metric!(counter, "leasehold_extend_total", "outcome" => "failed"),
            contention: metric!(counter, "leasehold_contention_total"),
            retries: metric!(counter, "leasehold_acquire_retries_total"),
            lost: lost.map(|why| (why, metric!(counter, "leasehold_lost_total", "reason" => why.as_str()))),
            acquire: metric!(histogram, "leasehold_acquire_seconds"),
            wait: metric!(histogram, "leasehold_wait_seconds"),
            hold: metric!(histogram, "leasehold_hold_seconds"),
            renewal_margin: metric!(histogram, "leasehold_renewal_margin_seconds"),
            held: metric!(gauge, "leasehold_held"),
            waiting: metric!(gauge, "leasehold_waiting"),
            leaked: metric!(gauge, "leasehold_leaked"),
        }
    }

    fn lost(&self, why: EndReason) -> &Counter {
        &self.lost.iter().find(|(reason, _)| *reason == why).unwrap_or(&self.lost[0]).1
    }
}
