//! Tables and colours. Both are for terminals: elsewhere there is no colour, and no column is cut.

use crate::text;

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
}

impl Style {
    /// The text with the escape codes of this style, if `colour` is set.
    pub(crate) fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Style::Plain => return text.to_owned(),
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Good => "32",
            Style::Warn => "33",
            Style::Bad => "31",
        };
        if !colour || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// One cell. Unsafe characters in its text are escaped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn styled(text: impl AsRef<str>, style: Style) -> Cell {
        Cell { text: text::printable(text.as_ref()).into_owned(), style }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::styled(text, Style::Plain)
    }
}

/// Rows under a heading.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    heading: [&'static str; N],
    /// Which columns may be cut on a narrow terminal. Tokens may not: a token that is cut cannot be copied.
    may_cut: [bool; N],
    /// Which columns are left out if even cut columns do not fit, the first one first.
    may_drop: Vec<usize>,
    /// Columns are left out before a column is cut below this width.
    readable: usize,
    rows: Vec<[Cell; N]>,
}

/// The number of spaces between two columns.
const GAP: usize = 2;
/// No column is cut below this width.
const NARROW: usize = 8;
/// The default of `Table::readable`.
const READABLE: usize = 20;

impl<const N: usize> Table<N> {
    /// A table with these headings. A column whose heading starts with `=` is never cut.
    pub(crate) fn new(heading: [&'static str; N]) -> Table<N> {
        let may_cut = heading.map(|name| !name.starts_with('='));
        let heading = heading.map(|name| name.trim_start_matches('='));
        Table { heading, may_cut, may_drop: Vec::new(), readable: READABLE, rows: Vec::new() }
    }

    /// On a narrow terminal, these columns are left out, the first one first.
    #[must_use]
    pub(crate) fn may_drop(mut self, headings: &[&str]) -> Table<N> {
        let position = |name: &&str| self.heading.iter().position(|heading| heading == name);
        self.may_drop = headings.iter().filter_map(position).collect();
        self
    }

    /// Columns are left out before a column is cut below this width.
    #[must_use]
    pub(crate) fn readable(mut self, columns: usize) -> Table<N> {
        self.readable = columns;
        self
    }

    pub(crate) fn row(&mut self, cells: [Cell; N]) {
        self.rows.push(cells);
    }

    /// The lines of the table, the heading first, without trailing spaces.
    pub(crate) fn lines(&self, columns: Option<usize>, colour: bool) -> Vec<String> {
        let widths = self.widths(columns);
        let heading = self.heading.map(|name| Cell::styled(name, Style::Bold));
        let rows = std::iter::once(&heading).chain(&self.rows);
        rows.map(|row| line(row, &widths, columns.unwrap_or(usize::MAX), colour)).collect()
    }

    /// The width of each column: that of its widest cell. If the table is too wide, columns that may be left
    /// out get the width 0, and the widest column that may be cut loses one column at a time.
    fn widths(&self, columns: Option<usize>) -> [usize; N] {
        let widest = |at: usize| {
            let cells = self.rows.iter().map(|row| text::width(&row[at].text));
            cells.chain([text::width(self.heading[at])]).max().unwrap_or(0)
        };
        let mut widths: [usize; N] = std::array::from_fn(widest);
        let Some(columns) = columns else { return widths };
        let total = |widths: &[usize; N]| {
            let shown = widths.iter().filter(|width| **width > 0);
            shown.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
        };
        for &at in &self.may_drop {
            let cut = |at: usize| if self.may_cut[at] { widths[at].min(self.readable) } else { widths[at] };
            if total(&std::array::from_fn(cut)) <= columns {
                break;
            }
            widths[at] = 0;
        }
        while total(&widths) > columns {
            let may_shrink = (0..N).filter(|&at| self.may_cut[at] && widths[at] > NARROW);
            let Some(at) = may_shrink.max_by_key(|&at| widths[at]) else { break };
            widths[at] -= 1;
        }
        widths
    }
}

fn line(row: &[Cell], widths: &[usize], columns: usize, colour: bool) -> String {
    let (mut line, mut used, mut pending) = (String::new(), 0, 0);
    for (cell, &width) in row.iter().zip(widths).filter(|(_, width)| **width > 0) {
        let room = columns.saturating_sub(used + pending);
        let shown = text::cut(&cell.text, width.min(room));
        if !shown.is_empty() {
            line.push_str(&" ".repeat(pending));
            line.push_str(&cell.style.paint(&shown, colour));
            used += pending + text::width(&shown);
            pending = 0;
        }
        pending += width - text::width(&shown).min(width) + GAP;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<3> {
        let mut table = Table::new(["RESOURCE", "=TOKEN", "WHO"]);
        table.row([
            "report/42".into(),
            "1234567890".into(),
            Cell::styled("someone with a long name", Style::Bad),
        ]);
        table.row(["a/日本".into(), "".into(), "b\x1b[2J".into()]);
        table
    }

    #[test]
    fn columns_line_up_and_unsafe_characters_are_escaped() {
        let lines = table().lines(None, false);
        assert_eq!(lines[0], "RESOURCE   TOKEN       WHO");
        assert_eq!(lines[1], "report/42  1234567890  someone with a long name");
        assert_eq!(lines[2], "a/日本                 b\\u{1b}[2J");
    }

    #[test]
    fn a_narrow_terminal_cuts_names_and_never_tokens() {
        for columns in [0, 1, 5, 20, 30, 36, 44, 60] {
            for line in table().lines(Some(columns), false) {
                assert!(text::width(&line) <= columns, "{columns}: {line:?}");
            }
        }
        assert_eq!(table().lines(Some(36), false)[1], "report/42  1234567890  someone with…");
        assert!(table().lines(Some(30), false)[1].contains("1234567890"));
    }

    #[test]
    fn a_narrow_terminal_leaves_out_columns_in_the_given_order() {
        let mut table = Table::new(["=A", "=B", "=C", "D"]).may_drop(&["B", "C"]);
        table.row(["aaaaaaaaaa".into(), "bbbbbbbbbb".into(), "cccccccccc".into(), "d".repeat(30).into()]);
        let shown = |columns| table.lines(Some(columns), false).remove(0).replace(' ', "");
        assert_eq!(["ABCD", "ABCD", "ACD", "AD", "AD"], [70, 56, 55, 43, 20].map(shown).as_ref());
        assert_eq!(table.lines(Some(55), false)[1], format!("aaaaaaaaaa  cccccccccc  {}", "d".repeat(30)));
    }

    #[test]
    fn colour_does_not_change_the_width() {
        let lines = table().lines(None, true);
        assert_eq!(lines[0], "\x1b[1mRESOURCE\x1b[0m   \x1b[1mTOKEN\x1b[0m       \x1b[1mWHO\x1b[0m");
        assert!(lines[1].ends_with("\x1b[31msomeone with a long name\x1b[0m"));
    }
}
