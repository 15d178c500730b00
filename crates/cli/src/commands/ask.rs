//! `leasehold ask RESOURCE --token T --by 30s --reason TEXT`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{ErrorKind, ForeignLock, OperatorAction};

use crate::{
    args,
    exit::{Exit, Failure},
    foreign,
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
    pub(crate) order: OrderArgs,
    /// How long the holder has to finish
    #[arg(long, value_name = "DUR", value_parser = args::duration)]
    by: Duration,
}

impl Ask {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let by = humantime::format_duration(self.by).to_string().replace(' ', "");
        let mut order = PendingOrder::open(session, &self.order, &["ask", "--by", &by]).await?;
        if self.order.token.is_none() && order.snapshot.holders.is_empty() {
            order.foreign = order.snapshot.foreign.first().cloned();
        }
        if let Some(lock) = order.foreign.clone() {
            return self.ask_foreign(&order, &lock).await;
        }
        order.check_has_target()?;
        let (holder, span) = (order.target_text(), text::span(self.by));
        let action_text = ActionText::new(
            format!("ask {holder} to finish within {span}"),
            format!("asked {holder} to finish within {span}; it learns of this at its next renewal"),
        );
        self.order.execute(&order, OperatorAction::Ask { within: self.by }, action_text).await
    }

    /// The store decides whether another program can be asked. Curator's locks on ZooKeeper can.
    async fn ask_foreign(&self, order: &PendingOrder<'_>, lock: &ForeignLock) -> Result<ExitCode, Failure> {
        let (name, span) = (foreign::name(lock), text::span(self.by));
        let action_text = ActionText::new(
            format!("ask the program of {name} to finish, if the store can"),
            format!(
                "asked the program of {name} to finish; it is not told of the {span}, and it may not listen"
            ),
        );
        let asked = self.order.execute(order, OperatorAction::Ask { within: self.by }, action_text).await;
        asked.map_err(|failure| {
            if failure.kind != "not_that_one" && failure.kind != ErrorKind::Unsupported.as_str() {
                return failure;
            }
            let message = format!("{}: nothing was done: {name} cannot be asked to finish", order.name());
            let command =
                foreign::evict_command(order.session, &self.order.resource, lock, &self.order.reason);
            Failure::new(Exit::Refused, "foreign", message)
                .hint(format!("end that program, then remove its lock: {command}"))
        })
    }
}
