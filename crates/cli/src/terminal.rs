//! The controlling terminal: who may read from it, and whom its keys reach.

use std::{
    fs::File,
    io::{self, IsTerminal as _},
};

use nix::sys::signal::{SigSet, SigmaskHow, Signal as Blocked};
use rustix::{
    process::{Pid, getpgrp, getpid, getsid},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(File);

impl Terminal {
    /// None without one: a daemon, cron, a container.
    pub(crate) fn controlling() -> Option<Terminal> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Terminal)
    }

    /// Whether the terminal's keys reach this process group, and it may read.
    pub(crate) fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }

    pub(crate) fn settings(&self) -> Option<Termios> {
        tcgetattr(&self.0).ok()
    }

    pub(crate) fn set(&self, settings: &Termios) {
        let _ = undisturbed(|| tcsetattr(&self.0, OptionalActions::Drain, settings)); // a terminal that is gone needs none
    }

    pub(crate) fn give_to(&self, group: Pid) {
        let _ = undisturbed(|| tcsetpgrp(&self.0, group)); // a group that is gone needs none
    }
}

/// Whether a command should get the terminal from the start: a person typed it, alone and without pipes. In a
/// pipeline or a script others may need it; there, it gets the terminal when it first reads.
pub(crate) fn is_all_ours() -> bool {
    let leads = getpgrp() == getpid();
    leads && io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// Whether a shell is there to let us go on once we are stopped: without one, stopping would be for ever.
pub(crate) fn is_a_job() -> bool {
    getsid(None).is_ok_and(|session| session != getpgrp())
}

/// Does what a background process may not do without being stopped for it: writing, with `stty tostop`, and giving
/// away the terminal.
pub(crate) fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let mut output = SigSet::empty();
    output.add(Blocked::SIGTTOU);
    let before = output.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let done = work();
    if let Ok(before) = before {
        let _ = before.thread_set_mask(); // it was a valid mask
    }
    done
}
