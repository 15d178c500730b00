//! `leasehold evict RESOURCE --token T [--now] --reason TEXT`

use std::process::ExitCode;

use clap::Args;
use leasehold::{Eviction, FencingToken, OperatorAction};

use crate::{
    alive::{self, Sign},
    desk::Desk,
    exit::{Exit, Failure},
    order::{Case, Deed, OrderArgs},
    text,
};

#[derive(Debug, Args)]
#[command(after_help = "\
Without --now the lease is not renewed any more and runs out; the holder is told, and nobody else is granted before. \
With --now it is gone at once: the holder may still be at work, and two may run until it learns of it.

First the holder is watched, until half of what is left of its lease has passed (66 s at the most): a holder on time \
renews in that time. One that does is alive, and is not evicted without --even-if-alive. A holder that never renews by \
design looks like a dead one.")]
pub(crate) struct Evict {
    #[command(flatten)]
    order: OrderArgs,
    /// End it at once, not when it runs out; needs --two-may-run
    #[arg(long)]
    now: bool,
    /// You have made sure that the work is fenced, or has ended
    #[arg(long, requires = "now")]
    two_may_run: bool,
    /// Evict it though it renews on time, and do not watch it first
    #[arg(long)]
    even_if_alive: bool,
}

impl Evict {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let retry: &[&str] = if self.now { &["evict", "--now", "--two-may-run"] } else { &["evict"] };
        let mut case = Case::open(desk, &self.order, retry).await?;
        case.check_meant()?;
        self.check_word(&case)?;
        if let Some(token) = self.order.token.filter(|_| case.meant().is_some() && !self.even_if_alive) {
            self.check_silent(&case, token).await?;
            case = case.again().await?;
        }
        if self.now && !self.order.dry_run {
            desk.output.say(&format!("two may run: {} is told only when it next renews", case.whom()));
        }
        let eviction = if self.now { Eviction::Now } else { Eviction::AtExpiry };
        self.order.give(&case, OperatorAction::Evict(eviction), self.deed(&case)).await
    }

    /// Whoever ends a holder at once says that he knows what that means.
    fn check_word(&self, case: &Case<'_>) -> Result<(), Failure> {
        if !self.now || self.two_may_run || self.order.dry_run {
            return Ok(());
        }
        let left = case.meant().map(|held| format!(" (it runs out in {})", text::span(held.remaining)));
        let message = format!(
            "{}: with --now two may run: {} may still be at work when the next is granted",
            case.name(),
            case.whom()
        );
        let hint = format!("leave out --now{}, or add --two-may-run", left.unwrap_or_default());
        Err(Failure::usage(message).hint(hint))
    }

    async fn check_silent(&self, case: &Case<'_>, token: FencingToken) -> Result<(), Failure> {
        let (desk, resource) = (case.desk, &self.order.resource);
        if let Some(held) =
            case.meant().filter(|held| desk.output.is_watched() && !held.kept && !held.evicting)
        {
            let most = text::span(alive::patience(held.remaining));
            desk.output.say(&format!("watching {} for up to {most}: does it renew?", case.whom()));
        }
        let refuse = |because: String, hint: &str| {
            let message = format!("{}: {because}; nothing was done", case.name());
            Err(Failure::new(Exit::Refused, "alive", message).hint(hint))
        };
        match alive::watch(token, || desk.one(resource)).await? {
            Sign::Renewed { after } => refuse(
                format!("{} is alive: it renewed within {}", case.whom(), text::span(after)),
                "ask it to finish, or add --even-if-alive",
            ),
            Sign::Hidden if self.now => refuse(
                format!("{} is being evicted, so it cannot be seen whether it is alive", case.whom()),
                "wait until it has run out, or add --even-if-alive",
            ),
            Sign::Silent { .. } | Sign::Hidden | Sign::Kept | Sign::Gone => Ok(()),
        }
    }

    fn deed(&self, case: &Case<'_>) -> Deed {
        let whom = case.whom();
        if self.now {
            let would = format!("end {whom} at once; two may run until it learns of it");
            return Deed { would, did: format!("ended {whom} at once; watch for work that is done twice") };
        }
        let left = case.meant().map_or_else(|| "its lease".to_owned(), |held| text::span(held.remaining));
        Deed {
            would: format!("let {whom} run out, within {left}"),
            did: format!("{whom} is not renewed any more and runs out within {left}"),
        }
    }
}
