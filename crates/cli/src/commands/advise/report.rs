//! The output of `leasehold advise`, as text and as JSON.

use std::process::ExitCode;

use leasehold::advice::{Answers, Case, Role};
use serde::Serialize;

use crate::{exit::Failure, output::Output, screen::Screen, table::Style};

#[derive(Serialize)]
pub(super) struct AdviceView {
    case: Option<&'static str>,
    answers: AnswersView,
    name: &'static str,
    situation: &'static str,
    approach: &'static str,
    lease: &'static str,
    fencing_required: bool,
    transaction_required: bool,
    duplicates_acceptable: bool,
    purpose: &'static str,
    /// The weakest guarantee that is enough, if a lease is advised.
    least_level: Option<&'static str>,
    backends: Vec<&'static str>,
    because: &'static str,
    still: &'static [&'static str],
    remarks: Vec<String>,
    snippet: String,
}

#[derive(Serialize)]
struct AnswersView {
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
    redis_only: bool,
    regions: bool,
    audit: bool,
}

impl AdviceView {
    pub(super) fn of(case: Option<&Case>, answers: &Answers) -> AdviceView {
        let advice = answers.advice();
        let row = advice.row;
        let uses_lease = row.role != Role::No;
        let snippet = advice.snippet();
        AdviceView {
            case: case.map(|case| case.name),
            answers: AnswersView {
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
                redis_only: answers.redis_only,
                regions: answers.regions,
                audit: answers.audit,
            },
            name: row.name,
            situation: row.situation,
            approach: row.approach,
            lease: row.role.as_str(),
            fencing_required: row.fencing,
            transaction_required: row.transaction,
            duplicates_acceptable: answers.duplicates,
            purpose: row.purpose.as_str(),
            least_level: uses_lease.then(|| advice.least.as_str()),
            backends: advice.backends.iter().map(|backend| backend.scheme).collect(),
            because: row.because,
            still: row.still,
            remarks: advice.remarks,
            snippet,
        }
    }
}

pub(super) fn show(
    case: Option<&Case>,
    answers: &Answers,
    output: Output,
    screen: Screen,
) -> Result<ExitCode, Failure> {
    let view = AdviceView::of(case, answers);
    if output.json {
        return screen.print_json(&view).map(|_| ExitCode::SUCCESS);
    }
    let width = screen.columns().unwrap_or(TEXT_COLUMNS_MAX).clamp(TEXT_COLUMNS_MIN, TEXT_COLUMNS_MAX);
    let mut lines = Vec::new();
    let mut add = |label: &str, text: &str, style: Style| {
        for (at, line) in wrapped(text, width - LABEL).into_iter().enumerate() {
            let label =
                Style::Bold.paint(&format!("{:LABEL$}", if at == 0 { label } else { "" }), screen.colour);
            lines.push(format!("{label}{}", style.paint(&line, screen.colour)));
        }
    };
    if let Some(case) = case {
        add("case", &format!("{}: {}", case.name, case.what), Style::Plain);
    }
    let style = if view.lease == Role::No.as_str() { Style::Warn } else { Style::Good };
    add("do", view.approach, style);
    add("why", view.because, Style::Plain);
    if let Some(level) = view.least_level {
        let stores =
            if view.backends.is_empty() { "none that you have".to_owned() } else { view.backends.join(", ") };
        add("stores", &format!("{level} or stronger: {stores}"), Style::Plain);
    }
    add("duplicates", if view.duplicates_acceptable { "acceptable" } else { "not acceptable" }, Style::Plain);
    view.still.iter().for_each(|still| add("caution", still, Style::Warn));
    view.remarks.iter().for_each(|remark| add("note", remark, Style::Plain));
    lines.push(String::new());
    lines.extend(
        view.snippet.lines().map(|line| if line.is_empty() { String::new() } else { format!("    {line}") }),
    );
    screen.print_lines(&lines).map(|_| ExitCode::SUCCESS)
}

/// Text is wrapped to the width of the terminal, within these limits.
const TEXT_COLUMNS_MIN: usize = 40;
const TEXT_COLUMNS_MAX: usize = 100;
/// The width of the labels on the left, in columns.
const LABEL: usize = 12;

/// The text in lines of at most `width` characters.
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
