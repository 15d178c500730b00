//! `leasehold advise`, `leasehold advise ttl`

mod answer;
mod ask;
mod ttl;

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use leasehold::advice::{self, CASES, Case, QUESTIONS};

use crate::{args, exit::Failure, output::Output, screen::Screen, table::Table};

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Questions that are not answered by a flag are asked. Nothing is stored, and no store is opened."
)]
pub(crate) struct Advise {
    #[command(subcommand)]
    topic: Option<Topic>,
    /// Advise on a case that is known by name; see --cases
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(CASES.iter().map(|case| case.name)), hide_possible_values = true)]
    case: Option<String>,
    /// List the cases that are known by name
    #[arg(long, conflicts_with = "case")]
    cases: bool,
    /// Print the questions, the answers and the cases as Markdown
    #[arg(long, conflicts_with_all = ["case", "cases"])]
    markdown: bool,
    #[command(flatten)]
    answers: Flags,
}

/// The ten questions. Their texts stand in `leasehold::advice`; here only what is shown in the help.
#[derive(Debug, Args)]
#[command(next_help_heading = "Answers")]
struct Flags {
    /// What side effect the lease protects
    #[arg(long, value_name = "WHAT", value_parser = choices("protects"), conflicts_with = "case")]
    protects: Option<String>,
    /// What happens if two run at once
    #[arg(long, value_name = "WHAT", value_parser = choices("overlap"), conflicts_with = "case")]
    overlap: Option<String>,
    /// Whether doing it twice can be tolerated
    #[arg(long, value_name = "yes|no", value_parser = choices("duplicates"), conflicts_with = "case", hide_possible_values = true)]
    duplicates: Option<String>,
    /// Whether doing it twice can be made the same as doing it once
    #[arg(long, value_name = "yes|no", value_parser = choices("idempotent"), conflicts_with = "case", hide_possible_values = true)]
    idempotent: Option<String>,
    /// Whether the effect can refuse an old fencing token
    #[arg(long, value_name = "yes|no", value_parser = choices("fence"), conflicts_with = "case", hide_possible_values = true)]
    fence: Option<String>,
    /// Whether the lease must survive its server
    #[arg(long, value_name = "yes|no", value_parser = choices("survive"), conflicts_with = "case", hide_possible_values = true)]
    survive: Option<String>,
    /// How long the work can take
    #[arg(long, value_name = "DURATION", value_parser = args::duration, conflicts_with = "case")]
    lasts: Option<Duration>,
    /// Whether it can be split into durable steps
    #[arg(long, value_name = "yes|no", value_parser = choices("split"), conflicts_with = "case", hide_possible_values = true)]
    split: Option<String>,
    /// Whether a conditional update in one database would do
    #[arg(long, value_name = "yes|no", value_parser = choices("conditional"), conflicts_with = "case", hide_possible_values = true)]
    conditional: Option<String>,
    /// Whether a consensus service is there, or worth having
    #[arg(long, value_name = "yes|no", value_parser = choices("consensus"), conflicts_with = "case", hide_possible_values = true)]
    consensus: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Topic {
    /// Say how long a lease should last, from how long the work takes
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
            None => ask::missing(&self.answers)?,
        };
        answer::show(case, &answers, output, screen)
    }
}

fn list(output: Output, screen: Screen) -> Result<ExitCode, Failure> {
    let row = |case: &'static Case| (case, case.answers.advice().row);
    if output.json {
        let cases: Vec<_> = CASES.iter().map(|case| answer::Shown::of(Some(case), &case.answers)).collect();
        return screen.print_json(&cases).map(|_| ExitCode::SUCCESS);
    }
    let mut table = Table::new(["=CASE", "WHAT IT IS", "WHAT TO DO"]);
    for (case, row) in CASES.iter().map(row) {
        table.row([case.name.into(), case.what.into(), row.approach.into()]);
    }
    screen.print_lines(&screen.lines(&table)).map(|_| ExitCode::SUCCESS)
}
