//! The controlling terminal: its foreground process group and its settings.
//!
//! Only the foreground process group may read from the terminal, and the keys Ctrl-C, Ctrl-Z and Ctrl-\ send
//! signals to it.

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
    /// `None` without a terminal: in a daemon, under cron, in a container.
    pub(crate) fn controlling() -> Option<Terminal> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Terminal)
    }

    /// Whether this process group is in the foreground.
    pub(crate) fn is_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }

    pub(crate) fn settings(&self) -> Option<Termios> {
        tcgetattr(&self.0).ok()
    }

    pub(crate) fn set(&self, settings: &Termios) {
        // An error is ignored: the terminal may have gone.
        let _ = without_sigttou(|| tcsetattr(&self.0, OptionalActions::Drain, settings));
    }

    pub(crate) fn give_to(&self, group: Pid) {
        let _ = without_sigttou(|| tcsetpgrp(&self.0, group)); // the group may have gone
    }
}

/// Whether the command should get the foreground at once: `leasehold` was typed alone, without pipes. In a
/// pipeline or a script, other processes may need the terminal; there the command gets it when it first
/// reads.
pub(crate) fn is_exclusively_ours() -> bool {
    let leads = getpgrp() == getpid();
    leads && io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal()
}

/// Whether a shell is there to continue us after a stop. Without one, we would stay stopped for ever.
pub(crate) fn is_shell_job() -> bool {
    getsid(None).is_ok_and(|session| session != getpgrp())
}

/// Runs `work` with SIGTTOU blocked. The kernel sends it, and so stops the process, when a background process
/// writes to the terminal (with `stty tostop`), changes its settings or its foreground group.
pub(crate) fn without_sigttou<T>(work: impl FnOnce() -> T) -> T {
    let mut sigttou = SigSet::empty();
    sigttou.add(Blocked::SIGTTOU);
    let before = sigttou.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let done = work();
    if let Ok(before) = before {
        let _ = before.thread_set_mask(); // cannot fail: it was the mask before
    }
    done
}
