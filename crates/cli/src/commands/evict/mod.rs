//! `leasehold evict RESOURCE --token T [--now] --reason TEXT`
//!
//! 1. Read the resource, and check that the order names its holder by token.
//! 2. With `--now`, check that the operator has accepted the risk (`--two-may-run`).
//! 3. Find out whether the holder is alive. A process of this host that has ended is dead. Any other holder is
//!    watched, to see whether it renews (`liveness`). A holder that does is not evicted without
//!    `--even-if-alive`.
//! 4. Send the order.
//!
//! With `--foreign`, the order is about the lock of another program (`foreign_lock.rs`).

mod foreign_lock;

use std::process::ExitCode;

use clap::Args;
use leasehold::{Eviction, FencingToken, HeldBy, OperatorAction, ValueHash};

use crate::{
    countdown::Countdown,
    exit::{Exit, Failure},
    liveness::{self, Liveness},
    order::{ActionText, OrderArgs, PendingOrder},
    session::OperatorSession,
    text,
    this_host::ProcessTable,
    view,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Without --now, the lease is not renewed any more and runs out. The holder learns of it, and the resource is granted to \
nobody else before the lease has run out. With --now, the lease ends at once. The holder may still be at work, and two \
holders may run until it learns of the eviction. An eviction without --now can be followed by one with it.

In both cases, a holder whose process was on this host and has ended is evicted without further checks. Any other holder is \
first watched until half of what is left of its lease has passed, at most 66 s. A holder that works renews in that time. A \
holder that renews is alive and is not evicted without --even-if-alive. A holder that never renews by design (run \
--no-renew) looks like a dead one.

With --foreign, the lock of another program is removed, if its value still has this hash. That program is not told.")]
pub(crate) struct Evict {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// End the lease at once instead of letting it run out; needs --two-may-run
    #[arg(long)]
    now: bool,
    /// Confirm that the work is fenced, or that it has ended
    #[arg(long)]
    two_may_run: bool,
    /// Evict the holder even if it renews on time, and do not watch it first
    #[arg(long)]
    even_if_alive: bool,
    /// Remove the lock of another program; needs --value-hash and --two-may-run
    #[arg(long, conflicts_with_all = ["token", "now", "even_if_alive"])]
    foreign: bool,
    /// Which lock of another program: the hash of its value, as `show` and `why` print it
    #[arg(long, value_name = "HASH", requires = "foreign")]
    value_hash: Option<ValueHash>,
}

/// What is known about a holder that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// Its process was on this host and has ended.
    ProcessGone,
    /// It did not renew when it should have.
    Silent,
    /// Nothing, or nothing that matters: it has released the resource, or it is not there any more.
    Nothing,
}

