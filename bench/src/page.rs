//! `docs/benchmarks.md`: the part between two marks is made from the results.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use crate::{
    chart::chart,
    figures::{FIGURES, heading, ratio_text, short, speed, summary},
    peers::BARE,
    results::{Mode, Results, Row, Table},
    targets::outcomes,
    works::{WORKS, Work, work_named},
};

const BEGIN: &str = "<!-- The part from here on is made by `cargo xtask bench peers`. -->";
const END: &str = "<!-- The end of the part that is made. -->";

/// A section of the page: the beginning of the names of its works, the name of its picture, its title.
const SECTIONS: &[(&str, &str, &str)] = &[
    ("redis-pair", "redis-pair", "Redis: acquire and release"),
    ("redis-handover", "redis-handover", "Redis: hand-overs"),
    ("redis-fair", "redis-fair", "Redis: a fair line"),
    ("redis-keep", "redis-keep", "Redis: leases kept alive"),
    ("redlock", "redlock", "Redlock over five Redis servers"),
    ("postgres", "postgres", "PostgreSQL"),
    ("etcd", "etcd", "etcd"),
    ("zookeeper", "zookeeper", "ZooKeeper"),
    ("shell", "shell", "In a shell"),
];

/// The pictures by file name.
pub fn charts(results: &Results) -> BTreeMap<String, String> {
    let sections = SECTIONS.iter().filter(|(prefix, ..)| !works_of(prefix, results).is_empty());
    sections
        .map(|(prefix, file, title)| {
            (format!("bench-{file}.svg"), chart(title, &works_of(prefix, results), results))
        })
        .collect()
}

fn works_of(prefix: &str, results: &Results) -> Vec<&'static str> {
    let names = WORKS.iter().map(|work| work.name).filter(|name| name.starts_with(prefix));
    names.filter(|name| results.table(name).is_some()).collect()
}

/// The part of the page that is made.
pub fn made_part(results: &Results) -> String {
    let mut text = String::new();
    circumstances(&mut text, results);
    targets(&mut text, results);
    for (prefix, file, title) in SECTIONS {
        let works = works_of(prefix, results);
        if works.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "\n## {title}\n\n![{title}: the tables below have the same figures](images/bench-{file}.svg)\n"
        );
        for work in works.into_iter().filter_map(work_named) {
            if let Some(table) = results.table(work.name) {
                let _ = write!(text, "\n**{}** (`{}`)\n\n{}", work.title, work.name, markdown(work, table));
            }
        }
    }
    text
}

fn circumstances(text: &mut String, results: &Results) {
    let machine = &results.machine;
    let mode = match results.mode {
        Mode::Full => "full",
        Mode::Quick => "**quick: few and short repetitions, which prove little**",
    };
    let idle =
        if machine.idle_states_held_off { "held off" } else { "not held off (the kernel did not allow it)" };
    let versions: Vec<String> =
        results.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let _ = write!(
        text,
        "\n## The run\n\n| | |\n|---|---|\n| day | {} |\n| mode | {mode}; {} repetitions of {} ms |\n\
         | machine | {} cores, {}, {} GB, Linux {} |\n| load before the run | {} |\n\
         | idle states of the processor | {idle} |\n| versions | {} |\n",
        results.day,
        results.repetitions,
        results.lasting_ms,
        machine.cores,
        machine.processor,
        machine.memory_gb,
        machine.kernel,
        short(machine.load_at_start),
        versions.join(", "),
    );
    if !results.note.is_empty() {
        let _ = write!(text, "\n{}\n", results.note);
    }
}

fn targets(text: &mut String, results: &Results) {
    let outcomes = outcomes(results);
    if outcomes.is_empty() {
        return;
    }
    let met = outcomes.iter().filter(|outcome| outcome.met).count();
    let _ = write!(
        text,
        "\n## Targets\n\n{met} of {} met. A speed is that of leasehold, with the other as 1.\n\n\
         | target | measured | wanted | |\n|---|---:|---:|---|\n",
        outcomes.len()
    );
    for outcome in outcomes {
        let (measured, mark) = match (&outcome.measured, outcome.met) {
            (None, _) => ("–", "not measured"),
            (Some(measured), true) => (measured.as_str(), "met"),
            (Some(measured), false) => (measured.as_str(), "**missed**"),
        };
        let _ = writeln!(text, "| {} | {measured} | {} | {mark} |", outcome.name, outcome.wanted);
    }
}

