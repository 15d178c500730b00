//! `leasehold audit [PREFIX]`

use std::process::ExitCode;

use clap::Args;
use leasehold::AuditRecord;
use serde::Serialize;

use crate::{
    exit::Failure,
    names,
    session::OperatorSession,
    table::{Cell, Style, Table},
    text,
    view::{self, AuditView},
};

#[derive(Debug, Args)]
#[command(
    after_help = "Newest first. The store records every order that reaches it. An order to a holder that had already gone is \
                  listed too, with DONE = no. An order that leasehold itself refuses never reaches the store and is not \
                  listed: without --token, to a holder that is alive, without --two-may-run."
)]
pub(crate) struct Audit {
    /// Only resources whose name starts with this, such as report/ or acme:
    #[arg(value_parser = names::prefix, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Show at most this many orders
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Serialize)]
struct AuditReport {
    records: Vec<AuditView>,
    more: bool,
}

impl Audit {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let (records, more) = session.audit(&self.prefix, self.limit, |_| true).await?;
        let screen = session.screen();
        if session.output.json {
            screen.print_json(&AuditReport { records: records.iter().map(AuditView::of).collect(), more })?;
            return Ok(ExitCode::SUCCESS);
        }
        if records.is_empty() {
            session.output.note("No operator actions recorded.");
        } else {
            screen.print_lines(&screen.lines(&table(&records, true)))?;
        }
        if more {
            session
                .output
                .note(&format!("there are more than {} orders: use --limit to see them", self.limit));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A table of the records in the given order, with or without the column RESOURCE.
pub(crate) fn table(records: &[AuditRecord], with_resource: bool) -> Table<7> {
    let resource = if with_resource { "RESOURCE" } else { "" };
    let mut table = Table::new(["=WHEN", "OPERATOR", "=ORDER", "=DONE", "=TOKEN", resource, "REASON"]);
    for record in records {
        table.row([
            text::time(record.at).into(),
            (&record.by).into(),
            (&record.command).into(),
            if record.done { "yes".into() } else { Cell::styled("no", Style::Warn) },
            record.token.map_or(String::new(), |token| token.to_string()).into(),
            if with_resource { view::name(&record.resource).into() } else { Cell::default() },
            (&record.why).into(),
        ]);
    }
    table
}
