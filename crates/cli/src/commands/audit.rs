//! `leasehold audit [PREFIX]`

use std::process::ExitCode;

use clap::Args;
use leasehold::AuditRecord;
use serde::Serialize;

use crate::{
    desk::Desk,
    exit::Failure,
    names,
    table::{Cell, Style, Table},
    text,
    view::{self, AuditView},
};

#[derive(Debug, Args)]
#[command(after_help = "Orders to a holder that was not there any more are listed too, as not done.")]
pub(crate) struct Audit {
    /// Only names that begin so, as in report/ or acme:
    #[arg(value_parser = names::prefix, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Serialize)]
struct Trail {
    records: Vec<AuditView>,
    more: bool,
}

impl Audit {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let (records, more) = desk.audit(&self.prefix, self.limit, |_| true).await?;
        let screen = desk.screen();
        if desk.output.json {
            screen.print_json(&Trail { records: records.iter().map(AuditView::of).collect(), more })?;
            return Ok(ExitCode::SUCCESS);
        }
        if records.is_empty() {
            desk.output.say("nobody has ordered anything");
        } else {
            screen.print_lines(&screen.lines(&table(&records, true)))?;
        }
        if more {
            desk.output.say(&format!("there are more than {}: see --limit", self.limit));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Newest first, as they come.
pub(crate) fn table(records: &[AuditRecord], named: bool) -> Table<7> {
    let resource = if named { "RESOURCE" } else { "" };
    let mut table = Table::new(["=WHEN", "WHO", "=ORDER", "=DONE", "=TOKEN", resource, "WHY"]);
    for record in records {
        table.row([
            text::time(record.at).into(),
            (&record.by).into(),
            (&record.command).into(),
            if record.done { "yes".into() } else { Cell::styled("no", Style::Warn) },
            record.token.map_or(String::new(), |token| token.to_string()).into(),
            if named { view::name(&record.resource).into() } else { Cell::default() },
            (&record.why).into(),
        ]);
    }
    table
}
