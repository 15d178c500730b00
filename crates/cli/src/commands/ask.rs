//! `leasehold ask RESOURCE --token T --by 30s --reason TEXT`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::OperatorAction;

use crate::{
    args,
    exit::Failure,
    order::{ActionText, OrderArgs, PendingOrder},
    session::OperatorSession,
    text,
};

#[derive(Debug, Args)]
#[command(
    after_help = "The holder learns of the request at its next renewal: a program by an event, a command of `leasehold \
                  run --on-ask` by a signal. The holder keeps its lease."
)]
pub(crate) struct Ask {
    #[command(flatten)]
    order: OrderArgs,
    /// How long the holder has to finish
    #[arg(long, value_name = "DUR", value_parser = args::duration)]
    by: Duration,
}

impl Ask {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let by = humantime::format_duration(self.by).to_string().replace(' ', "");
        let order = PendingOrder::open(session, &self.order, &["ask", "--by", &by]).await?;
        order.check_has_target()?;
        let (holder, span) = (order.target_text(), text::span(self.by));
        let action_text = ActionText {
            dry_run: format!("ask {holder} to finish within {span}"),
            done: format!("asked {holder} to finish within {span}; it learns of this at its next renewal"),
        };
        self.order.execute(&order, OperatorAction::Ask { within: self.by }, action_text).await
    }
}
