//! What is said of a fence, for people and for programs.

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

fn say(output: Output, line: &str, json: &serde_json::Value) -> Result<ExitCode, Failure> {
    if output.json {
        Screen::now().print_json(json)?;
    } else if !output.quiet {
        Screen::now().print(&format!("{}\n", text::printable(line)))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn installed(output: Output, table: &str, template: &str) -> Result<ExitCode, Failure> {
    let line = format!("{table} is fenced: a row is written only under the pass of {template}");
    say(output, &line, &json!({ "table": table, "resource": template, "fenced": true }))
}

pub(super) fn removed(output: Output, table: &str) -> Result<ExitCode, Failure> {
    let line = format!("{table} is not fenced any more; what was seen is kept");
    say(output, &line, &json!({ "table": table, "fenced": false }))
}

pub(super) fn tables(output: Output, fenced: &[Fenced]) -> Result<ExitCode, Failure> {
    if output.json {
        let table = |it: &Fenced| json!({ "table": it.table, "resource": it.template, "active": it.active, "truncatable": it.truncatable });
        Screen::now().print_json(&json!({ "tables": fenced.iter().map(table).collect::<Vec<_>>() }))?;
    } else if fenced.is_empty() {
        output.say("no table is fenced: leasehold fence install");
    } else {
        let mut table = Table::new(["TABLE", "RESOURCE", "=ACTIVE"]);
        for it in fenced {
            let active = if it.active { "yes".into() } else { Cell::styled("no", Style::Bad) };
            table.row([(&it.table).into(), (&it.template).into(), active]);
        }
        let screen = Screen::now();
        screen.print_lines(&screen.lines(&table))?;
        for it in fenced.iter().filter(|it| !it.truncatable.is_empty()) {
            let open = it.truncatable.join(", ");
            let line =
                format!("{}: TRUNCATE of {open} is not refused: run leasehold fence install again", it.table);
            output.say(&text::printable(&line));
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
        let rebase = |it: &Rebased| {
            let ceiling = it.ceiling.map(|token| token.to_string());
            json!({ "at": it.at, "by": it.by, "why": it.why, "was": it.was.to_string(), "now": it.now.to_string(), "ceiling": ceiling })
        };
        let rebases: Vec<_> = rebases.iter().map(rebase).collect();
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
                "the highest token seen is {highest}; from {ceiling} on they are the former backend's, and refused"
            )
        }
    };
    screen.print(&format!("{}: {line}\n", view::name(resource)))?;
    if !rebases.is_empty() {
        let mut table = Table::new(["=WHEN", "WHO", "=FROM", "=TO", "WHY"]);
        for it in rebases {
            let (was, now) = (it.was.to_string(), it.now.to_string());
            table.row([(&it.at).into(), (&it.by).into(), was.into(), now.into(), (&it.why).into()]);
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
    let beyond = after.ceiling.map_or(String::new(), |ceiling| format!(", and below {ceiling}"));
    let line = format!(
        "{}: tokens above {} are taken from now on{beyond}; it was {}",
        view::name(resource),
        after.highest,
        before.highest
    );
    let json =
        json!({ "resource": resource.to_string(), "before": mark_json(before), "after": mark_json(after) });
    say(output, &line, &json)
}
