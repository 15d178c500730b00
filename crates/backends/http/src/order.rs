//! The verb `order`: `POST /v1/orders`. An order is never sent twice.

use leasehold_api::{
    list::Entry,
    orders::{self, OrderBody, OrderReply},
    routes,
};
use leasehold_core::{CommandOutcome, Error, ErrorKind, OperatorCommand, Result};

use crate::{backend::Http, connection::Call, error, list};

impl Http {
    pub(crate) async fn try_order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        let body = OrderBody::of(command).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the API of the server does not have this order")
        })?;
        let call = Call::post(routes::ORDERS, list::body(&body)?, self.connections.config.timeout);
        let mut answer = self.connections.call(&call.never_repeated()).await?;
        let server = &self.connections.server;
        if (300..400).contains(&answer.status) {
            return Err(error::not_leasehold(server, answer.status));
        }
        let entry = Entry::<OrderReply>::read(answer.status, &answer.body).map_err(|why| {
            answer.distrust();
            error::unreadable(server, &why)
        })?;
        let is_reply = matches!(entry, Entry::Reply(..));
        let outcome = orders::outcome(command, entry);
        if is_reply && outcome.is_err() {
            answer.distrust();
        }
        outcome
    }
}
