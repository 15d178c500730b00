//! The clients of other languages, through `leasehold serve`, beside a lock library of the same language straight to the same Redis.
//!
//! All of them take part in the same rounds, each client right before its library: load on the machine slows both.

use crate::{
    figures::{ratio, ratio_text, short, summary},
    peers::{CLIENTS, Peer},
    results::{Row, Table},
    works::{Kind, StoreKind, Work},
};

/// Pairs one after the other.
pub const ONE: Work = Work {
    name: "clients-pair-1",
    title: "Clients through the server: acquire and release, one task",
    store: StoreKind::Served,
    kind: Kind::Pair { tasks: 1 },
    peers: CLIENTS,
};

/// Pairs of 16 tasks or threads.
pub const SIXTEEN: Work = Work {
    name: "clients-pair-16",
    title: "Clients through the server: acquire and release, 16 tasks",
    store: StoreKind::Served,
    kind: Kind::Pair { tasks: 16 },
    peers: CLIENTS,
};

/// A language that has a client.
#[derive(Clone, Copy, Debug)]
pub struct Language {
    /// Its name in the table and for `--language`.
    pub name: &'static str,
    /// The client of this repository.
    pub client: &'static Peer,
    /// The library beside it.
    pub library: &'static Peer,
}

/// All languages, in the order of the table.
pub fn languages() -> impl Iterator<Item = Language> {
    CLIENTS.chunks_exact(2).map(|two| Language {
        name: two[0].name.rsplit(' ').next().unwrap_or(two[0].name),
        client: two[0],
        library: two[1],
    })
}

/// What the ratios mean, and what the two sides do for a pair.
pub fn explanation(cores: usize) -> String {
    format!(
        "Ratio: pairs a second, with the library of the same language as 1; the median of the ratios of the rounds.\n\
         A leasehold client goes through `leasehold serve`: two HTTP requests for a pair, and behind each of them the server's\n\
         request to Redis, so two hops instead of one. For that its lease has a place in a queue, a fencing token, and a clock that\n\
         says when it is lost. The libraries go straight to Redis; their locks have no queue and no fencing token.\n\
         Clients, server and Redis share the {cores} cores of this machine."
    )
}

const HEADINGS: [&str; 9] = [
    "",
    "one at a time: pairs/s",
    "ratio",
    "p50 µs",
    "p99 µs",
    "16 at once: pairs/s",
    "ratio",
    "p50 µs",
    "p99 µs",
];

/// The table of both works, in Markdown that can be read in a terminal.
pub fn markdown(languages: &[Language], one: &Table, sixteen: &Table) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned).to_vec()];
    for language in languages {
        for peer in [language.client, language.library] {
            let mut cells = vec![label(language, peer)];
            for table in [one, sixteen] {
                cells.extend(figures_of(peer, language.library, table));
            }
            lines.push(cells);
        }
    }
    aligned(&lines)
}

fn label(language: &Language, peer: &Peer) -> String {
    if peer.name == language.client.name {
        format!("**{}**, through the server", peer.name)
    } else {
        format!("{} in {}, straight to Redis", peer.name, language.name)
    }
}

/// The four cells of a peer in one of the works.
fn figures_of(peer: &Peer, library: &Peer, table: &Table) -> [String; 4] {
    let row_of = |peer: &Peer| table.rows.iter().find(|row| row.peer == peer.name);
    let cells = |first: String| [first, String::new(), String::new(), String::new()];
    let Some(row) = row_of(peer) else { return cells("not run".to_owned()) };
    if let Some(why) = &row.not_run {
        return cells(format!("not run: {why}"));
    }
    let text =
        |figure: &str| summary(row, figure).map_or_else(|| "–".to_owned(), |summary| short(summary.median));
    let base = row_of(library).filter(|base| base.not_run.is_none());
    let ratio = base.and_then(|base| ratio(row, base, "per_second"));
    let ratio = ratio.map_or_else(|| "–".to_owned(), ratio_text);
    [text("per_second"), ratio, text("p50_us"), text("p99_us")]
}

