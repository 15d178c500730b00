//! The tables as `docs/choosing.md` shows them.

use std::fmt::Write as _;

use super::{BACKENDS, CASES, QUESTIONS, Role, TABLE};

/// The questions, the table and the cases, as Markdown.
pub fn markdown() -> String {
    let mut text = String::from("### The questions\n\n| | question | answers | flag |\n|---|---|---|---|\n");
    for (number, question) in (1..).zip(QUESTIONS) {
        let names: Vec<_> = question.choices.iter().map(|choice| format!("`{}`", choice.name)).collect();
        let answers = if names.is_empty() { "a duration".to_owned() } else { names.join(", ") };
        line(&mut text, &[&number.to_string(), question.asks, &answers, &format!("`--{}`", question.name)]);
    }
    text.push_str("\n### The answers\n\nThe first row that fits counts.\n\n");
    text.push_str("| situation | what to do | lease | fencing | transaction | weakest level |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for row in TABLE {
        let least = if row.role == Role::No { "" } else { row.least.as_str() };
        line(
            &mut text,
            &[row.situation, row.approach, row.role.as_str(), yes(row.fencing), yes(row.transaction), least],
        );
    }
    text.push_str(
        "\n### The cases\n\n| case | what it is | what to do | duplicates acceptable |\n|---|---|---|---|\n",
    );
    for case in CASES {
        let duplicates = if case.answers.duplicates { "yes" } else { "no" };
        let approach = case.answers.advice().row.approach;
        line(&mut text, &[&format!("`{}`", case.name), case.what, approach, duplicates]);
    }
    text.push_str("\n### The levels\n\n| backend | level when set up well |\n|---|---|\n");
    for one in BACKENDS {
        line(&mut text, &[one.scheme, one.level.as_str()]);
    }
    text
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "" }
}

fn line(text: &mut String, cells: &[&str]) {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}
