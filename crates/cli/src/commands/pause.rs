//! `leasehold pause RESOURCE --for 10m --reason TEXT` and `leasehold resume RESOURCE --reason TEXT`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, OperatorAction, SystemClock};

use crate::{
    args,
    desk::Desk,
    exit::Failure,
    order::{Case, Deed, OrderArgs},
    text,
};

#[derive(Debug, Args)]
#[command(
    after_help = "Holders stay, and those who wait keep their places; nobody is granted until the end."
)]
pub(crate) struct Pause {
    #[command(flatten)]
    order: OrderArgs,
    /// How long
    #[arg(long = "for", value_name = "DUR", value_parser = args::duration)]
    lasting: Duration,
}

impl Pause {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        if self.lasting.is_zero() {
            return Err(Failure::usage("--for has to be longer than nothing")
                .hint("to grant again: leasehold resume"));
        }
        let lasting = humantime::format_duration(self.lasting).to_string().replace(' ', "");
        let case = Case::open(desk, &self.order, &["pause", "--for", &lasting]).await?;
        let until = text::time(SystemClock.wall().after(self.lasting));
        let deed = Deed {
            would: format!("grant nothing until {until}"),
            did: format!("nothing is granted until {until}; who holds it stays"),
        };
        self.order.give(&case, OperatorAction::Pause { lasting: self.lasting }, deed).await
    }
}

#[derive(Debug, Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    order: OrderArgs,
}

impl Resume {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let case = Case::open(desk, &self.order, &["resume"]).await?;
        let was = match case.seen.paused_for {
            Some(left) => format!("; the pause had {} left", text::span(left)),
            None => "; it was not paused".to_owned(),
        };
        let deed = Deed { would: format!("grant again{was}"), did: format!("it is granted again{was}") };
        self.order.give(&case, OperatorAction::Resume, deed).await
    }
}
