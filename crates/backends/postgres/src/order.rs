//! The verb `order`: an operator's command, one call of the SQL function `command`. The audit record is written in the same
//! transaction.

use leasehold_core::{
    CommandOutcome, Error, ErrorKind, FencingToken, OperatorAction, OperatorCommand, Result,
};
use tokio_postgres::types::Type;

use crate::{
    acquire::NO_TOKEN,
    backend::Postgres,
    connection::Parameter,
    reply::{Columns as _, first_row, micros},
};

/// The columns that `command` returns.
mod column {
    pub(super) const DONE: usize = 0;
    /// The newest token, if the command was not done.
    pub(super) const NEWEST: usize = 1;
}

impl Postgres {
    pub(crate) async fn try_order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        check_texts(order)?;
        // What the number means depends on the action: see `order.sql`.
        let number = match order.action {
            OperatorAction::Ask { within } => micros(within),
            OperatorAction::Pause { lasting } => micros(lasting),
            OperatorAction::Resize { capacity } => i64::from(capacity.get()),
            _ => 0,
        };
        let (key, action) = (order.resource.key(), order.action.as_str());
        let token = order.token.map_or(NO_TOKEN, FencingToken::as_i64);
        let parameters: [Parameter<'_>; 6] = [
            (&key, Type::TEXT),
            (&token, Type::INT8),
            (&order.by, Type::TEXT),
            (&order.why, Type::TEXT),
            (&action, Type::TEXT),
            (&number, Type::INT8),
        ];
        let rows = self.connections.query(&self.statements.order, &parameters).await?;
        let row = first_row(&rows)?;
        if row.read(column::DONE)? {
            return Ok(CommandOutcome::Done);
        }
        // Null if the resource has no holder.
        let newest = row.read::<Option<i64>>(column::NEWEST)?.is_some();
        let newest = newest.then(|| row.token(column::NEWEST, "seat.token")).transpose()?;
        Ok(CommandOutcome::HolderChanged { token: newest })
    }
}

/// Checks the texts of a command before they are sent. PostgreSQL has no zero bytes in texts.
fn check_texts(order: &OperatorCommand) -> Result<()> {
    let max = OperatorCommand::TEXT_MAX;
    for (name, text) in [("by", &order.by), ("why", &order.why)] {
        if text.len() > max {
            let message =
                format!("{name:?} has {} bytes, and at most {max} are allowed: shorten it", text.len());
            return Err(Error::new(ErrorKind::Limit, message));
        }
    }
    for (name, text) in [("by", &order.by), ("why", &order.why)] {
        if text.contains('\0') {
            return Err(Error::new(ErrorKind::Invalid, format!("{name:?} must not contain a zero byte")));
        }
    }
    Ok(())
}
