//! `POST /v1/orders`: operators' commands.

use leasehold_api::{
    Problem, ProblemKind,
    orders::{self, OrderBody},
};
use leasehold_core::OperatorCommand;

use crate::{answer::Answer, body, bounds, router::Call};

/// The operator in the audit trail, if the server asks for no token and the body names nobody.
const NOBODY: &str = "anonymous";

pub(crate) async fn answer(call: &Call<'_>, bytes: &[u8]) -> Result<Answer, Problem> {
    let body = OrderBody::read(bytes).map_err(|error| body::unreadable(&error))?;
    // The subject is what the server knows; `by` is only what the caller says.
    let by = call.caller.subject().or(body.by.as_deref()).unwrap_or(NOBODY);
    for (field, text) in [("by", by), ("why", &body.why)] {
        if text.len() > OperatorCommand::TEXT_MAX {
            let detail = format!(
                "`{field}` has {} bytes, and at most {} are allowed",
                text.len(),
                OperatorCommand::TEXT_MAX
            );
            return Err(bounds::invalid(detail));
        }
    }
    if body.why.trim().is_empty() {
        return Err(bounds::invalid("`why` is empty: write the reason, for the audit trail"));
    }
    let command = body.command(by).map_err(|error| bounds::refused(&error))?;
    call.caller.check_resource(&command.resource)?;
    if body.lacks_token() {
        let detail = "the order has neither `token` nor `\"any\":true`";
        return Err(Problem::new(ProblemKind::TokenRequired, detail).on(&command.resource));
    }
    let outcome = call.shared.store.order(command.clone()).await;
    call.shared.audit.forget(&command.resource);
    Ok(orders::reply(&command, outcome).into())
}
