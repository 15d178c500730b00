//! What all orders share: whom they mean, who gives them and why, doing or only saying so, and the answer.

use std::{env, process::ExitCode};

use clap::Args;
use leasehold::{CommandOutcome, FencingToken, HeldBy, OperatorAction, OperatorCommand, Resource, Snapshot};
use serde::Serialize;

use crate::{
    desk::Desk,
    exit::{Exit, Failure},
    names, text,
    view::{self, WhoView},
};

/// What every order takes.
#[derive(Debug, Args)]
pub(crate) struct OrderArgs {
    /// Which, as kind/id or namespace:kind/id
    #[arg(value_parser = names::resource)]
    pub(crate) resource: Resource,

    /// The holder that is meant, so that a newer one is never hit by mistake; `show` and `why` print it
    #[arg(long)]
    pub(crate) token: Option<FencingToken>,

    /// Why, for the holder and the audit trail
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,

    /// Who you are, for the audit trail [default: user@host]
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_OPERATOR")]
    pub(crate) by_whom: Option<String>,

    /// Say what would be done and to whom, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl OrderArgs {
    /// Gives the order, or only says what it would do.
    pub(crate) async fn give(
        &self,
        case: &Case<'_>,
        command: OperatorAction,
        deed: Deed,
    ) -> Result<ExitCode, Failure> {
        let order = self.order(command)?;
        if self.dry_run {
            case.check_there()?;
            return case.report(&order, &format!("would {}; nothing was done", deed.would), false);
        }
        match case.desk.order(&order).await? {
            CommandOutcome::Done => case.report(&order, &deed.did, true),
            // Who is there now is asked again: the answer has but a token.
            CommandOutcome::HolderChanged { .. } => Err(case.again().await?.not_that_one()),
        }
    }

    fn order(&self, command: OperatorAction) -> Result<OperatorCommand, Failure> {
        let by = self.by_whom.clone().unwrap_or_else(operator);
        for (option, said) in [("--reason", &self.reason), ("--by-whom", &by)] {
            if said.trim().is_empty() || said.len() > OperatorCommand::TEXT_MAX {
                return Err(Failure::usage(format!("{option} has 1 to {} bytes", OperatorCommand::TEXT_MAX)));
            }
        }
        let order = OperatorCommand::new(self.resource.clone(), command, &by, &self.reason);
        Ok(match self.token {
            Some(token) => order.for_token(token),
            None => order,
        })
    }
}

/// A deed in two moods.
pub(crate) struct Deed {
    pub(crate) would: String,
    pub(crate) did: String,
}

/// An order and the resource that it is for, as it was found.
pub(crate) struct Case<'a> {
    pub(crate) desk: &'a Desk,
    pub(crate) args: &'a OrderArgs,
    pub(crate) seen: Snapshot,
}

impl<'a> Case<'a> {
    /// Looks, and sees that the order says whom it means. `retry` is the command line without a token.
    pub(crate) async fn open(
        desk: &'a Desk,
        args: &'a OrderArgs,
        retry: &[&str],
    ) -> Result<Case<'a>, Failure> {
        desk.check_orders()?;
        let case = Case { desk, args, seen: desk.one(&args.resource).await? };
        let Some(held) = view::newest(&case.seen).filter(|_| args.token.is_none()) else { return Ok(case) };
        let token = held.token.to_string();
        let name = args.resource.to_string();
        let words =
            [&[retry[0], &name], &retry[1..], &["--token", &token, "--reason", &args.reason]].concat();
        let message =
            format!("{}: an order says which holder it means, and now it is {}", case.name(), who(held));
        Err(Failure::usage(message).hint(desk.command(&words)))
    }

    /// As it is now.
    pub(crate) async fn again(&self) -> Result<Case<'a>, Failure> {
        Ok(Case { desk: self.desk, args: self.args, seen: self.desk.one(&self.args.resource).await? })
    }

    /// The holder that is meant.
    pub(crate) fn meant(&self) -> Option<&HeldBy> {
        self.args.token.and_then(|token| view::find(&self.seen, token))
    }

    /// The holder that is meant, in words.
    pub(crate) fn whom(&self) -> String {
        match (self.meant(), self.args.token) {
            (Some(held), _) => who(held),
            (None, Some(token)) => format!("token {token}"),
            (None, None) => "nobody".to_owned(),
        }
    }

    pub(crate) fn name(&self) -> String {
        view::name(&self.args.resource)
    }

    /// Refuses if the holder that is meant is not there; it may be if there are more than are listed.
    pub(crate) fn check_there(&self) -> Result<(), Failure> {
        let all_listed = self.seen.holders.len() == self.seen.holder_count as usize;
        let missing = self.args.token.is_some() && self.meant().is_none() && all_listed;
        if missing { Err(self.not_that_one()) } else { Ok(()) }
    }

    /// An order that only a holder can be given needs a holder.
    pub(crate) fn check_meant(&self) -> Result<(), Failure> {
        if self.args.token.is_some() { Ok(()) } else { Err(self.not_that_one()) }
    }

    /// An order that changes what is in use needs someone to be there.
    pub(crate) fn check_in_use(&self) -> Result<(), Failure> {
        let nobody = self.seen.holder_count == 0 && self.seen.queue_length == 0;
        if nobody { Err(self.not_that_one()) } else { Ok(()) }
    }

    fn not_that_one(&self) -> Failure {
        let meant = match self.args.token {
            Some(token) => format!("token {token} does not hold it any more; nothing was done"),
            None => "nothing was done".to_owned(),
        };
        let now = match view::newest(&self.seen) {
            Some(held) => format!("now it is held by {}", who(held)),
            None => "nobody holds it".to_owned(),
        };
        Failure::new(Exit::Refused, "not_that_one", format!("{}: {meant}; {now}", self.name()))
    }

    fn report(&self, order: &OperatorCommand, say: &str, done: bool) -> Result<ExitCode, Failure> {
        let screen = self.desk.screen();
        if self.desk.output.json {
            screen.print_json(&Report {
                order: order.action.as_str(),
                resource: self.args.resource.to_string(),
                token: self.args.token.map(|token| token.to_string()),
                holder: self.meant().map(|held| WhoView::of(&held.holder)),
                by: &order.by,
                why: &order.why,
                dry_run: self.args.dry_run,
                done,
                say,
            })?;
        } else if !self.desk.output.quiet {
            screen.print(&format!("{}: {say}\n", self.name()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What was done, or would be, for programs.
#[derive(Serialize)]
struct Report<'a> {
    order: &'static str,
    resource: String,
    token: Option<String>,
    holder: Option<WhoView>,
    by: &'a str,
    why: &'a str,
    dry_run: bool,
    done: bool,
    say: &'a str,
}

/// `1234@host label (token 17)`
pub(crate) fn who(held: &HeldBy) -> String {
    format!("{} (token {})", text::holder(&held.holder), held.token)
}

/// `user@host`, and under sudo the user who called it.
pub(crate) fn operator() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| env::var(name).ok().filter(|n| !n.is_empty()));
    let user = named.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()));
    format!("{user}@{}", host())
}

/// This host, as holders name theirs.
pub(crate) fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    leasehold::Holder::new(&name, 0, "").host
}
