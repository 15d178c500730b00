//! `leasehold ask RESOURCE --token T --by 30s --reason TEXT`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::OperatorAction;

use crate::{
    args,
    desk::Desk,
    exit::Failure,
    order::{Case, Deed, OrderArgs},
    text,
};

#[derive(Debug, Args)]
#[command(
    after_help = "The holder learns of it at its next renewal: a program as an event, a command of `leasehold run` \
                        by a signal. Nothing is taken from it."
)]
pub(crate) struct Ask {
    #[command(flatten)]
    order: OrderArgs,
    /// How long it has
    #[arg(long, value_name = "DUR", value_parser = args::duration)]
    by: Duration,
}

impl Ask {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let by = humantime::format_duration(self.by).to_string().replace(' ', "");
        let case = Case::open(desk, &self.order, &["ask", "--by", &by]).await?;
        case.check_meant()?;
        let (whom, span) = (case.whom(), text::span(self.by));
        let deed = Deed {
            would: format!("ask {whom} to finish within {span}"),
            did: format!("asked {whom} to finish within {span}; it learns of it at its next renewal"),
        };
        self.order.give(&case, OperatorAction::Ask { within: self.by }, deed).await
    }
}
