//! Events, metrics and traces. Without listeners they cost next to nothing.
//!
//! Metric labels must stay few. Developers choose the kinds of resources, so a kind is a label. Ids come from data, so
//! they are not in metrics at all, and only hashed in logs.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use leasehold_core::{
    EndReason, Environment, Error, ErrorKind, Event, EventKind, FencingToken, OwnerToken, Released, Resource,
    Verb,
};
use metrics::SharedString;
use tokio::sync::broadcast;

pub(crate) use super::metrics::{KindMetrics, WaitingGauge};
use super::{held_lease::HeldLease, metrics::describe_metrics};

/// The number of events that a listener can be behind before it misses some.
const EVENTS_MAX: usize = 1024;
/// The number of kinds with metrics of their own. Later kinds are counted as `other`.
const KINDS_MAX: usize = 256;

/// Reports what happens to the claims of one client.
pub(crate) struct Telemetry {
    backend: &'static str,
    environment: Arc<dyn Environment>,
    /// Made for the first listener: its buffer takes more memory than the rest of a client, and most clients have none.
    events: OnceLock<broadcast::Sender<Event>>,
    kinds: Mutex<HashMap<Arc<str>, Arc<KindMetrics>>>,
}

impl Telemetry {
    pub(crate) fn new(backend: &'static str, environment: Arc<dyn Environment>) -> Telemetry {
        describe_metrics();
        Telemetry { backend, environment, events: OnceLock::new(), kinds: Mutex::default() }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.get_or_init(|| broadcast::Sender::new(EVENTS_MAX)).subscribe()
    }

    pub(crate) fn span(&self, verb: Verb, resource: Option<&Resource>) -> tracing::Span {
        // The name of a span must be a constant, so there is one for each verb.
        macro_rules! span {
            ($name:literal) => {
                tracing::debug_span!(
                    target: "leasehold",
                    $name,
                    verb = verb.as_str(),
                    backend = self.backend,
                    kind = tracing::field::Empty,
                    id_hash = tracing::field::Empty,
                )
            };
        }
        let span = match verb {
            Verb::Acquire => span!("leasehold.acquire"),
            Verb::Renew => span!("leasehold.renew"),
            Verb::Release => span!("leasehold.release"),
            Verb::Wait => span!("leasehold.wait"),
            Verb::Inspect => span!("leasehold.inspect"),
            Verb::Order => span!("leasehold.order"),
            _ => span!("leasehold.call"),
        };
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
        let listeners = self.events.get().filter(|events| events.receiver_count() > 0);
        if listeners.is_none() && !tracing::enabled!(target: "leasehold", tracing::Level::WARN) {
            return;
        }
        let kind = kind();
        self.trace(subject, &kind);
        if let Some(listeners) = listeners {
            let event = Event::new(self.environment.wall(), subject.resource.clone(), kind);
            let event = event.of(subject.owner.prefix(), subject.token);
            drop(listeners.send(event)); // fails only if the last listener has just gone
        }
    }

    fn trace(&self, subject: &EventSubject<'_>, kind: &EventKind) {
        let fields = LogFields::of(kind);
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
                    ttl_ms = subject.ttl.map(millis),
                    backend = self.backend,
                    waited_ms = fields.waited.map(millis),
                    held_ms = fields.held.map(millis),
                    margin_ms = fields.margin.map(millis),
                    left_ms = fields.left.map(millis),
                    behind = fields.behind,
                    acks = fields.acks,
                    failures = fields.failures,
                    highest = fields.highest.map(FencingToken::get),
                    reason = fields.reason,
                    error = fields.error,
                    effect = fields.effect,
                    answer = fields.answer,
                    downstream = fields.downstream,
                    by = fields.by,
                    why = fields.why,
                    handed_over = fields.handed_over,
                    late = fields.late,
                    dropped = fields.dropped,
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What an event carries, as fields of the log. A field that is `None` is not logged. An error is logged without its text,
/// which may hold an id.
#[derive(Default)]
struct LogFields<'a> {
    waited: Option<Duration>,
    held: Option<Duration>,
    margin: Option<Duration>,
    left: Option<Duration>,
    behind: Option<u32>,
    acks: Option<u32>,
    failures: Option<u32>,
    highest: Option<FencingToken>,
    reason: Option<&'static str>,
    error: Option<&'static str>,
    effect: Option<&'static str>,
    answer: Option<&'static str>,
    downstream: Option<&'static str>,
    by: Option<&'a str>,
    why: Option<&'a str>,
    handed_over: Option<bool>,
    late: Option<bool>,
    dropped: Option<bool>,
}

impl<'a> LogFields<'a> {
    fn of(kind: &'a EventKind) -> LogFields<'a> {
        let none = LogFields::default();
        match kind {
            EventKind::Acquired { waited, behind, handed_over, acks } => {
                let (waited, behind, handed_over) = (Some(*waited), Some(*behind), Some(*handed_over));
                LogFields { waited, behind, handed_over, acks: *acks, ..none }
            }
            EventKind::Contended { waited } => LogFields { waited: Some(*waited), ..none },
            EventKind::Failed { waited, error } => {
                let (kind, effect) = (Some(error.kind().as_str()), Some(error.effect().as_str()));
                LogFields { waited: Some(*waited), error: kind, effect, ..none }
            }
            EventKind::Renewed { margin, late } => {
                LogFields { margin: Some(*margin), late: Some(*late), ..none }
            }
            EventKind::RenewalFailed { error, failures, left } => {
                let (error, failures) = (Some(error.as_str()), Some(*failures));
                LogFields { error, failures, left: Some(*left), ..none }
            }
            EventKind::Asked(asked) => {
                LogFields { left: Some(asked.within), by: Some(&asked.by), why: Some(&asked.why), ..none }
            }
            EventKind::Lost { why, held_for } => {
                LogFields { reason: Some(why.as_str()), held: Some(*held_for), ..none }
            }
            EventKind::Released { answer, dropped, held_for } => {
                let (answer, dropped) = (Some(answer.as_str()), Some(*dropped));
                LogFields { answer, dropped, held: Some(*held_for), ..none }
            }
            EventKind::Leaked { error } => LogFields { error: Some(error.as_str()), ..none },
            EventKind::StaleTokenRefused { highest, downstream, .. } => {
                LogFields { highest: Some(*highest), downstream: Some(*downstream), ..none }
            }
            _ => none,
        }
    }
}

/// What the event of a grant reports beside the lease.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantDetails {
    pub(crate) handed_over: bool,
    pub(crate) acks: Option<u32>,
}