impl Evict {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        if self.foreign {
            return self.evict_foreign(session).await;
        }
        if self.two_may_run && !self.now {
            return Err(Failure::usage("--two-may-run needs --now or --foreign").hint("see --help"));
        }
        let retry: &[&str] = if self.now { &["evict", "--now", "--two-may-run"] } else { &["evict"] };
        let mut order = PendingOrder::open(session, &self.order, retry).await?;
        self.check_not_foreign(&order)?;
        order.check_has_target()?;
        self.check_risk_accepted(&order)?;
        let mut finding = Finding::Nothing;
        if let Some(token) = self.order.token.filter(|_| order.target().is_some() && !self.even_if_alive) {
            finding = self.check_dead(&order, token).await?;
            order = order.refreshed().await?;
        }
        if self.now && !self.order.dry_run && finding != Finding::ProcessGone {
            let holder = order.target_text();
            session.output.note(&format!("two may run: {holder} learns of the eviction when it next renews"));
        }
        let eviction = if self.now { Eviction::Now } else { Eviction::AtExpiry };
        let action_text = self.action_text(&order, finding);
        self.order.execute(&order, OperatorAction::Evict(eviction), action_text).await
    }

    /// `--now` needs `--two-may-run`: two holders may run until the evicted one learns of it.
    fn check_risk_accepted(&self, order: &PendingOrder<'_>) -> Result<(), Failure> {
        if !self.now || self.two_may_run || self.order.dry_run {
            return Ok(());
        }
        let left =
            order.target().map(|held| format!(" (the lease runs out in {})", text::span(held.remaining)));
        let message = format!(
            "{}: with --now two may run: {} may still be at work when the next claim is granted",
            order.name(),
            order.target_text()
        );
        let hint = format!(
            "leave out --now{}, or add --two-may-run to confirm that this does no harm",
            left.unwrap_or_default()
        );
        Err(Failure::usage(message).hint(hint))
    }

    /// Fails if the holder is alive, or if that cannot be seen and the order is to end its lease at once.
    async fn check_dead(&self, order: &PendingOrder<'_>, token: FencingToken) -> Result<Finding, Failure> {
        let session = order.session;
        if let Some(held) = order.target().filter(|held| !held.kept) {
            if ProcessTable::of_this_host().is_gone(&held.holder) {
                session.output.note(&format!("{}: its process on this host is gone", order.target_text()));
                return Ok(Finding::ProcessGone);
            }
            if held.evicting && self.now {
                return self.check_silent_before_eviction(order, held).await;
            }
        }
        let what = format!("watching {}, to see whether it renews", order.target_text());
        let mut countdown = Countdown::new(session.output, what);
        let look = || session.snapshot(&self.order.resource);
        let seen = liveness::observe(token, look, |left| countdown.show(left)).await?;
        drop(countdown);
        match seen {
            Liveness::Renewed { after } => {
                let alive =
                    format!("{} is alive, it renewed within {}", order.target_text(), text::span(after));
                let hint = "use leasehold ask to have it finish, or add --even-if-alive";
                Err(refused(order, &alive, hint))
            }
            Liveness::Silent { .. } => Ok(Finding::Silent),
            Liveness::Evicting | Liveness::Kept | Liveness::Gone => Ok(Finding::Nothing),
        }
    }

    /// A holder that is being evicted cannot renew, dead or alive. If a renewal was overdue before it was
    /// evicted, it is dead (ADR 0073).
    async fn check_silent_before_eviction(
        &self,
        order: &PendingOrder<'_>,
        held: &HeldBy,
    ) -> Result<Finding, Failure> {
        let evicted_ago = order.session.evicted_ago(&self.order.resource, held.token).await;
        if evicted_ago.is_some_and(|ago| liveness::was_overdue(held, ago)) {
            return Ok(Finding::Silent);
        }
        let because = format!(
            "{} is being evicted and cannot renew, so it cannot be seen whether it is alive; its lease runs out in {}",
            order.target_text(),
            view::left_text(held)
        );
        Err(refused(order, &because, "Eviction pending. To end it now add --even-if-alive."))
    }

    fn action_text(&self, order: &PendingOrder<'_>, finding: Finding) -> ActionText {
        let holder = order.target_text();
        if self.now {
            let done = match finding {
                Finding::ProcessGone => format!("ended the lease of {holder} at once"),
                _ => format!("ended the lease of {holder} at once; watch for work that is done twice"),
            };
            let dry_run = format!("end the lease of {holder} at once; two may run until it learns of it");
            return ActionText::new(dry_run, done);
        }
        let runs_out = match order.target() {
            Some(held) if view::left(held).is_none() => "has lost its expiry: it never runs out".to_owned(),
            Some(held) => format!("runs out within {}", text::span(held.remaining)),
            None => "runs out within its ttl".to_owned(),
        };
        let mut text = ActionText::new(
            format!("stop the renewals of the lease of {holder}, which {runs_out}"),
            format!("the lease of {holder} is not renewed any more and {runs_out}"),
        );
        text.next = self.next(order, finding);
        text
    }

    /// The order that ends the lease at once.
    fn next(&self, order: &PendingOrder<'_>, finding: Finding) -> Option<(String, String)> {
        let (name, token) = (self.order.resource.to_string(), self.order.token?.to_string());
        let mut words = vec!["evict", name.as_str(), "--token", token.as_str(), "--now", "--two-may-run"];
        words.extend((finding == Finding::Nothing).then_some("--even-if-alive"));
        words.extend(["--reason", self.order.reason.as_str()]);
        let text = "to end it at once, when you know that its work has ended:".to_owned();
        Some((text, order.session.command(&words)))
    }
}

fn refused(order: &PendingOrder<'_>, because: &str, hint: &str) -> Failure {
    let message = format!("{}: nothing was done: {because}", order.name());
    Failure::new(Exit::Refused, "alive", message).hint(hint)
}
