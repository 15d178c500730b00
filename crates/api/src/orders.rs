//! `POST /v1/orders`: operators' commands. They are not safe to send again.

use std::{num::NonZeroU32, time::Duration};

use leasehold_core::{CommandOutcome, Error, Eviction, OperatorAction, OperatorCommand, Resource, Result};
use serde::{Deserialize, Serialize};

use crate::{
    acquire::unreadable,
    fields::{self, TokenText, invalid},
    list::{self, Entry, Unreadable},
    problem::{Problem, ProblemKind, RefusedVerdict},
};

/// A command, as an operator's program sends it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(
    feature = "openapi",
    derive(schemars::JsonSchema),
    schemars(extend("oneOf" = crate::openapi::one_name()))
)]
#[serde(deny_unknown_fields)]
pub struct OrderBody {
    /// The resource, as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceName>"))]
    pub resource: Option<String>,
    /// The resource by its key: for hashed ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<crate::openapi::ResourceKey>"))]
    pub key: Option<String>,
    /// What to do.
    pub action: ActionName,
    /// The token of the grant that an `ask` or `evict` is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenText>,
    /// Whichever grant is the newest, instead of a token.
    #[serde(default, skip_serializing_if = "is_false")]
    pub any: bool,
    /// The reason: it is written to the audit trail.
    #[cfg_attr(feature = "openapi", schemars(extend("minLength" = 1, "maxLength" = leasehold_core::OperatorCommand::TEXT_MAX)))]
    pub why: String,
    /// Who asks. Only used if the server knows no subject: otherwise that is the caller's token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// `ask`: how much time the holder has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
    /// `pause`: its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasting_ms: Option<u64>,
    /// `resize`: the new capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("minimum" = 1)))]
    pub capacity: Option<u32>,
    /// `evict-foreign`: the hash of the lock's value, as the resource shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(extend("pattern" = "^[0-9a-fA-F]{16}$")))]
    pub value_hash: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What an operator can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ActionName {
    /// Asks the holder to finish.
    Ask,
    /// Ends the holder's lease at its expiry.
    Evict,
    /// Ends the holder's lease at once: two may run.
    EvictNow,
    /// Removes the lock of another program: two may run.
    EvictForeign,
    /// Grants nothing for a while.
    Pause,
    /// Ends a pause.
    Resume,
    /// Changes the capacity.
    Resize,
}

impl ActionName {
    /// Whether the action is for one holder, so that the request must say which.
    pub fn is_for_a_holder(self) -> bool {
        matches!(self, ActionName::Ask | ActionName::Evict | ActionName::EvictNow)
    }
}

impl OrderBody {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// If it is not one.
    pub fn read(body: &[u8]) -> Result<OrderBody, Unreadable> {
        list::read_body(body)
    }

    /// The command as a client sends it. `None` for an action that this version does not know.
    pub fn of(command: &OperatorCommand) -> Option<OrderBody> {
        let (resource, key) = fields::write_resource(&command.resource);
        let mut body = OrderBody {
            resource,
            key,
            action: ActionName::Resume,
            token: command.token.map(TokenText),
            any: false,
            why: command.why.clone(),
            by: Some(command.by.clone()),
            within_ms: None,
            lasting_ms: None,
            capacity: None,
            value_hash: None,
        };
        body.action = match command.action {
            OperatorAction::Ask { within } => {
                body.within_ms = Some(fields::ms_down(within));
                ActionName::Ask
            }
            OperatorAction::Evict(Eviction::AtExpiry) => ActionName::Evict,
            OperatorAction::Evict(Eviction::Now) => ActionName::EvictNow,
            OperatorAction::EvictForeign { value } => {
                body.value_hash = Some(value.to_string());
                ActionName::EvictForeign
            }
            OperatorAction::Pause { lasting } => {
                body.lasting_ms = Some(fields::ms_up(lasting));
                ActionName::Pause
            }
            OperatorAction::Resume => ActionName::Resume,
            OperatorAction::Resize { capacity } => {
                body.capacity = Some(capacity.get());
                ActionName::Resize
            }
            _ => return None,
        };
        // A command of the library without a token is for the newest grant.
        body.any = body.action.is_for_a_holder() && body.token.is_none();
        Some(body)
    }

    /// Whether the command must say which grant it means, and does not: 428.
    pub fn lacks_token(&self) -> bool {
        self.action.is_for_a_holder() && self.token.is_none() && !self.any
    }

