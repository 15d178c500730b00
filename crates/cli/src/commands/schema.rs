//! `leasehold schema DATABASE`

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::{exit::Failure, output};

#[derive(Debug, Args)]
#[command(
    after_help = "leasehold creates its tables itself if its role may create a schema. If it may not, run this as a \
                  role that may: leasehold schema postgres | psql -d DATABASE"
)]
pub(crate) struct Schema {
    /// The kind of database
    database: Database,

    /// The schema for the tables; the same as the option schema of the URL of the store
    #[arg(long, value_name = "NAME", default_value = "leasehold")]
    schema: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Database {
    Postgres,
}

impl Schema {
    /// Prints the SQL. Needs no server.
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
    let message = "this build of leasehold does not support PostgreSQL";
    Err(Failure::config(message)
        .hint("build one that does: cargo build --release -p leasehold-cli --features postgres"))
}
