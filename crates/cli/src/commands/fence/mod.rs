//! `leasehold fence install | status | remove | rebase | schema | script`

mod database;
#[cfg(feature = "redis")]
mod redis;
mod report;
mod schema;
#[cfg(feature = "redis")]
mod script;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use leasehold::{FencingToken, Resource};
use leasehold_fence::Rebase;

use self::{database::FencedDatabase, schema::SchemaArgs};
use crate::{exit::Failure, names, order, output::Output};

/// Have a database refuse writes of holders that have lost their lease
///
/// A fenced table accepts a write to a row only with the pass of the row's resource: the fencing token of its
/// newest lease. The database refuses a write without a pass or with an older token, whichever program sends
/// it.
#[derive(Debug, Args)]
pub(crate) struct Fence {
    #[command(subcommand)]
    command: FenceCommand,
}

#[derive(Debug, Subcommand)]
enum FenceCommand {
    /// Fence a table: its triggers refuse a write without a pass for the row, or with a stale one
    #[command(
        after_help = "Example:\n  leasehold fence install --database postgres://app@db/shop --table orders --resource 'order/{id}'"
    )]
    Install {
        #[command(flatten)]
        database: DatabaseArg,
        /// The table, written as in SQL: orders, sales.orders, '"Odd name"'. In SQLite, the plain name
        #[arg(long, value_name = "TABLE")]
        table: String,
        /// The resource of a row, with columns in braces: order/{id}, {tenant}:order/{id}
        #[arg(long, value_name = "NAME")]
        resource: String,
        /// Allow this PostgreSQL role to use the fence; can be repeated
        #[arg(long, value_name = "ROLE")]
        grant: Vec<String>,
    },
    /// Show the fenced tables; with a resource, its highest token and its rebases
    Status {
        #[command(flatten)]
        database: DatabaseArg,
        /// The resource: kind/id or namespace:kind/id
        #[arg(value_parser = names::resource)]
        resource: Option<Resource>,
        #[command(flatten)]
        key: RedisKeyArg,
    },
    /// Remove the fence from a table; the highest tokens are kept
    Remove {
        #[command(flatten)]
        database: DatabaseArg,
        /// The table
        #[arg(long, value_name = "TABLE")]
        table: String,
    },
    /// Accept the smaller tokens of another store, after a resource has moved there
    #[command(
        after_help = "From then on, tokens of the former store are refused, because they are above the ceiling. Every rebase is recorded: see leasehold fence status RESOURCE."
    )]
    Rebase(RebaseArgs),
    /// Print the SQL of the fence, to create it by hand or in a migration
    #[command(
        after_help = "Examples:\n  leasehold fence schema | psql -d shop\n  leasehold fence schema mariadb | mariadb -u root\n  leasehold fence schema mariadb --table orders --resource 'order/{id}' | mariadb shop"
    )]
    Schema(SchemaArgs),
    /// Print a Lua script that fences a write to Redis, for programs in any language
    #[cfg(feature = "redis")]
    #[command(
        after_help = "Examples:\n  leasehold fence script set > fenced_set.lua\n  redis-cli --eval fenced_set.lua 'fence:v1:{42}:report/42' 'report:{42}:body' , 34 '' 2592000000 'three pages' 0\n\nThe script begins with a list of its keys, arguments and replies. docs/fencing.md shows how to call it."
    )]
    Script(script::ScriptArgs),
}

#[derive(Debug, Args)]
struct DatabaseArg {
    /// The database: `postgres://USER@HOST/NAME`, `sqlite:PATH`, `redis://HOST`, `rediss://HOST`,
    /// `redis+sentinel://HOST,HOST/SERVICE` or `redis+cluster://HOST,HOST`, with the options of a store URL.
    /// The password can also be in `PGPASSWORD` or `REDISCLI_AUTH`
    #[arg(long, value_name = "URL", env = "LEASEHOLD_DATABASE", hide_env_values = true)]
    database: String,
}

