//! The output of `leasehold fence`, as text and as JSON.

use std::process::ExitCode;

use leasehold::Resource;
use leasehold_fence::{Fenced, Rebased, rule::Mark};
use serde_json::json;

use crate::{
    exit::Failure,
    output::Output,
    screen::Screen,
    table::{Cell, Style, Table},
    text, view,
};

/// Prints one line, or the JSON.
fn print(output: Output, line: &str, json: &serde_json::Value) -> Result<ExitCode, Failure> {
    if output.json {
        Screen::now().print_json(json)?;
    } else if !output.quiet {
        Screen::now().print(&format!("{}\n", text::printable(line)))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn installed(output: Output, table: &str, template: &str) -> Result<ExitCode, Failure> {
    let line = format!("{table} is fenced: a row is written only with the pass of {template}");
    print(output, &line, &json!({ "table": table, "resource": template, "fenced": true }))
}

pub(super) fn removed(output: Output, table: &str) -> Result<ExitCode, Failure> {
    let line = format!("{table} is not fenced any more; the highest tokens are kept");
    print(output, &line, &json!({ "table": table, "fenced": false }))
}

pub(super) fn tables(output: Output, fenced: &[Fenced]) -> Result<ExitCode, Failure> {
    if output.json {
        let view = |table: &Fenced| json!({ "table": table.table, "resource": table.template, "active": table.active, "truncatable": table.truncatable });
        Screen::now().print_json(&json!({ "tables": fenced.iter().map(view).collect::<Vec<_>>() }))?;
    } else if fenced.is_empty() {
        output.note("no table is fenced; to fence one, use leasehold fence install");
    } else {
        let mut table = Table::new(["TABLE", "RESOURCE", "=ACTIVE"]);
        for entry in fenced {
            let active = if entry.active { "yes".into() } else { Cell::styled("no", Style::Bad) };
            table.row([(&entry.table).into(), (&entry.template).into(), active]);
        }
        let screen = Screen::now();
        screen.print_lines(&screen.lines(&table))?;
        // A partition that was added after the installation has no trigger for TRUNCATE yet.
        for entry in fenced.iter().filter(|entry| !entry.truncatable.is_empty()) {
            let open = entry.truncatable.join(", ");
            let line = format!(
                "{}: TRUNCATE of {open} is not refused: run leasehold fence install again",
                entry.table
            );
            output.note(&text::printable(&line));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn mark_json(mark: &Mark) -> serde_json::Value {
    json!({ "highest": mark.highest.to_string(), "ceiling": mark.ceiling.map(|token| token.to_string()) })
}

pub(super) fn mark(
    output: Output,
    resource: &Resource,
    mark: Option<Mark>,
    rebases: &[Rebased],
) -> Result<ExitCode, Failure> {
    if output.json {
        let view = |rebase: &Rebased| {
            let ceiling = rebase.ceiling.map(|token| token.to_string());
            json!({ "at": rebase.at, "by": rebase.by, "why": rebase.why, "was": rebase.was.to_string(), "now": rebase.now.to_string(), "ceiling": ceiling })
        };
        let rebases: Vec<_> = rebases.iter().map(view).collect();
        let json = json!({ "resource": resource.to_string(), "mark": mark.as_ref().map(mark_json), "rebases": rebases });
        Screen::now().print_json(&json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let screen = Screen::now();
    let line = match mark {
        None => "no token has been seen".to_owned(),
        Some(Mark { highest, ceiling: None, .. }) => format!("the highest token seen is {highest}"),
        Some(Mark { highest, ceiling: Some(ceiling), .. }) => {
            format!(
                "the highest token seen is {highest}; tokens from {ceiling} on are refused, as those of the former store"
            )
        }
    };
    screen.print(&format!("{}: {line}\n", view::name(resource)))?;
    if !rebases.is_empty() {
        let mut table = Table::new(["=WHEN", "OPERATOR", "=FROM", "=TO", "REASON"]);
        for rebase in rebases {
            let (was, now) = (rebase.was.to_string(), rebase.now.to_string());
            table.row([
                (&rebase.at).into(),
                (&rebase.by).into(),
                was.into(),
                now.into(),
                (&rebase.why).into(),
            ]);
        }
        screen.print_lines(&screen.lines(&table))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn rebased(
    output: Output,
    resource: &Resource,
    before: &Mark,
    after: &Mark,
) -> Result<ExitCode, Failure> {
    let limit = after.ceiling.map_or(String::new(), |ceiling| format!(" and below {ceiling}"));
    let line = format!(
        "{}: tokens above {}{limit} are accepted from now on; the mark was {}",
        view::name(resource),
        after.highest,
        before.highest
    );
    let json =
        json!({ "resource": resource.to_string(), "before": mark_json(before), "after": mark_json(after) });
    print(output, &line, &json)
}
