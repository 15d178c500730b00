//! The tables as Markdown, for `docs/choosing.md`.

use std::fmt::Write as _;

use super::{BACKENDS, CASES, QUESTIONS, Role, TABLE};

/// The questions, the table of advice, the cases and the backends, as Markdown.
pub fn markdown() -> String {
    let mut text = String::from("### The questions\n\n| | question | answers | flag |\n|---|---|---|---|\n");
    for (number, question) in (1..).zip(QUESTIONS) {
        let names: Vec<_> = question.choices.iter().map(|choice| format!("`{}`", choice.name)).collect();
        let answers = if names.is_empty() { "a duration".to_owned() } else { names.join(", ") };
        table_row(
            &mut text,
            &[&number.to_string(), question.asks, &answers, &format!("`--{}`", question.name)],
        );
    }
    text.push_str("\n### The answers\n\nThe first row that fits counts.\n\n");
    text.push_str("| situation | what to do | lease | fencing | transaction | weakest level |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for row in TABLE {
        let least = if row.role == Role::No { "" } else { row.least.as_str() };
        table_row(
            &mut text,
            &[
                row.situation,
                row.approach,
                row.role.as_str(),
                yes_or_empty(row.fencing),
                yes_or_empty(row.transaction),
                least,
            ],
        );
    }
    text.push_str(
        "\n### The cases\n\n| case | what it is | what to do | duplicates acceptable |\n|---|---|---|---|\n",
    );
    for case in CASES {
        let duplicates = if case.answers.duplicates { "yes" } else { "no" };
        let approach = case.answers.advice().row.approach;
        table_row(&mut text, &[&format!("`{}`", case.name), case.what, approach, duplicates]);
    }
    text.push_str("\n### The levels\n\n| backend | level when configured well |\n|---|---|\n");
    for backend in BACKENDS {
        table_row(&mut text, &[backend.scheme, backend.level.as_str()]);
    }
    text
}

fn yes_or_empty(is: bool) -> &'static str {
    if is { "yes" } else { "" }
}

fn table_row(text: &mut String, cells: &[&str]) {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}
