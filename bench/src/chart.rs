//! The charts of the page: horizontal bars, readable in light and dark.

use std::fmt::Write as _;

use crate::{
    figures::{heading, less_is_better, short, summary},
    peers::LEASEHOLD,
    results::{Results, Table},
    works::{Work, work_named},
};

const WIDTH: usize = 860;
const LABEL: usize = 190;
const NUMBER: usize = 150;
const BAR: usize = 18;
const STEP: usize = 24;
const HEAD: usize = 34;
const MARGIN: usize = 16;

/// The colours come from a style sheet, because a picture in a page cannot ask the page for its own.
const STYLE: &str = "\
    .ground { fill: #ffffff } .text { fill: #1f2937 } .weak { fill: #6b7280 }
    .bar { fill: #b6c2d1 } .ours { fill: #2563eb } .range { stroke: #374151 }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #0d1117 } .text { fill: #e6edf3 } .weak { fill: #9aa4b2 }
      .bar { fill: #4b5666 } .ours { fill: #4f8cff } .range { stroke: #d0d7de }
    }";

/// The chart of a section: a panel for each of its works. The bars of a panel begin at zero.
pub fn chart(title: &str, works: &[&str], results: &Results) -> String {
    let mut body = String::new();
    let mut y = MARGIN + 24;
    for name in works {
        if let (Some(table), Some(work)) = (results.table(name), work_named(name)) {
            y = panel(&mut body, y, work, table);
        }
    }
    let height = y + MARGIN;
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" \
         font-size=\"13\" role=\"img\" aria-labelledby=\"t d\">\n  <title id=\"t\">{title}</title>\n  \
         <desc id=\"d\">Bar charts; the tables below the picture have the same figures.</desc>\n  <style>\n{STYLE}\n  \
         </style>\n  <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"10\"/>\n  \
         <text class=\"text\" x=\"{MARGIN}\" y=\"{}\" font-size=\"16\" font-weight=\"600\">{title}</text>\n{body}</svg>\n",
        MARGIN + 10
    )
}

/// Draws one work. Returns where the next one begins.
fn panel(body: &mut String, top: usize, work: &Work, table: &Table) -> usize {
    let figure = work.main_figure();
    let better = if less_is_better(figure) { "less is better" } else { "more is better" };
    let _ = writeln!(
        body,
        "  <text class=\"text\" x=\"{MARGIN}\" y=\"{}\" font-weight=\"600\">{}</text>\n  \
         <text class=\"weak\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}: {better}</text>",
        top + 22,
        escaped(work.title),
        WIDTH - MARGIN,
        top + 22,
        escaped(heading(figure)),
    );
    let bars: Vec<_> = table.rows.iter().map(|row| (row, summary(row, figure))).collect();
    let finite = bars.iter().filter_map(|(_, summary)| summary.map(|summary| summary.most));
    let most = finite.filter(|most| most.is_finite()).fold(0.0, f64::max);
    let room = (WIDTH - 2 * MARGIN - LABEL - NUMBER) as f64;
    let length = |value: f64| if most > 0.0 { (value.min(most) / most * room).max(1.0) } else { 1.0 };
    let mut y = top + HEAD;
    for (row, summary) in bars {
        let (middle, left) = (y + BAR / 2 + 5, MARGIN + LABEL);
        let label = escaped(&row.peer);
        let _ = writeln!(
            body,
            "  <text class=\"text\" x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{label}</text>",
            left - 8
        );
        let Some(summary) = summary.filter(|_| row.not_run.is_none()) else {
            let _ = writeln!(body, "  <text class=\"weak\" x=\"{left}\" y=\"{middle}\">not run</text>");
            y += STEP;
            continue;
        };
        let class = if row.peer.starts_with(LEASEHOLD) { "ours" } else { "bar" };
        let (bar, from, to) = (length(summary.median), length(summary.least), length(summary.most));
        let _ = writeln!(
            body,
            "  <rect class=\"{class}\" x=\"{left}\" y=\"{y}\" width=\"{bar:.1}\" height=\"{BAR}\" rx=\"3\"/>\n  \
             <line class=\"range\" x1=\"{:.1}\" y1=\"{}\" x2=\"{:.1}\" y2=\"{}\"/>\n  \
             <text class=\"text\" x=\"{:.1}\" y=\"{middle}\">{}</text>",
            left as f64 + from,
            y + BAR / 2,
            left as f64 + to,
            y + BAR / 2,
            left as f64 + bar.max(to) + 6.0,
            short(summary.median),
        );
        y += STEP;
    }
    y + 10
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    /// Checks that every element is closed, in order, and that nothing is left unescaped.
    fn assert_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = svg;
        while let Some(start) = rest.find('<') {
            assert!(!rest[..start].contains('>'), "an unescaped `>` in {}", &rest[..start]);
            let end = rest[start..].find('>').expect("a tag is closed") + start;
            let tag = &rest[start + 1..end];
            assert!(!tag.contains('<'), "an unescaped `<` in {tag}");
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes of {tag}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "the element that is closed");
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().expect("a tag has a name"));
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty(), "{open:?} are not closed");
    }

    #[test]
    fn a_chart_is_well_formed_and_shows_every_peer() {
        let mut results = sample();
        results.tables[0].rows[0].peer = "a <peer> & more".to_owned();
        results.tables[0].rows[1].figures.insert("p50_us".to_owned(), vec![None]);
        let svg = chart("Redis & co", &["redis-pair-1", "redis-pair-64", "etcd-pair-1"], &results);
        assert_well_formed(&svg);
        assert!(
            svg.contains("a &lt;peer&gt; &amp; more") && svg.contains("not run") && svg.contains("∞"),
            "{svg}"
        );
        assert!(!svg.contains("etcd"), "a work that was not measured has no panel");
        assert!(svg.contains("prefers-color-scheme: dark"));
    }
}