    /// The command for the store, in the name of `by`.
    ///
    /// # Errors
    /// `Invalid` if the resource cannot be read, or if a field that the action needs is missing, or one is given that it does not
    /// take.
    pub fn command(&self, by: &str) -> Result<OperatorCommand> {
        let resource = fields::read_resource(self.resource.as_deref(), self.key.as_deref())?;
        if self.any && self.token.is_some() {
            return Err(invalid("both `token` and `any` are given: send one of them"));
        }
        self.check_fields()?;
        let missing = |field: &str| invalid(format!("`{field}` is missing: the action needs it"));
        let action = match self.action {
            ActionName::Ask => {
                let within_ms = self.within_ms.ok_or_else(|| missing("within_ms"))?;
                OperatorAction::Ask { within: Duration::from_millis(within_ms) }
            }
            ActionName::Evict => OperatorAction::Evict(Eviction::AtExpiry),
            ActionName::EvictNow => OperatorAction::Evict(Eviction::Now),
            ActionName::EvictForeign => {
                let value = self.value_hash.as_deref().ok_or_else(|| missing("value_hash"))?.parse()?;
                OperatorAction::EvictForeign { value }
            }
            ActionName::Pause => {
                let lasting_ms = self.lasting_ms.ok_or_else(|| missing("lasting_ms"))?;
                OperatorAction::Pause { lasting: Duration::from_millis(lasting_ms) }
            }
            ActionName::Resume => OperatorAction::Resume,
            ActionName::Resize => {
                let capacity = self.capacity.and_then(NonZeroU32::new);
                OperatorAction::Resize { capacity: capacity.ok_or_else(|| missing("capacity"))? }
            }
        };
        let mut command = OperatorCommand::new(resource, action, by, &self.why);
        command.token = self.token.map(|token| token.0);
        Ok(command)
    }

    /// A field that belongs to another action is a mistake: the caller meant something else.
    fn check_fields(&self) -> Result<()> {
        let given = [
            ("within_ms", self.within_ms.is_some(), ActionName::Ask),
            ("lasting_ms", self.lasting_ms.is_some(), ActionName::Pause),
            ("capacity", self.capacity.is_some(), ActionName::Resize),
            ("value_hash", self.value_hash.is_some(), ActionName::EvictForeign),
        ];
        let wrong = given.into_iter().find(|(_, given, action)| *given && *action != self.action);
        wrong.map_or(Ok(()), |(field, ..)| Err(invalid(format!("this action does not take `{field}`"))))
    }
}

/// The answer to a command that was carried out: 200.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum OrderReply {
    /// It was carried out and written to the audit trail.
    Done {
        /// The resource, as people write it.
        resource: String,
        /// Its key.
        key: String,
    },
}

/// What the server answers to this command.
pub fn reply(command: &OperatorCommand, outcome: Result<CommandOutcome>) -> Entry<OrderReply> {
    let resource = &command.resource;
    let problem = match outcome {
        Ok(CommandOutcome::Done) => {
            let (resource, key) = (resource.to_string(), resource.key().to_owned());
            return Entry::Reply(200, OrderReply::Done { resource, key });
        }
        Ok(CommandOutcome::HolderChanged { token }) => {
            let detail = token.map_or_else(
                || "nobody holds it now; nothing was done".to_owned(),
                |token| format!("the newest grant has the token {token}; nothing was done"),
            );
            let mut problem =
                Problem::new(ProblemKind::NotThatOne, detail).with_verdict(RefusedVerdict::HolderChanged);
            problem.token = token.map(TokenText);
            problem
        }
        Err(error) => Problem::from(&error),
    };
    problem.on(resource).into()
}

/// What the answer means for the client that sent this command.
///
/// # Errors
/// As [`acquire::outcome`](crate::acquire::outcome).
pub fn outcome(command: &OperatorCommand, entry: Entry<OrderReply>) -> Result<CommandOutcome> {
    let another = || unreadable("the server's answer names another resource").on(&command.resource);
    let is_ours = |key: &str| Resource::from_key(key).is_ok_and(|resource| resource == command.resource);
    match entry.into_result() {
        Ok(OrderReply::Done { key, .. }) if is_ours(&key) => Ok(CommandOutcome::Done),
        Ok(OrderReply::Done { .. }) => Err(another()),
        Err(problem) if problem.key.as_deref().is_some_and(|key| !is_ours(key)) => Err(another()),
        Err(problem) => match problem.verdict {
            Some(RefusedVerdict::HolderChanged) => {
                Ok(CommandOutcome::HolderChanged { token: problem.token.map(|token| token.0) })
            }
            _ => Err(Error::from(&*problem)),
        },
    }
}
