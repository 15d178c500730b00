//! What all orders share (`ask`, `evict`, `pause`, `resume`, `resize`): the arguments, naming the holder that
//! is meant, dry runs, and the reply.

use std::process::ExitCode;

use clap::Args;
use leasehold::{
    CommandOutcome, FencingToken, ForeignLock, HeldBy, OperatorAction, OperatorCommand, Resource, Snapshot,
    ValueHash,
};
use serde::Serialize;

use crate::{
    exit::{Exit, Failure},
    foreign::{self, ForeignView},
    names,
    session::OperatorSession,
    text, this_host,
    view::{self, ProcessView},
};

/// The arguments of every order.
#[derive(Debug, Args)]
pub(crate) struct OrderArgs {
    /// The resource: [NAMESPACE:]KIND/ID, a plain name, or a path
    #[arg(value_parser = names::resource)]
    pub(crate) resource: Resource,

    /// The fencing token of the holder that you mean, so that the order never hits a newer holder; see `show`
    /// and `why`
    #[arg(long)]
    pub(crate) token: Option<FencingToken>,

    /// The reason, for the holder and for the audit trail
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,

    /// Your name, for the audit trail [default: user@host]
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_OPERATOR")]
    pub(crate) by_whom: Option<String>,

    /// Print what the order would do and to which holder, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl OrderArgs {
    /// Sends the order to the store. With `--dry-run`, only prints what it would do.
    pub(crate) async fn execute(
        &self,
        pending: &PendingOrder<'_>,
        action: OperatorAction,
        text: ActionText,
    ) -> Result<ExitCode, Failure> {
        let command = self.command(action)?;
        if self.dry_run {
            pending.check_holder_unchanged()?;
            return pending.report(&command, &format!("would {}; nothing was done", text.dry_run), false);
        }
        match pending.session.order(&command).await? {
            CommandOutcome::Done => {
                let done = pending.report(&command, &text.done, true);
                pending.print_next(text.next.as_ref());
                done
            }
            // The outcome has only the token of the new holder, so read the resource again to name the
            // holder.
            CommandOutcome::HolderChanged { .. } => Err(pending.refreshed().await?.holder_changed()),
        }
    }

    fn command(&self, action: OperatorAction) -> Result<OperatorCommand, Failure> {
        let by = operator(self.by_whom.as_deref());
        check_texts(&self.reason, &by)?;
        let command = OperatorCommand::new(self.resource.clone(), action, &by, &self.reason);
        Ok(match self.token {
            Some(token) => command.for_token(token),
            None => command,
        })
    }
}

/// Fails if the reason or the name of the operator is empty or too long for the audit trail.
pub(crate) fn check_texts(reason: &str, by: &str) -> Result<(), Failure> {
    for (option, value) in [("--reason", reason), ("--by-whom", by)] {
        if value.trim().is_empty() || value.len() > OperatorCommand::TEXT_MAX {
            let message = format!(
                "{option} must have 1 to {} bytes, and not only spaces; this one has {}",
                OperatorCommand::TEXT_MAX,
                value.len()
            );
            return Err(Failure::usage(message));
        }
    }
    Ok(())
}

/// What an order does, as text.
pub(crate) struct ActionText {
    /// After "would", for a dry run: `pause …`.
    pub(crate) dry_run: String,
    /// A whole sentence, for an order that was carried out.
    pub(crate) done: String,
    /// What can be done after this order: a text and a command.
    pub(crate) next: Option<(String, String)>,
}

impl ActionText {
    pub(crate) fn new(dry_run: impl Into<String>, done: impl Into<String>) -> ActionText {
        ActionText { dry_run: dry_run.into(), done: done.into(), next: None }
    }
}

/// An order that is about to be sent, and the state of its resource.
pub(crate) struct PendingOrder<'a> {
    pub(crate) session: &'a OperatorSession,
    pub(crate) args: &'a OrderArgs,
    pub(crate) snapshot: Snapshot,
    /// The lock of another program that the order is about.
    pub(crate) foreign: Option<ForeignLock>,
    /// The value hash that the order names.
    pub(crate) value: Option<ValueHash>,
}

