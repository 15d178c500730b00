//! `leasehold schema DATABASE`

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::{exit::Failure, output};

#[derive(Debug, Args)]
#[command(
    after_help = "The role that leasehold uses creates its tables itself, if it may. If it may not, execute \
                        this as one who may: leasehold schema postgres | psql -d DATABASE"
)]
pub(crate) struct Schema {
    /// Which database
    database: Database,

    /// The schema that the tables are to be in, as in the store's URL
    #[arg(long, value_name = "NAME", default_value = "leasehold")]
    schema: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Database {
    Postgres,
}

impl Schema {
    /// Needs no server.
    pub(crate) fn run(&self) -> Result<ExitCode, Failure> {
        let Database::Postgres = self.database;
        let text = postgres(&self.schema)?;
        output::print(text.as_bytes()).map(|()| ExitCode::SUCCESS)
    }
}

#[cfg(feature = "postgres")]
fn postgres(schema: &str) -> Result<String, Failure> {
    leasehold_postgres::schema_sql(schema).map_err(|error| Failure::usage(error.to_string()))
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: &str) -> Result<String, Failure> {
    let message = "this build has no PostgreSQL";
    Err(Failure::config(message)
        .hint("build it with: cargo build --release -p leasehold-cli --features postgres"))
}
