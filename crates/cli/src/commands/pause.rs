//! `leasehold pause RESOURCE --for 10m --reason TEXT` and `leasehold resume RESOURCE --reason TEXT`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, OperatorAction, SystemClock};

use crate::{
    args,
    exit::Failure,
    order::{self, ActionText, OrderArgs, PendingOrder},
    session::OperatorSession,
    text,
};

#[derive(Debug, Args)]
#[command(
    after_help = "Holders keep their leases, and waiters keep their places in the queue. No claim is granted until the \
                  pause ends."
)]
pub(crate) struct Pause {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// How long the pause lasts
    #[arg(long = "for", value_name = "DUR", value_parser = args::duration)]
    lasting: Duration,
}

impl Pause {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        if self.lasting.is_zero() {
            return Err(
                Failure::usage("--for must be greater than 0").hint("to end a pause, use leasehold resume")
            );
        }
        let lasting = humantime::format_duration(self.lasting).to_string().replace(' ', "");
        let order = PendingOrder::open(session, &self.order, &["pause", "--for", &lasting]).await?;
        let until = SystemClock.wall().after(self.lasting);
        let by = order::operator(self.order.by_whom.as_deref());
        let done = text::paused(until, Some((&by, &self.order.reason))) + ".";
        let dry_run = format!("pause it until {}: no claim would be granted", text::time(until));
        let action_text = ActionText::new(dry_run, done);
        self.order.execute(&order, OperatorAction::Pause { lasting: self.lasting }, action_text).await
    }
}

#[derive(Debug, Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
}

impl Resume {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let order = PendingOrder::open(session, &self.order, &["resume"]).await?;
        let action_text = match order.snapshot.paused_for.map(text::span) {
            Some(left) => ActionText::new(
                format!("end the pause, which has {left} left"),
                format!("claims are granted again; the pause had {left} left"),
            ),
            None => ActionText::new("change nothing: it is not paused", "Not paused; nothing changed."),
        };
        self.order.execute(&order, OperatorAction::Resume, action_text).await
    }
}