#[derive(Debug, Args)]
struct RedisKeyArg {
    /// In Redis: the key that is fenced. The mark is stored next to it
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

#[derive(Debug, Args)]
struct RebaseArgs {
    #[command(flatten)]
    database: DatabaseArg,
    /// The resource: kind/id or namespace:kind/id
    #[arg(value_parser = names::resource)]
    resource: Resource,
    #[command(flatten)]
    key: RedisKeyArg,
    /// The new mark: the highest token that the new store has issued, or 1
    #[arg(long, value_name = "TOKEN")]
    to: FencingToken,
    // ADR 0028: without a ceiling, the larger tokens of the former store would pass again.
    /// Refuse this token and all above it, as tokens of the former store [default: half-way between the two
    /// marks]
    #[arg(long, value_name = "TOKEN")]
    ceiling: Option<FencingToken>,
    /// The reason, for the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Your name, for the record [default: user@host]
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_OPERATOR")]
    by_whom: Option<String>,
}

impl Fence {
    /// The URL of the database, unless it was given by the variable.
    pub(crate) fn database(&self) -> Option<&str> {
        let database = match &self.command {
            FenceCommand::Install { database, .. }
            | FenceCommand::Status { database, .. }
            | FenceCommand::Remove { database, .. }
            | FenceCommand::Rebase(RebaseArgs { database, .. }) => &database.database,
            FenceCommand::Schema(_) => return None,
            #[cfg(feature = "redis")]
            FenceCommand::Script(_) => return None,
        };
        Some(database.as_str())
    }

    /// The name of the operator, if it is recorded.
    pub(crate) fn operator(&mut self) -> Option<&mut Option<String>> {
        match &mut self.command {
            FenceCommand::Rebase(rebase) => Some(&mut rebase.by_whom),
            _ => None,
        }
    }

    pub(crate) async fn run(&self, output: Output) -> Result<ExitCode, Failure> {
        match &self.command {
            FenceCommand::Install { database, table, resource, grant } => {
                let template =
                    resource.parse().map_err(|error: leasehold::Error| Failure::usage(error.to_string()))?;
                let table = database.open().await?.install(table, &template, grant).await?;
                report::installed(output, &table, resource)
            }
            FenceCommand::Status { database, resource: None, key } => {
                report::tables(output, &database.open_with_key(key).await?.status().await?)
            }
            FenceCommand::Status { database, resource: Some(resource), key } => {
                let fenced = database.open_with_key(key).await?;
                let resource = &fenced.resource(resource)?;
                report::mark(output, resource, fenced.mark(resource).await?, &fenced.rebases(resource).await?)
            }
            FenceCommand::Remove { database, table } => {
                report::removed(output, &database.open().await?.remove(table).await?)
            }
            FenceCommand::Rebase(rebase) => rebase.run(output).await,
            FenceCommand::Schema(schema) => schema.run(),
            #[cfg(feature = "redis")]
            FenceCommand::Script(script) => script.run(),
        }
    }
}

impl DatabaseArg {
    async fn open(&self) -> Result<FencedDatabase, Failure> {
        FencedDatabase::open(&self.database, None).await
    }

    async fn open_with_key(&self, key: &RedisKeyArg) -> Result<FencedDatabase, Failure> {
        FencedDatabase::open(&self.database, key.key.as_deref()).await
    }
}

impl RebaseArgs {
    async fn run(&self, output: Output) -> Result<ExitCode, Failure> {
        let by = order::operator(self.by_whom.as_deref());
        order::check_texts(&self.reason, &by)?;
        let rebase = Rebase { to: self.to, ceiling: self.ceiling, by, why: self.reason.clone() };
        let fenced = self.database.open_with_key(&self.key).await?;
        let resource = fenced.resource(&self.resource)?;
        let (before, after) = fenced.rebase(&resource, &rebase).await?;
        report::rebased(output, &resource, &before, &after)
    }
}
