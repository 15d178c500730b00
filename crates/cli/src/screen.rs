//! Where answers go: a terminal, or something that reads them.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{exit::Failure, table::Table, text};

/// What stdout is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    pub(crate) colour: bool,
    /// Whether its cursor can be moved.
    pub(crate) moves: bool,
    /// Of a terminal.
    pub(crate) size: Option<Size>,
}

/// Of a terminal, in characters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

impl Screen {
    /// Asked again before every redraw: terminals change their size.
    pub(crate) fn now() -> Screen {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return Screen { colour: false, moves: false, size: None };
        }
        let unset = |name| env::var_os(name).is_none_or(|value| value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        let size =
            rustix::termios::tcgetwinsize(&stdout).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let size = size.map_or(Size { columns: 80, rows: 24 }, |size| Size {
            columns: usize::from(size.ws_col),
            rows: usize::from(size.ws_row),
        });
        Screen { colour: unset("NO_COLOR") && !dumb, moves: !dumb, size: Some(size) }
    }

    pub(crate) fn columns(self) -> Option<usize> {
        self.size.map(|size| size.columns)
    }

    pub(crate) fn lines<const N: usize>(self, table: &Table<N>) -> Vec<String> {
        table.lines(self.columns(), self.colour)
    }

    /// The same, further to the right.
    pub(crate) fn indented<const N: usize>(self, table: &Table<N>) -> impl Iterator<Item = String> + use<N> {
        let columns = self.columns().map(|columns| columns.saturating_sub(2));
        table.lines(columns, self.colour).into_iter().map(|line| format!("  {line}"))
    }

    /// Whether somebody may read what is printed: the reader of a pipe may have gone.
    pub(crate) fn is_read(self) -> bool {
        let stdout = io::stdout();
        let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
        let asked = poll(&mut ends, Some(&Timespec::default()));
        asked.is_err() || !ends[0].revents().contains(PollFlags::ERR)
    }

    /// Prints; false if the reader has had enough.
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

    /// Prints one line of JSON. What could move a cursor is escaped, which JSON's own rules leave open above 127.
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
    fn json_is_the_same_and_harmless() {
        let text = "a\x1b\u{9b}\u{202e}\u{e0001}日";
        let json = ascii_escaped(&serde_json::to_string(text).unwrap());
        assert!(!json.chars().any(text::is_unsafe), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
