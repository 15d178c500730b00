//! `leasehold evict RESOURCE --token T [--now] --reason TEXT`
//!
//! 1. Read the resource, and check that the order names its holder by token.
//! 2. With `--now`, check that the operator has accepted the risk (`--two-may-run`).
//! 3. Observe whether the holder renews (`liveness`). A holder that does is not evicted without
//!    `--even-if-alive`.
//! 4. Send the order.

use std::process::ExitCode;

use clap::Args;
use leasehold::{Eviction, FencingToken, OperatorAction};

use crate::{
    exit::{Exit, Failure},
    liveness::{self, Liveness},
    order::{ActionText, OrderArgs, PendingOrder},
    session::OperatorSession,
    text,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Without --now, the lease is not renewed any more and runs out. The holder learns of it, and the resource is granted to \
nobody else before the lease has run out. With --now, the lease ends at once. The holder may still be at work, and two \
holders may run until it learns of the eviction.

In both cases, the holder is first watched until half of what is left of its lease has passed, at most 66 s. A holder that works \
renews in that time. A holder that renews is alive and is not evicted without --even-if-alive. A holder that never renews \
by design (run --no-renew) looks like a dead one.")]
pub(crate) struct Evict {
    #[command(flatten)]
    order: OrderArgs,
    /// End the lease at once instead of letting it run out; needs --two-may-run
    #[arg(long)]
    now: bool,
    /// Confirm that the work is fenced, or that it has ended
    #[arg(long, requires = "now")]
    two_may_run: bool,
    /// Evict the holder even if it renews on time, and do not watch it first
    #[arg(long)]
    even_if_alive: bool,
}

impl Evict {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let retry: &[&str] = if self.now { &["evict", "--now", "--two-may-run"] } else { &["evict"] };
        let mut order = PendingOrder::open(session, &self.order, retry).await?;
        order.check_has_target()?;
        self.check_risk_accepted(&order)?;
        if let Some(token) = self.order.token.filter(|_| order.target().is_some() && !self.even_if_alive) {
            self.check_not_renewing(&order, token).await?;
            order = order.refreshed().await?;
        }
        if self.now && !self.order.dry_run {
            let holder = order.target_text();
            session.output.note(&format!("two may run: {holder} learns of the eviction when it next renews"));
        }
        let eviction = if self.now { Eviction::Now } else { Eviction::AtExpiry };
        self.order.execute(&order, OperatorAction::Evict(eviction), self.action_text(&order)).await
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

    async fn check_not_renewing(&self, order: &PendingOrder<'_>, token: FencingToken) -> Result<(), Failure> {
        let (session, resource) = (order.session, &self.order.resource);
        if let Some(held) =
            order.target().filter(|held| session.output.shows_progress() && !held.kept && !held.evicting)
        {
            let most = text::span(liveness::watch_limit(held.remaining));
            let holder = order.target_text();
            session.output.note(&format!("watching {holder} for up to {most}, to see whether it renews"));
        }
        let refuse = |because: String, hint: &str| {
            let message = format!("{}: nothing was done: {because}", order.name());
            Err(Failure::new(Exit::Refused, "alive", message).hint(hint))
        };
        match liveness::observe(token, || session.snapshot(resource)).await? {
            Liveness::Renewed { after } => refuse(
                format!("{} is alive, it renewed within {}", order.target_text(), text::span(after)),
                "use leasehold ask to have it finish, or add --even-if-alive",
            ),
            Liveness::Evicting if self.now => refuse(
                format!(
                    "{} is being evicted and cannot renew, so it cannot be seen whether it is alive",
                    order.target_text()
                ),
                "wait until its lease has run out, or add --even-if-alive",
            ),
            Liveness::Silent { .. } | Liveness::Evicting | Liveness::Kept | Liveness::Gone => Ok(()),
        }
    }

    fn action_text(&self, order: &PendingOrder<'_>) -> ActionText {
        let holder = order.target_text();
        if self.now {
            return ActionText {
                dry_run: format!("end the lease of {holder} at once; two may run until it learns of it"),
                done: format!("ended the lease of {holder} at once; watch for work that is done twice"),
            };
        }
        let left = order.target().map_or_else(|| "its ttl".to_owned(), |held| text::span(held.remaining));
        ActionText {
            dry_run: format!("let the lease of {holder} run out, within {left}"),
            done: format!("the lease of {holder} is not renewed any more and runs out within {left}"),
        }
    }
}
