//! `leasehold fence schema [postgres|mariadb]`: prints SQL, and needs no server.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use leasehold_fence::mariadb;

use super::database;
use crate::{exit::Failure, output};

#[derive(Debug, Args)]
pub(super) struct SchemaArgs {
    /// The kind of database
    #[arg(default_value = "postgres")]
    kind: DatabaseKind,
    /// In MariaDB: print the triggers that fence this table, instead of the schema: orders, shop.orders
    #[arg(long, value_name = "TABLE", requires = "resource")]
    table: Option<String>,
    /// With --table: the resource of a row, with columns in braces: order/{id}, {tenant}:order/{id}
    #[arg(long, value_name = "NAME", requires = "table")]
    resource: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DatabaseKind {
    Postgres,
    Mariadb,
}

impl SchemaArgs {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let text = match (self.kind, self.table.as_deref().zip(self.resource.as_deref())) {
            (DatabaseKind::Postgres, None) => database::postgres_schema()?.to_owned(),
            (DatabaseKind::Mariadb, None) => mariadb::SCHEMA.to_owned(),
            (DatabaseKind::Mariadb, Some((table, resource))) => mariadb_triggers(table, resource)?,
            (DatabaseKind::Postgres, Some(_)) => {
                return Err(Failure::usage("--table is only for MariaDB")
                    .hint("in PostgreSQL, leasehold fence install creates the triggers"));
            }
        };
        output::print(text.as_bytes()).map(|()| ExitCode::SUCCESS)
    }
}

/// The triggers of a table, as the client program `mariadb` reads them.
fn mariadb_triggers(table: &str, resource: &str) -> Result<String, Failure> {
    let invalid = |error: leasehold::Error| Failure::usage(error.to_string());
    let names: Vec<&str> = table.split('.').collect();
    let triggers =
        mariadb::trigger_statements(names, &resource.parse().map_err(invalid)?).map_err(invalid)?;
    // A statement contains semicolons, so another delimiter ends it.
    Ok(format!("DELIMITER //\n\n{}\n//\n\nDELIMITER ;\n", triggers.join("\n//\n\n")))
}
