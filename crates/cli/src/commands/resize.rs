//! `leasehold resize RESOURCE --capacity N --reason TEXT`

use std::{num::NonZeroU32, process::ExitCode};

use clap::{Args, builder::TypedValueParser as _, value_parser};
use leasehold::OperatorAction;

use crate::{
    exit::Failure,
    order::{ActionText, OrderArgs, PendingOrder},
    session::OperatorSession,
    view,
};

#[derive(Debug, Args)]
#[command(
    after_help = "Changes the capacity of a semaphore that is in use. A semaphore that nobody uses has no capacity: the \
                  next claim sets it. With a smaller capacity, holders keep their leases, and no claim is granted until \
                  enough of them are released. Start all programs that use the semaphore with the new capacity: a claim \
                  with another capacity is refused."
)]
pub(crate) struct Resize {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// The new capacity
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..).try_map(NonZeroU32::try_from))]
    capacity: NonZeroU32,
}

impl Resize {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let capacity = self.capacity.to_string();
        let order = PendingOrder::open(session, &self.order, &["resize", "--capacity", &capacity]).await?;
        if self.order.dry_run {
            order.check_in_use()?;
        }
        let before = view::capacity(order.snapshot.capacity);
        let action_text = ActionText::new(
            format!("change the capacity from {before} to {capacity}"),
            format!("changed the capacity from {before} to {capacity}"),
        );
        self.order.execute(&order, OperatorAction::Resize { capacity: self.capacity }, action_text).await
    }
}
