//! `leasehold fence install | status | remove | rebase | schema`

#[cfg(feature = "redis")]
mod keys;
mod place;
mod report;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use leasehold::{FencingToken, OperatorCommand, Resource};
use leasehold_fence::Rebase;

use self::place::Place;
use crate::{exit::Failure, names, order, output, output::Output};

/// Refuse whoever comes too late, in a database
///
/// A fenced table takes a row only under the pass of its resource: the token of the newest lease. Whoever writes
/// without one, or with a lower one, is refused, whatever program it is.
#[derive(Debug, Args)]
pub(crate) struct Fence {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Fence a table: triggers refuse who has no pass for the row, or a stale one
    #[command(
        after_help = "Example:\n  leasehold fence install --database postgres://app@db/shop --table orders --resource 'order/{id}'"
    )]
    Install {
        #[command(flatten)]
        database: Database,
        /// Which table, as in SQL: orders, sales.orders, '"Odd name"'. In SQLite, the name as it is
        #[arg(long, value_name = "TABLE")]
        table: String,
        /// What a row is called, with columns in braces: order/{id}, {tenant}:order/{id}
        #[arg(long, value_name = "NAME")]
        resource: String,
        /// Let this role of PostgreSQL call the fence's functions; may be said several times
        #[arg(long, value_name = "ROLE")]
        grant: Vec<String>,
    },
    /// Show which tables are fenced; with a resource, the highest token seen and who moved it
    Status {
        #[command(flatten)]
        database: Database,
        /// A resource, as kind/id or namespace:kind/id
        #[arg(value_parser = names::resource)]
        resource: Option<Resource>,
        #[command(flatten)]
        beside: Beside,
    },
    /// Take the fence off a table. What was seen is kept
    Remove {
        #[command(flatten)]
        database: Database,
        /// Which table
        #[arg(long, value_name = "TABLE")]
        table: String,
    },
    /// Move a resource to a backend that counts lower, so that its tokens are taken
    #[command(
        after_help = "Tokens of the former backend are refused from then on: they lie above the ceiling. Audited: see status."
    )]
    Rebase(Move),
    /// Print what PostgreSQL needs, to create it by hand
    Schema,
}

#[derive(Debug, Args)]
struct Database {
    /// What is fenced: `postgres://USER@HOST/NAME`, `sqlite:PATH`, or `redis://HOST`, `rediss://HOST`,
    /// `redis+sentinel://HOST,HOST/SERVICE`, `redis+cluster://HOST,HOST`; with the options of a store's URL. A password may
    /// be in `PGPASSWORD` or `REDISCLI_AUTH`
    #[arg(long, value_name = "URL", env = "LEASEHOLD_DATABASE", hide_env_values = true)]
    database: String,
}

#[derive(Debug, Args)]
struct Beside {
    /// In Redis, the key that is fenced: its mark stands beside it
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

#[derive(Debug, Args)]
struct Move {
    #[command(flatten)]
    database: Database,
    /// Which, as kind/id or namespace:kind/id
    #[arg(value_parser = names::resource)]
    resource: Resource,
    #[command(flatten)]
    beside: Beside,
    /// The new mark: the highest token that the new backend has given out, or 1
    #[arg(long, value_name = "TOKEN")]
    to: FencingToken,
    /// Refuse tokens from here on, as the former backend's [default: half-way between the marks]
    #[arg(long, value_name = "TOKEN")]
    ceiling: Option<FencingToken>,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who you are, for the audit [default: user@host]
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_OPERATOR")]
    by_whom: Option<String>,
}

impl Fence {
    pub(crate) async fn run(&self, output: Output) -> Result<ExitCode, Failure> {
        match &self.verb {
            Verb::Install { database, table, resource, grant } => {
                let template =
                    resource.parse().map_err(|error: leasehold::Error| Failure::usage(error.to_string()))?;
                let table = database.open().await?.install(table, &template, grant).await?;
                report::installed(output, &table, resource)
            }
            Verb::Status { database, resource: None, beside } => {
                report::tables(output, &database.open_beside(beside).await?.status().await?)
            }
            Verb::Status { database, resource: Some(resource), beside } => {
                let place = database.open_beside(beside).await?;
                let resource = &place.resource(resource)?;
                report::mark(output, resource, place.mark(resource).await?, &place.rebases(resource).await?)
            }
            Verb::Remove { database, table } => {
                report::removed(output, &database.open().await?.remove(table).await?)
            }
            Verb::Rebase(wish) => wish.run(output).await,
            Verb::Schema => output::print(place::schema()?.as_bytes()).map(|()| ExitCode::SUCCESS),
        }
    }
}

impl Database {
    async fn open(&self) -> Result<Place, Failure> {
        Place::open(&self.database, None).await
    }

    async fn open_beside(&self, beside: &Beside) -> Result<Place, Failure> {
        Place::open(&self.database, beside.key.as_deref()).await
    }
}

impl Move {
    async fn run(&self, output: Output) -> Result<ExitCode, Failure> {
        let by = self.by_whom.clone().unwrap_or_else(order::operator);
        for (option, said) in [("--reason", &self.reason), ("--by-whom", &by)] {
            if said.trim().is_empty() || said.len() > OperatorCommand::TEXT_MAX {
                return Err(Failure::usage(format!("{option} has 1 to {} bytes", OperatorCommand::TEXT_MAX)));
            }
        }
        let rebase = Rebase { to: self.to, ceiling: self.ceiling, by, why: self.reason.clone() };
        let place = self.database.open_beside(&self.beside).await?;
        let resource = place.resource(&self.resource)?;
        let (before, after) = place.rebase(&resource, &rebase).await?;
        report::rebased(output, &resource, &before, &after)
    }
}
