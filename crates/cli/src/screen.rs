//! Printing on stdout: its size and colours if it is a terminal, plain text and JSON otherwise.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    sync::OnceLock,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{args::Color, exit::Failure, table::Table, text};

/// What stdout can show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    pub(crate) colour: bool,
    /// Whether the cursor can be moved, to redraw in place.
    pub(crate) can_redraw: bool,
    /// The size, if stdout is a terminal.
    pub(crate) size: Option<Size>,
}

/// Assumed for a terminal that does not tell its size.
const UNKNOWN_SIZE: Size = Size { columns: 80, rows: 24 };

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The value of `--color`.
static COLOR: OnceLock<Color> = OnceLock::new();

/// Sets the value of `--color` for the whole process.
pub(crate) fn set_color(color: Option<Color>) {
    COLOR.get_or_init(|| color.unwrap_or(Color::Auto));
}

/// Whether to use colours. `by_default` is for `--color auto`, unless `NO_COLOR` or `CLICOLOR_FORCE` is set.
fn is_coloured(by_default: bool) -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    match COLOR.get() {
        Some(Color::Always) => true,
        Some(Color::Never) => false,
        Some(Color::Auto) | None if is_set("NO_COLOR") => false,
        Some(Color::Auto) | None => {
            by_default
                || (is_set("CLICOLOR_FORCE")
                    && env::var_os("CLICOLOR_FORCE").is_some_and(|value| value != "0"))
        }
    }
}

impl Screen {
    /// The current properties of stdout. Call it again before every redraw: the size of a terminal can
    /// change.
    pub(crate) fn now() -> Screen {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Screen { colour: is_coloured(false), can_redraw: false, size: None };
        }
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let size =
            rustix::termios::tcgetwinsize(&stdout).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let size = size.map_or(UNKNOWN_SIZE, |size| Size {
            columns: usize::from(size.ws_col),
            rows: usize::from(size.ws_row),
        });
        Screen { colour: is_coloured(!dumb), can_redraw: !dumb, size: Some(size) }
    }

    pub(crate) fn columns(self) -> Option<usize> {
        self.size.map(|size| size.columns)
    }

    pub(crate) fn lines<const N: usize>(self, table: &Table<N>) -> Vec<String> {
        table.lines(self.columns(), self.colour)
    }

    /// The lines of a table, indented by two columns.
    pub(crate) fn indented<const N: usize>(self, table: &Table<N>) -> impl Iterator<Item = String> + use<N> {
        let columns = self.columns().map(|columns| columns.saturating_sub(2));
        table.lines(columns, self.colour).into_iter().map(|line| format!("  {line}"))
    }

    /// Whether stdout is still open on the other side. The reader of a pipe may have closed it.
    pub(crate) fn has_reader(self) -> bool {
        let stdout = io::stdout();
        let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
        let polled = poll(&mut ends, Some(&Timespec::default()));
        polled.is_err() || !ends[0].revents().contains(PollFlags::ERR)
    }

    /// Prints. False if the reader of the pipe has closed it.
    pub(crate) fn print(self, text: &str) -> Result<bool, Failure> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::internal(format!("cannot write to stdout: {error}"))),
        }
    }

    pub(crate) fn print_lines(self, lines: &[String]) -> Result<bool, Failure> {
        let mut all = lines.join("\n");
        if !lines.is_empty() {
            all.push('\n');
        }
        self.print(&all)
    }

    /// Prints one line of JSON. Characters that could move the cursor or hide text are escaped: JSON itself
    /// requires that only for ASCII control characters.
    pub(crate) fn print_json(self, value: &impl serde::Serialize) -> Result<bool, Failure> {
        let json = serde_json::to_string(value).map_err(|error| Failure::internal(error.to_string()))?;
        self.print(&(ascii_escaped(&json) + "\n"))
    }
}

fn ascii_escaped(json: &str) -> String {
    let mut units = [0; 2];
    json.chars().fold(String::with_capacity(json.len()), |mut out, c| {
        if text::is_unsafe(c) {
            c.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_has_the_same_value_and_no_unsafe_characters() {
        let text = "a\x1b\u{9b}\u{202e}\u{e0001}日";
        let json = ascii_escaped(&serde_json::to_string(text).unwrap());
        assert!(!json.chars().any(text::is_unsafe), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