/// The lines as a table, all cells of a column equally wide. A reason may be wider than its column.
fn aligned(lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().map(|cells| &cells[column]).filter(|cell| !cell.starts_with("not run"));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", cells.collect::<Vec<String>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| match column {
        0 => "-".repeat(width + 2),
        _ => format!("{}:", "-".repeat(width + 1)),
    });
    let rule = format!("|{}|\n", rule.collect::<Vec<String>>().join("|"));
    let mut text = line(&lines[0]) + &rule;
    lines[1..].iter().for_each(|cells| text.push_str(&line(cells)));
    text
}

/// A line for each side that had failed attempts: its figures are of the others.
pub fn failures(tables: [&Table; 2]) -> Vec<String> {
    let failed = |row: &Row| row.values("errors").iter().sum::<f64>();
    let rows = tables.into_iter().flat_map(|table| table.rows.iter().map(move |row| (&table.work, row)));
    rows.filter(|(_, row)| failed(row) > 0.0)
        .map(|(work, row)| format!("{work}: {} failed attempts of {}", failed(row), row.peer))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::peers::LEASEHOLD;

    fn row(peer: &Peer, rates: &[f64]) -> Row {
        let mut row = Row { peer: peer.name.to_owned(), not_run: None, figures: BTreeMap::new() };
        for rate in rates {
            row.add(&BTreeMap::from([("per_second", *rate), ("p50_us", 500.0), ("p99_us", 900.0)]));
        }
        row
    }

    fn table(work: &Work, rows: Vec<Row>) -> Table {
        Table { work: work.name.to_owned(), rows }
    }

    #[test]
    fn every_language_has_a_client_and_a_library_of_the_same_program() {
        assert_eq!(CLIENTS.len() % 2, 0);
        for language in languages() {
            assert!(language.client.name.starts_with(LEASEHOLD) && language.client.fence, "{language:?}");
            assert!(!language.library.name.starts_with(LEASEHOLD), "{language:?}");
            assert_eq!(language.client.program, language.library.program);
        }
    }

    #[test]
    fn the_ratio_is_that_of_each_round() {
        let python = languages().next().unwrap();
        // The second round was slow for both.
        let rows =
            vec![row(python.client, &[100.0, 50.0, 120.0]), row(python.library, &[400.0, 200.0, 480.0])];
        let text = markdown(&[python], &table(&ONE, rows.clone()), &table(&SIXTEEN, rows));
        let ours = text.lines().find(|line| line.contains("**leasehold for Python**")).unwrap();
        let cells: Vec<&str> = ours.split('|').map(str::trim).collect();
        assert_eq!(cells[2..6], ["100", "0.25", "500", "900"], "{text}");
        let columns: Vec<usize> = text.lines().map(|line| line.matches('|').count()).collect();
        assert!(columns.iter().all(|count| *count == HEADINGS.len() + 1), "{text}");
    }

    #[test]
    fn a_missing_toolchain_is_reported_and_leaves_no_ratio() {
        let python = languages().next().unwrap();
        let rows =
            vec![row(python.client, &[100.0]), Row::not_run(python.library.name, "pip is not installed")];
        let text = markdown(&[python], &table(&ONE, rows.clone()), &table(&SIXTEEN, rows));
        assert!(text.contains("not run: pip is not installed"), "{text}");
        let ours = text.lines().find(|line| line.contains("**leasehold for Python**")).unwrap();
        assert!(ours.split('|').any(|cell| cell.trim() == "–"), "{text}");
    }

    #[test]
    fn failed_attempts_are_reported() {
        let python = languages().next().unwrap();
        let mut failing = row(python.client, &[100.0]);
        failing.add(&BTreeMap::from([("errors", 3.0)]));
        let (one, sixteen) = (table(&ONE, vec![failing]), table(&SIXTEEN, vec![row(python.library, &[1.0])]));
        assert_eq!(failures([&one, &sixteen]), ["clients-pair-1: 3 failed attempts of leasehold for Python"]);
    }
}
