//! `leasehold advise`, `leasehold advise ttl`

mod questions;
mod report;
mod ttl;

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use leasehold::advice::{self, CASES, Case, QUESTIONS};

use crate::{args, exit::Failure, output::Output, screen::Screen, table::Table};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Questions that no option answers are asked on the terminal. Nothing is stored, and no store is opened."
)]
pub(crate) struct Advise {
    #[command(subcommand)]
    topic: Option<Topic>,
    /// Advise on a known case; --cases lists them
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(CASES.iter().map(|case| case.name)), hide_possible_values = true)]
    case: Option<String>,
    /// List the known cases
    #[arg(long, conflicts_with = "case")]
    cases: bool,
    /// Print the questions, the answers and the cases as Markdown
    #[arg(long, conflicts_with_all = ["case", "cases"])]
    markdown: bool,
    #[command(flatten)]
    answers: Flags,
}

/// The questions as options. The texts of the questions are in `leasehold::advice`; these are for the
/// help.
#[derive(Debug, Args)]
#[command(next_help_heading = "Answers")]
struct Flags {
    /// What the lease protects
    #[arg(long, value_name = "WHAT", value_parser = choices("protects"), conflicts_with = "case")]
    protects: Option<String>,
    /// What happens if two run at the same time
    #[arg(long, value_name = "WHAT", value_parser = choices("overlap"), conflicts_with = "case")]
    overlap: Option<String>,
    /// Whether doing the work twice is acceptable
    #[arg(long, value_name = "yes|no", value_parser = choices("duplicates"), conflicts_with = "case", hide_possible_values = true)]
    duplicates: Option<String>,
    /// Whether the work can be made idempotent
    #[arg(long, value_name = "yes|no", value_parser = choices("idempotent"), conflicts_with = "case", hide_possible_values = true)]
    idempotent: Option<String>,
    /// Whether the target of the work can refuse an old fencing token
    #[arg(long, value_name = "yes|no", value_parser = choices("fence"), conflicts_with = "case", hide_possible_values = true)]
    fence: Option<String>,
    /// Whether the lease must survive the failure of one server
    #[arg(long, value_name = "yes|no", value_parser = choices("survive"), conflicts_with = "case", hide_possible_values = true)]
    survive: Option<String>,
    /// How long the work can take
    #[arg(long, value_name = "DURATION", value_parser = args::duration, conflicts_with = "case")]
    lasts: Option<Duration>,
    /// Whether the work can be split into durable steps
    #[arg(long, value_name = "yes|no", value_parser = choices("split"), conflicts_with = "case", hide_possible_values = true)]
    split: Option<String>,
    /// Whether a conditional update in one database would be enough
    #[arg(long, value_name = "yes|no", value_parser = choices("conditional"), conflicts_with = "case", hide_possible_values = true)]
    conditional: Option<String>,
    /// Whether a consensus service is available, or worth operating
    #[arg(long, value_name = "yes|no", value_parser = choices("consensus"), conflicts_with = "case", hide_possible_values = true)]
    consensus: Option<String>,
    /// Whether Redis is the only store that you can use
    #[arg(long, value_name = "yes|no", value_parser = choices("redis-only"), conflicts_with = "case", hide_possible_values = true)]
    redis_only: Option<String>,
    /// Whether it runs in several regions
    #[arg(long, value_name = "yes|no", value_parser = choices("regions"), conflicts_with = "case", hide_possible_values = true)]
    regions: Option<String>,
    /// Whether it must be possible to prove who changed what
    #[arg(long, value_name = "yes|no", value_parser = choices("audit"), conflicts_with = "case", hide_possible_values = true)]
    audit: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Topic {
    /// Compute the ttl of a lease from the duration of the work
    Ttl(ttl::Ttl),
}

fn choices(name: &str) -> PossibleValuesParser {
    let question = QUESTIONS.iter().find(|question| question.name == name);
    PossibleValuesParser::new(
        question.into_iter().flat_map(|question| question.choices).map(|choice| choice.name),
    )
}

impl Advise {
    pub(crate) fn run(&self, output: Output) -> Result<ExitCode, Failure> {
        let screen = Screen::now();
        if let Some(Topic::Ttl(ttl)) = &self.topic {
            return ttl.run(output, screen);
        }
        if self.markdown {
            return screen.print(&advice::markdown()).map(|_| ExitCode::SUCCESS);
        }
        if self.cases {
            return list(output, screen);
        }
        let case = self.case.as_ref().and_then(|name| CASES.iter().find(|case| case.name == name));
        let answers = match case {
            Some(case) => case.answers,
            None => questions::complete(&self.answers)?,
        };
        report::show(case, &answers, output, screen)
    }
}

fn list(output: Output, screen: Screen) -> Result<ExitCode, Failure> {
    let row = |case: &'static Case| (case, case.answers.advice().row);
    if output.json {
        let cases: Vec<_> =
            CASES.iter().map(|case| report::AdviceView::of(Some(case), &case.answers)).collect();
        return screen.print_json(&serde_json::json!({ "cases": cases })).map(|_| ExitCode::SUCCESS);
    }
    let mut table = Table::new(["=CASE", "WHAT IT IS", "WHAT TO DO"]);
    for (case, row) in CASES.iter().map(row) {
        table.row([case.name.into(), case.what.into(), row.approach.into()]);
    }
    screen.print_lines(&screen.lines(&table)).map(|_| ExitCode::SUCCESS)
}
