//! Events, metrics and traces. Without listeners they cost next to nothing.
//!
//! Metric labels must stay few. Developers choose the kinds of resources, so a kind is a label. Ids come from data, so
//! they are not in metrics at all, and only hashed in logs.

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

use super::held_lease::HeldLease;

/// The number of events that a listener can be behind before it misses some.
const EVENTS_MAX: usize = 1024;
/// The number of kinds with metrics of their own. Later kinds are counted as `other`.
const KINDS_MAX: usize = 256;

/// Reports what happens to the claims of one client.
pub(crate) struct Telemetry {
    backend: &'static str,
    environment: Arc<dyn Environment>,
    events: broadcast::Sender<Event>,
    kinds: Mutex<HashMap<Arc<str>, Arc<KindMetrics>>>,
}

impl Telemetry {
    pub(crate) fn new(backend: &'static str, environment: Arc<dyn Environment>) -> Telemetry {
        let (events, _) = broadcast::channel(EVENTS_MAX);
        Telemetry { backend, environment, events, kinds: Mutex::default() }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
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

    /// The metrics of the resource's kind. They are registered once, so install a recorder before the first claim.
    pub(crate) fn metrics(&self, resource: &Resource) -> Arc<KindMetrics> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(metrics) = kinds.get(resource.kind()) {
            return Arc::clone(metrics);
        }
        let kind: Arc<str> = if kinds.len() < KINDS_MAX { resource.kind().into() } else { "other".into() };
        let metrics = kinds.entry(Arc::clone(&kind));
        Arc::clone(metrics.or_insert_with(|| Arc::new(KindMetrics::new(&kind, self.backend))))
    }

    pub(crate) fn acquired(&self, lease: &HeldLease, waited: Duration, behind: u32, details: GrantDetails) {
        let metrics = &lease.metrics;
        metrics.granted.increment(1);
        metrics.wait.record(waited);
        metrics.held.increment(1);
        let GrantDetails { handed_over, acks } = details;
        self.event(lease, EventKind::Acquired { waited, behind, handed_over, acks });
    }

    pub(crate) fn contended(&self, resource: &Resource, owner: OwnerToken, waited: Duration) {
        let metrics = self.metrics(resource);
        metrics.contended.increment(1);
        metrics.wait.record(waited);
        self.emit(&EventSubject::claim(resource, owner), || EventKind::Contended { waited });
    }

    pub(crate) fn failed(&self, resource: &Resource, owner: OwnerToken, waited: Duration, error: &Error) {
        let metrics = self.metrics(resource);
        metrics.failed.increment(1);
        metrics.wait.record(waited);
        self.emit(&EventSubject::claim(resource, owner), || EventKind::Failed {
            waited,
            error: error.clone(),
        });
    }

    pub(crate) fn lost(&self, lease: &HeldLease, why: EndReason) {
        let metrics = &lease.metrics;
        metrics.lost(why).increment(1);
        metrics.held.decrement(1);
        let held_for = lease.held_for();
        metrics.hold.record(held_for);
        self.event(lease, EventKind::Lost { why, held_for });
    }

    /// The holder has let go of the lease. The backend's reply to the release is reported by `released`.
    pub(crate) fn ended(&self, lease: &HeldLease) {
        let metrics = &lease.metrics;
        metrics.held.decrement(1);
        metrics.hold.record(lease.held_for());
    }

    pub(crate) fn released(&self, lease: &HeldLease, answer: Released, dropped: bool) {
        let metrics = &lease.metrics;
        match answer {
            Released::AlreadyGone => {
                metrics.released_gone.increment(1);
                metrics.stale_release.increment(1);
            }
            _ => metrics.released.increment(1),
        }
        self.emit(&EventSubject::lease(lease), || EventKind::Released {
            answer,
            dropped,
            held_for: lease.held_for(),
        });
    }

    pub(crate) fn release_failed(&self, resource: &Resource) {
        self.metrics(resource).release_failed.increment(1);
    }

