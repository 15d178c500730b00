//! Naming a held lease in the command line of `renew` and `release`: by a resource and its owner token, or by a lease file.

use std::{io, path::PathBuf, time::Duration};

use clap::Args;
use leasehold::{ClaimRef, OwnerToken, Resource};

use crate::{
    args::Global,
    claim::nested::outer_runs,
    commands::Context,
    exit::{Exit, Failure},
    lease_file::{Found, LeaseFile, LeaseRecord},
    names,
    output::Output,
    redact, secret_file,
    store::Store,
};

/// How long the store has to reply to one request.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(10);
/// The variable with the owner token.
const OWNER: &str = "LEASEHOLD_OWNER";

#[derive(Debug, Args)]
pub(crate) struct LeaseArgs {
    /// The resource, as it was acquired
    #[arg(value_parser = names::resource, required_unless_present = "file", conflicts_with = "file")]
    pub(crate) resource: Option<Resource>,

    /// The owner token; - reads it from stdin. Every user of this host can see it in the command line with ps: better leave it out
    /// and set `LEASEHOLD_OWNER`
    #[arg(long, value_name = "TOKEN", conflicts_with = "file")]
    owner: Option<String>,

    /// The lease file of acquire -o
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// A held lease, with the store that it is in.
pub(crate) struct LeaseReference {
    pub(crate) claim: ClaimRef,
    pub(crate) context: Context,
    /// The ttl that it was acquired with, if that is known.
    pub(crate) ttl: Option<Duration>,
    pub(crate) file: Option<(LeaseFile, LeaseRecord)>,
}

/// What the arguments name.
pub(crate) enum Named {
    Lease(Box<LeaseReference>),
    /// A file whose lease was released.
    Released(LeaseFile),
}

impl LeaseArgs {
    pub(crate) fn find(&self, global: &Global, output: Output) -> Result<Named, Failure> {
        let mut context = Context::new(global, output)?;
        if let Some(path) = &self.file {
            let file = LeaseFile::new(path).map_err(Failure::host)?;
            let Some(record) = read(&file, output)? else { return Ok(Named::Released(file)) };
            // A store of the variable may have a password, which the file has not.
            if !global.typed.store && context.store.shown() != record.held.store {
                context.store = Store::choose_or(Some(&record.held.store), global)?;
            }
            let claim = ClaimRef { resource: record.held.resource.clone(), owner: record.held.owner };
            redact::register(&claim.owner.reveal());
            let ttl = Some(record.held.ttl);
            let lease = LeaseReference { claim, context, ttl, file: Some((file, record)) };
            return Ok(Named::Lease(Box::new(lease)));
        }
        let Some(resource) = self.resource.clone() else {
            return Err(Failure::usage("name a resource, or a lease file with -f")); // clap has checked it
        };
        let owner = self.owner()?;
        redact::register(&owner.reveal());
        let ttl = outer_runs().iter().find(|held| held.owner == owner).map(|held| held.ttl);
        let claim = ClaimRef { resource, owner };
        Ok(Named::Lease(Box::new(LeaseReference { claim, context, ttl, file: None })))
    }

    fn owner(&self) -> Result<OwnerToken, Failure> {
        let (typed, source) = match self.owner.as_deref() {
            Some("-") => (io::read_to_string(io::stdin()).map_err(Failure::host)?, "stdin"),
            Some(typed) => (typed.to_owned(), "--owner"),
            None => (std::env::var(OWNER).unwrap_or_default(), OWNER),
        };
        if self.owner.is_none() && typed.is_empty() {
            return Err(Failure::usage("the owner token of the lease is missing").hint(
                "set LEASEHOLD_OWNER to what leasehold acquire printed, use --owner - to read it from stdin, or -f with a lease file",
            ));
        }
        // The text is not repeated: it may be most of a secret.
        typed.trim().parse().map_err(|error: leasehold::Error| {
            Failure::usage(format!("{source}: {error}")).hint("use what leasehold acquire printed")
        })
    }
}

/// The lease of the file. `None` if it was released.
fn read(file: &LeaseFile, output: Output) -> Result<Option<LeaseRecord>, Failure> {
    let shown = file.path().display();
    let found = Found::at(file.path())
        .map_err(|error| Failure::config(format!("the lease file {shown} cannot be read: {error}")))?;
    match found {
        Found::Lease(record) => {
            secret_file::check_permissions(file.path(), "lease file", output)?;
            Ok(Some(record))
        }
        Found::Released => Ok(None),
        Found::Nothing => Err(Failure::config(format!("there is no lease file {shown}"))
            .hint("check the path, or acquire a lease with leasehold acquire -o")),
        Found::NotOurs(what) => Err(Failure::config(format!("{shown} is {what}"))
            .hint("name the file that leasehold acquire -o has written")),
    }
}

impl LeaseReference {
    /// Calls the store with one request, which has a bounded time.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Vec<leasehold::Result<T>>>,
    ) -> Result<T, Failure> {
        let no_reply = || {
            let message =
                format!("{}: the store {} did not reply", self.claim.resource, self.context.store.shown());
            let unavailable =
                Failure::new(Exit::Unavailable, leasehold::ErrorKind::Unavailable.as_str(), message);
            unavailable.hint("check that the store is running and reachable, then try again")
        };
        let mut replies = tokio::time::timeout(CALL_MAX, call).await.map_err(|_| no_reply())?;
        Ok(replies.pop().ok_or_else(no_reply)??)
    }
}
