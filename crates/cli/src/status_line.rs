//! One line at the bottom of the terminal that is replaced again and again, and erased when it is no longer true.
//!
//! It is on stderr. Whatever else this process prints there erases the line first ([`erasing`]).

use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::getpgrp;

use crate::{
    redact,
    terminal::{self, Terminal},
    text,
};

/// Whether the line is on the screen now.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Moves the cursor to the start of the line, and clears the line.
const ERASE: &str = "\r\x1b[K";
/// Assumed for a terminal that does not tell its width.
const COLUMNS_UNKNOWN: usize = 80;

/// The status line. It is erased when this is dropped.
pub(crate) struct StatusLine(());

impl StatusLine {
    /// `None` if stderr is not a terminal that can redraw a line.
    pub(crate) fn on_stderr() -> Option<StatusLine> {
        let can_redraw = env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        (can_redraw && io::stderr().is_terminal()).then_some(StatusLine(()))
    }

    /// Replaces the line. In the background of a shell it draws nothing: the line would stand in the middle of what is typed.
    pub(crate) fn draw(&self, line: &str) {
        let in_foreground = |terminal: Terminal| terminal.is_foreground(getpgrp());
        if !Terminal::controlling().is_some_and(in_foreground) {
            return;
        }
        let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let line = redact::redact(line);
        // One column less: a full line would move the cursor to the next one.
        let line = text::printable(&line);
        let line = text::cut(&line, columns.unwrap_or(COLUMNS_UNKNOWN) - 1);
        write(&format!("{ERASE}{line}"));
        IS_DRAWN.store(true, Ordering::Relaxed);
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        write(erasing());
    }
}

/// What to print before anything else on stderr: it erases the line, if there is one.
pub(crate) fn erasing() -> &'static str {
    if IS_DRAWN.swap(false, Ordering::Relaxed) { ERASE } else { "" }
}

fn write(text: &str) {
    if !text.is_empty() {
        // An error is ignored: the terminal may have gone.
        let _ = terminal::without_sigttou(|| io::stderr().write_all(text.as_bytes()));
    }
}