    pub(crate) fn renewed(&self, lease: &HeldLease, margin: Duration, late: bool) {
        let metrics = &lease.metrics;
        metrics.extended.increment(1);
        metrics.renewal_margin.record(margin);
        self.event(lease, EventKind::Renewed { margin, late });
    }

    pub(crate) fn renewal_failed(&self, lease: &HeldLease, error: ErrorKind, failures: u32, left: Duration) {
        lease.metrics.extend_failed.increment(1);
        self.event(lease, EventKind::RenewalFailed { error, failures, left });
    }

    pub(crate) fn cancelled(&self, resource: &Resource, owner: OwnerToken) {
        self.emit(&EventSubject::claim(resource, owner), || EventKind::Cancelled);
    }

    pub(crate) fn leaked(&self, resource: &Resource, owner: OwnerToken, error: ErrorKind) {
        self.metrics(resource).leaked.increment(1);
        self.emit(&EventSubject::claim(resource, owner), || EventKind::Leaked { error });
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
        let no_owner = OwnerToken::from_bytes([0; 16]);
        let subject = EventSubject { token: Some(presented), ..EventSubject::claim(resource, no_owner) };
        self.emit(&subject, || EventKind::StaleTokenRefused { presented, highest, downstream });
    }

    pub(crate) fn event(&self, lease: &HeldLease, kind: EventKind) {
        self.emit(&EventSubject::lease(lease), || kind);
    }

    fn emit(&self, subject: &EventSubject<'_>, kind: impl FnOnce() -> EventKind) {
        // Without listeners and log, the event is not even built: this runs for every grant and renewal.
        let listeners = self.events.receiver_count() > 0;
        if !listeners && !tracing::enabled!(target: "leasehold", tracing::Level::WARN) {
            return;
        }
        let kind = kind();
        self.trace(subject, &kind);
        if listeners {
            let event = Event::new(self.environment.wall(), subject.resource.clone(), kind);
            let event = event.of(subject.owner.prefix(), subject.token);
            drop(self.events.send(event)); // fails only if the last listener has just gone
        }
    }

    fn trace(&self, subject: &EventSubject<'_>, kind: &EventKind) {
        macro_rules! log {
            ($level:expr) => {
                tracing::event!(
                    target: "leasehold",
                    $level,
                    event = kind.as_str(),
                    kind = subject.resource.kind(),
                    id_hash = subject.resource.id_hash(),
                    owner_prefix = subject.owner.prefix(),
                    token = subject.token.map(FencingToken::get),
                    ttl_ms = subject.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
                    backend = self.backend,
                    detail = %LogDetail(kind),
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

/// The claim that an event describes.
struct EventSubject<'a> {
    resource: &'a Resource,
    owner: OwnerToken,
    token: Option<FencingToken>,
    ttl: Option<Duration>,
}

impl<'a> EventSubject<'a> {
    fn claim(resource: &'a Resource, owner: OwnerToken) -> EventSubject<'a> {
        EventSubject { resource, owner, token: None, ttl: None }
    }

    fn lease(lease: &'a HeldLease) -> EventSubject<'a> {
        let (token, ttl) = (Some(lease.token), Some(lease.ttl()));
        EventSubject { resource: &lease.resource, owner: lease.owner, token, ttl }
    }
}

/// An event as it is logged. An error is logged without its resource, because ids must not be in logs.
struct LogDetail<'a>(&'a EventKind);

impl fmt::Display for LogDetail<'_> {
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

/// What the event of a grant reports beside the lease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantDetails {
    pub(crate) handed_over: bool,
    pub(crate) acks: Option<u32>,
}

/// The metrics of one kind of resource.
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

/// Counts a waiter in a gauge until it is dropped.
pub(crate) struct WaitingGauge<'a>(&'a Gauge);

impl<'a> WaitingGauge<'a> {
    pub(crate) fn count(gauge: &'a Gauge) -> WaitingGauge<'a> {
        gauge.increment(1);
        WaitingGauge(gauge)
    }
}

impl Drop for WaitingGauge<'_> {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
