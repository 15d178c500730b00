//! The verb `order`: an operator's command, and its record in the audit stream, in one step.

use std::borrow::Cow;

use leasehold_core::{
    ClaimRef, CommandOutcome, Error, ErrorKind, FencingToken, OperatorAction, OperatorCommand, OwnerToken,
};

use crate::{
    backend::{Redis, millis},
    error::StoreError,
    keys::Keys,
    reply::Fields,
    script,
};

/// How often an eviction without a token is repeated because the holder changed.
const HOLDER_CHANGES_MAX: u32 = 16;

impl Redis {
    /// Carries out a command.
    ///
    /// An immediate eviction writes the tombstone of the holder, whose key has to be named in the call. The
    /// client does not know the holder, so the script replies with its owner token first, and the call is
    /// repeated with it.
    pub(crate) async fn try_order(&self, command: &OperatorCommand) -> Result<CommandOutcome, StoreError> {
        let argument = match command.action {
            OperatorAction::Ask { within } => millis(within).to_string(),
            OperatorAction::Pause { lasting } => millis(lasting).to_string(),
            OperatorAction::Resize { capacity } => capacity.to_string(),
            OperatorAction::EvictForeign { value } => value.to_string(),
            _ => "0".to_owned(),
        };
        let mut holder = String::new();
        for _ in 0..HOLDER_CHANGES_MAX {
            let mut call = script::ORDER.call(10);
            let mut keys = Keys::of(&command.resource);
            keys.push_all(&mut call, &holder);
            call.arg(keys.audit());
            self.push_common_arguments(&mut call, &command.resource);
            call.arg(&holder).arg(command.token.map_or(0, FencingToken::get));
            call.arg(&command.by).arg(&command.why).arg(command.action.as_str()).arg(&argument);
            let reply = self.router.run(&command.resource, &script::ORDER, &|_| Cow::Borrowed(&call)).await;
            // The owner only names a tombstone in the search for a key of a wrong type. Here there is none.
            let no_owner = OwnerToken::from_bytes([0; 16]);
            let claim = ClaimRef { resource: command.resource.clone(), owner: no_owner };
            let mut fields = Fields::of(self.name_wrong_type(claim, reply).await?)?;
            match fields.text()?.as_str() {
                "done" => return Ok(CommandOutcome::Done),
                "who" => holder = fields.text()?,
                _ => return Ok(CommandOutcome::HolderChanged { token: fields.maybe_token()? }),
            }
        }
        let message = "the holder changed again and again: add the token of the holder that you mean";
        Err(StoreError::Translated(Error::new(ErrorKind::Unavailable, message)))
    }
}