/// A table: the peer, its speed with leasehold as 1 and with the bare scripts as 1, and the figures.
struct Columns {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

fn columns(work: &Work, table: &Table) -> Columns {
    let measured = |figure: &&&str| table.rows.iter().any(|row| !row.values(figure).is_empty());
    // Errors are the exception: a column of zeros says nothing.
    let is_shown = |figure: &&&str| {
        **figure != "errors"
            || table.rows.iter().any(|row| row.values(figure).iter().any(|errors| *errors > 0.0))
    };
    let figures: Vec<&str> = FIGURES.iter().filter(measured).filter(is_shown).copied().collect();
    let has_bare = table.row(BARE).is_some();
    let mut headings = vec!["".to_owned(), "speed, leasehold = 1".to_owned()];
    if has_bare {
        headings.push("speed, bare = 1".to_owned());
    }
    headings.extend(figures.iter().map(|figure| heading(figure).to_owned()));
    let rows = table.rows.iter().map(|row| {
        let mut cells = vec![row.peer.clone()];
        if let Some(why) = &row.not_run {
            cells.push(format!("not run: {why}"));
            cells.resize(headings.len(), String::new());
            return cells;
        }
        let to = |base: Option<&Row>| {
            let ratio = base.and_then(|base| speed(row, base, work.main_figure()));
            ratio.map_or_else(|| "–".to_owned(), ratio_text)
        };
        cells.push(to(table.ours()));
        if has_bare {
            cells.push(to(table.row(BARE)));
        }
        cells.extend(figures.iter().map(|figure| cell(row, figure, *figure == work.main_figure())));
        cells
    });
    Columns { rows: rows.collect(), headings }
}

/// A figure as text; the main one with its least and greatest value.
fn cell(row: &Row, figure: &str, is_main: bool) -> String {
    match summary(row, figure) {
        None => "–".to_owned(),
        Some(summary) if is_main && summary.least < summary.most => {
            format!("{} ({}–{})", short(summary.median), short(summary.least), short(summary.most))
        }
        Some(summary) => short(summary.median),
    }
}

fn markdown(work: &Work, table: &Table) -> String {
    let columns = columns(work, table);
    let mut text = format!(
        "| {} |\n|---{}|\n",
        columns.headings.join(" | "),
        "|---:".repeat(columns.headings.len() - 1)
    );
    for (cells, row) in columns.rows.iter().zip(&table.rows) {
        let mut cells = cells.clone();
        if row.peer.starts_with(crate::peers::LEASEHOLD) {
            cells[0] = format!("**{}**", cells[0]);
        }
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// The table for a terminal.
pub fn plain(work: &Work, table: &Table) -> String {
    let columns = columns(work, table);
    let width = |column: usize| {
        // A reason takes the whole line, so it does not widen its column.
        let cells =
            columns.rows.iter().zip(&table.rows).filter(|(_, row)| column == 0 || row.not_run.is_none());
        let cells = cells.map(|(cells, _)| cells[column].chars().count());
        cells.chain([columns.headings[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.headings.len()).map(width).collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(number, (cell, width))| match number {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<String>>().join("  ")
    };
    let mut text = format!("\n{} ({})\n  {}\n", work.title, work.name, line(&columns.headings));
    for (cells, row) in columns.rows.iter().zip(&table.rows) {
        let shown = if row.not_run.is_some() { &cells[..2] } else { &cells[..] };
        let _ = writeln!(text, "  {}", line(shown).trim_end());
    }
    text
}

/// The page with a new part between the marks.
///
/// # Errors
/// If the page has no marks.
pub fn updated(page: &str, results: &Results) -> Result<String, String> {
    let missing = || format!("docs/benchmarks.md must have the lines\n{BEGIN}\n{END}");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", made_part(results)))
}

/// Writes the page and its pictures.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(root: &Path, results: &Results) -> Result<(), String> {
    let page = root.join("docs/benchmarks.md");
    let text = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    fs::write(&page, updated(&text, results)?).map_err(|error| format!("{}: {error}", page.display()))?;
    let images = root.join("docs/images");
    for (_, file, _) in SECTIONS {
        // A section that was not measured this time has no picture.
        let _ = fs::remove_file(images.join(format!("bench-{file}.svg")));
    }
    for (name, svg) in charts(results) {
        let file = images.join(name);
        fs::write(&file, svg).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{results::tests::sample, root};

    #[test]
    fn every_work_belongs_to_one_section() {
        for work in WORKS {
            let sections = SECTIONS.iter().filter(|(prefix, ..)| work.name.starts_with(prefix));
            assert_eq!(sections.count(), 1, "{}", work.name);
        }
    }

    #[test]
    fn a_table_has_ratios_first_and_names_what_was_not_run() {
        let results = sample();
        let text = made_part(&results);
        assert!(text.contains("| **leasehold** | 1.00 | 0.80 | 100 (90.0–110) |"), "{text}");
        assert!(text.contains("| redsync | not run: go is not installed |"), "{text}");
        assert!(text.contains("**missed**") && text.contains("not measured"), "{text}");
        let plain = plain(work_named("redis-pair-1").unwrap(), &results.tables[0]);
        assert!(plain.contains("redsync") && plain.contains("not run: go is not installed"), "{plain}");
    }

    #[test]
    fn only_the_part_between_the_marks_changes() {
        let page = format!("before\n{BEGIN}\na previous run\n{END}\nafter\n");
        let new = updated(&page, &sample()).unwrap();
        assert!(
            new.starts_with("before\n") && new.ends_with("after\n") && !new.contains("previous"),
            "{new}"
        );
        assert_eq!(updated(&new, &sample()).unwrap(), new);
        assert!(updated("no marks", &sample()).is_err());
    }

    #[test]
    fn the_page_and_its_pictures_are_made_from_the_latest_results() {
        let results = Results::load(&root().join("bench/results/latest.json")).unwrap();
        let advice = "run `cargo xtask bench peers --report`";
        let page = fs::read_to_string(root().join("docs/benchmarks.md")).unwrap();
        assert!(updated(&page, &results).unwrap() == page, "docs/benchmarks.md is stale: {advice}");
        for (name, svg) in charts(&results) {
            let file = fs::read_to_string(root().join("docs/images").join(&name)).unwrap_or_default();
            assert!(file == svg, "docs/images/{name} is stale: {advice}");
        }
    }
}
