//! `leasehold resize RESOURCE --capacity N --reason TEXT`

use std::{num::NonZeroU32, process::ExitCode};

use clap::{Args, builder::TypedValueParser as _, value_parser};
use leasehold::OperatorAction;

use crate::{
    desk::Desk,
    exit::Failure,
    order::{Case, Deed, OrderArgs},
};

#[derive(Debug, Args)]
#[command(
    after_help = "For a semaphore that is in use; when nobody is there, the next claim says the capacity. Made \
                        smaller, nobody loses what he holds: nothing is granted until enough has been given back. All \
                        who use it have to be started with the new capacity: a claim with another one is refused."
)]
pub(crate) struct Resize {
    #[command(flatten)]
    order: OrderArgs,
    /// How much there is to be from now on
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..).try_map(NonZeroU32::try_from))]
    capacity: NonZeroU32,
}

impl Resize {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let capacity = self.capacity.to_string();
        let case = Case::open(desk, &self.order, &["resize", "--capacity", &capacity]).await?;
        if self.order.dry_run {
            case.check_in_use()?;
        }
        let was = case.seen.capacity;
        let deed = Deed {
            would: format!("change the capacity from {was} to {capacity}"),
            did: format!("the capacity is {capacity} from now on; it was {was}"),
        };
        self.order.give(&case, OperatorAction::Resize { capacity: self.capacity }, deed).await
    }
}