impl<'a> PendingOrder<'a> {
    /// Reads the resource. Fails if it is held and the order has no `--token`: between looking and ordering
    /// the holder may change, and an order without a token would hit the new one. `retry` is the command line
    /// without a token, for the hint.
    pub(crate) async fn open(
        session: &'a OperatorSession,
        args: &'a OrderArgs,
        retry: &[&str],
    ) -> Result<PendingOrder<'a>, Failure> {
        let snapshot = session.snapshot(&args.resource).await?;
        foreign::check_orders_supported(session, &snapshot, &args.reason)?;
        let order = PendingOrder { session, args, snapshot, foreign: None, value: None };
        let Some(held) = view::newest(&order.snapshot).filter(|_| args.token.is_none()) else {
            return Ok(order);
        };
        let token = held.token.to_string();
        let name = args.resource.to_string();
        let words =
            [&[retry[0], &name], &retry[1..], &["--token", &token, "--reason", &args.reason]].concat();
        let message = format!(
            "{} is held: add --token {token} to confirm that you mean {}",
            order.name(),
            text::holder(&held.holder)
        );
        Err(Failure::usage(message).hint(session.command(&words)))
    }

    /// The same order with the current state of its resource.
    pub(crate) async fn refreshed(&self) -> Result<PendingOrder<'a>, Failure> {
        let snapshot = self.session.snapshot(&self.args.resource).await?;
        let (foreign, value) = (self.foreign.clone(), self.value);
        Ok(PendingOrder { session: self.session, args: self.args, snapshot, foreign, value })
    }

    /// The holder with the token of the order, if it is there.
    pub(crate) fn target(&self) -> Option<&HeldBy> {
        self.args.token.and_then(|token| view::find(&self.snapshot, token))
    }

    /// The holder with the token of the order, as text.
    pub(crate) fn target_text(&self) -> String {
        match (self.target(), self.args.token) {
            (Some(held), _) => holder_and_token(held),
            (None, Some(token)) => format!("token {token}"),
            (None, None) => "nobody".to_owned(),
        }
    }

    pub(crate) fn name(&self) -> String {
        view::name(&self.args.resource)
    }

    /// Fails if the holder with the token of the order has gone. If the snapshot does not list all holders,
    /// the holder may be among the others, and the store decides.
    pub(crate) fn check_holder_unchanged(&self) -> Result<(), Failure> {
        let all_listed = self.snapshot.holders.len() == self.snapshot.holder_count as usize;
        let missing = self.args.token.is_some() && self.target().is_none() && all_listed;
        if missing { Err(self.holder_changed()) } else { Ok(()) }
    }

    /// Fails without a token. For orders to a holder (`ask`, `evict`): without a token here, nobody holds the
    /// resource.
    pub(crate) fn check_has_target(&self) -> Result<(), Failure> {
        if self.args.token.is_some() { Ok(()) } else { Err(self.holder_changed()) }
    }

    /// Fails if nobody holds the resource and nobody waits for it. For orders that change a resource in use
    /// (`resize`).
    pub(crate) fn check_in_use(&self) -> Result<(), Failure> {
        let unused = self.snapshot.holder_count == 0 && self.snapshot.queue_length == 0;
        if unused { Err(self.holder_changed()) } else { Ok(()) }
    }

    /// Nothing was done: the resource is not held as the order says.
    pub(crate) fn holder_changed(&self) -> Failure {
        let expected = match (self.args.token, self.value) {
            (Some(token), _) => format!("token {token} does not hold it any more, "),
            (None, Some(value)) => {
                format!("no lock of another program with the value hash {value} holds it, ")
            }
            (None, None) => String::new(),
        };
        let now = match (view::newest(&self.snapshot), self.snapshot.foreign.first()) {
            (Some(held), _) => format!("now it is held by {}", holder_and_token(held)),
            (None, Some(lock)) => {
                format!("it is held by {}, value hash {}", foreign::name(lock), lock.value_hash)
            }
            (None, None) => "nobody holds it".to_owned(),
        };
        let message = format!("{}: nothing was done: {expected}{now}", self.name());
        Failure::new(Exit::Refused, "not_that_one", message)
    }

    /// Prints what can be done next, after an order that was carried out.
    fn print_next(&self, next: Option<&(String, String)>) {
        if let Some((text, command)) = next.filter(|_| !self.session.output.json) {
            self.session.output.note(&format!("{text} {command}"));
        }
    }

    fn report(&self, command: &OperatorCommand, say: &str, done: bool) -> Result<ExitCode, Failure> {
        let screen = self.session.screen();
        if self.session.output.json {
            screen.print_json(&OrderReport {
                order: command.action.as_str(),
                resource: self.args.resource.to_string(),
                token: self.args.token.map(|token| token.to_string()),
                holder: self.target().map(|held| ProcessView::of(&held.holder)),
                foreign: self.foreign.as_ref().map(ForeignView::of),
                by: &command.by,
                why: &command.why,
                dry_run: self.args.dry_run,
                done,
                say,
            })?;
        } else if !self.session.output.quiet {
            screen.print(&format!("{}: {say}\n", self.name()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The JSON output of an order.
#[derive(Serialize)]
struct OrderReport<'a> {
    order: &'static str,
    resource: String,
    token: Option<String>,
    holder: Option<ProcessView>,
    foreign: Option<ForeignView>,
    by: &'a str,
    why: &'a str,
    dry_run: bool,
    done: bool,
    say: &'a str,
}

/// `1234@host label (token 17)`
pub(crate) fn holder_and_token(held: &HeldBy) -> String {
    format!("{} (token {})", text::holder(&held.holder), held.token)
}

/// The name of the operator for the audit trail: `--by-whom`, else `user@host`.
pub(crate) fn operator(by_whom: Option<&str>) -> String {
    by_whom.map_or_else(|| format!("{}@{}", this_host::user(), this_host::name()), str::to_owned)
}
