//! `leasehold pause RESOURCE --for 10m --reason TEXT` and `leasehold resume RESOURCE --reason TEXT`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, OperatorAction, SystemClock};

use crate::{
    args,
    exit::Failure,
    order::{ActionText, OrderArgs, PendingOrder},
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
    order: OrderArgs,
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
        let until = text::time(SystemClock.wall().after(self.lasting));
        let action_text = ActionText {
            dry_run: format!("pause it until {until}: no claim would be granted"),
            done: format!("paused until {until}: no claim is granted; holders keep their leases"),
        };
        self.order.execute(&order, OperatorAction::Pause { lasting: self.lasting }, action_text).await
    }
}

#[derive(Debug, Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    order: OrderArgs,
}

impl Resume {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let order = PendingOrder::open(session, &self.order, &["resume"]).await?;
        let before = match order.snapshot.paused_for {
            Some(left) => format!("; the pause had {} left", text::span(left)),
            None => "; it was not paused".to_owned(),
        };
        let action_text = ActionText {
            dry_run: format!("end the pause{before}"),
            done: format!("claims are granted again{before}"),
        };
        self.order.execute(&order, OperatorAction::Resume, action_text).await
    }
}
