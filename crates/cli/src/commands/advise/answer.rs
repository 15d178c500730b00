//! Shows the advice, to people and to programs.

use std::process::ExitCode;

use leasehold::advice::{Answers, BACKENDS, Case, Role};
use serde::Serialize;

use crate::{exit::Failure, output::Output, screen::Screen, table::Style};

#[derive(Serialize)]
pub(super) struct Shown {
    case: Option<&'static str>,
    answers: Given,
    name: &'static str,
    situation: &'static str,
    approach: &'static str,
    lease: &'static str,
    fencing_required: bool,
    transaction_required: bool,
    duplicates_acceptable: bool,
    purpose: &'static str,
    /// Of a lease, if one is taken.
    least_level: Option<&'static str>,
    backends: Vec<&'static str>,
    because: &'static str,
    still: &'static [&'static str],
    remarks: Vec<String>,
    snippet: String,
}

#[derive(Serialize)]
struct Given {
    protects: &'static str,
    overlap: &'static str,
    duplicates: bool,
    idempotent: bool,
    fence: bool,
    survive: bool,
    lasts_ms: u64,
    split: bool,
    conditional: bool,
    consensus: bool,
}

impl Shown {
    pub(super) fn of(case: Option<&Case>, answers: &Answers) -> Shown {
        let advice = answers.advice();
        let row = advice.row;
        let takes_one = row.role != Role::No;
        let fit = BACKENDS.iter().filter(|one| takes_one && one.level >= advice.least);
        Shown {
            case: case.map(|case| case.name),
            answers: Given {
                protects: answers.protects.as_str(),
                overlap: answers.overlap.as_str(),
                duplicates: answers.duplicates,
                idempotent: answers.idempotent,
                fence: answers.fence,
                survive: answers.survive,
                lasts_ms: u64::try_from(answers.lasts.as_millis()).unwrap_or(u64::MAX),
                split: answers.split,
                conditional: answers.conditional,
                consensus: answers.consensus,
            },
            name: row.name,
            situation: row.situation,
            approach: row.approach,
            lease: row.role.as_str(),
            fencing_required: row.fencing,
            transaction_required: row.transaction,
            duplicates_acceptable: answers.duplicates,
            purpose: row.purpose.as_str(),
            least_level: takes_one.then(|| advice.least.as_str()),
            backends: fit.map(|one| one.scheme).collect(),
            because: row.because,
            still: row.still,
            remarks: advice.remarks,
            snippet: row.snippet(),
        }
    }
}

pub(super) fn show(
    case: Option<&Case>,
    answers: &Answers,
    output: Output,
    screen: Screen,
) -> Result<ExitCode, Failure> {
    let shown = Shown::of(case, answers);
    if output.json {
        return screen.print_json(&shown).map(|_| ExitCode::SUCCESS);
    }
    let width = screen.columns().unwrap_or(100).clamp(40, 100);
    let mut lines = Vec::new();
    let mut say = |label: &str, text: &str, style: Style| {
        for (at, line) in wrapped(text, width - LABEL).into_iter().enumerate() {
            let label =
                Style::Bold.paint(&format!("{:LABEL$}", if at == 0 { label } else { "" }), screen.colour);
            lines.push(format!("{label}{}", style.paint(&line, screen.colour)));
        }
    };
    if let Some(case) = case {
        say("case", &format!("{}: {}", case.name, case.what), Style::Plain);
    }
    let style = if shown.lease == Role::No.as_str() { Style::Warn } else { Style::Good };
    say("do", shown.approach, style);
    say("why", shown.because, Style::Plain);
    if let Some(level) = shown.least_level {
        say("where", &format!("{level} or stronger: {}", shown.backends.join(", ")), Style::Plain);
    }
    say("twice", if shown.duplicates_acceptable { "acceptable" } else { "not acceptable" }, Style::Plain);
    shown.still.iter().for_each(|still| say("still", still, Style::Warn));
    shown.remarks.iter().for_each(|remark| say("note", remark, Style::Plain));
    lines.push(String::new());
    lines.extend(
        shown.snippet.lines().map(|line| if line.is_empty() { String::new() } else { format!("    {line}") }),
    );
    screen.print_lines(&lines).map(|_| ExitCode::SUCCESS)
}

/// Columns of the words on the left.
const LABEL: usize = 7;

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
