//! Job control: to the shell, `leasehold` and its command look like one job, though they are two process
//! groups.
//!
//! The command has a process group of its own, so that a signal to it does not reach the shell's pipeline
//! (ADR 0013). That leaves the terminal to us:
//!
//! 1. The keys of a terminal send signals to the foreground process group. At first that is ours, and we
//!    forward the signals to the command.
//! 2. A command that was typed alone gets the foreground at once. Any other command gets it when it first
//!    reads from the terminal or changes its settings: the kernel then stops it with TTIN or TTOU, and we see
//!    the stop.
//! 3. When Ctrl-Z stops the command, we stop ourselves as well, so that the shell shows a stopped job.
//! 4. When the shell continues us (`fg`, `bg`), we continue the command.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rustix::{
    process::{Pid, Signal, getpgrp, getpid, kill_process},
    termios::Termios,
};

use crate::{
    guardian::{Guardian, GuardianRequest},
    terminal::{self, Terminal},
};

/// The command as a job of the shell.
pub(crate) struct JobControl {
    terminal: Option<Terminal>,
    /// The settings of the terminal before the command got it.
    settings: Option<Termios>,
    command: Option<Pid>,
    /// TSTP was forwarded to the command, and the guardian has not reported yet that the command stopped.
    is_stopping: bool,
    /// The shell has continued us. The signal handler sets it, so that it is up to date before the runtime
    /// polls again.
    is_resumed: Arc<AtomicBool>,
}

impl JobControl {
    pub(crate) fn new() -> JobControl {
        let terminal = Terminal::controlling();
        let settings = terminal
            .as_ref()
            .filter(|terminal| terminal.is_foreground(getpgrp()))
            .and_then(Terminal::settings);
        let is_resumed = Arc::new(AtomicBool::new(false));
        if terminal.is_some() {
            // If this fails, a shell that continues us very quickly finds us stopped once more. `fg` repairs
            // that.
            let _ = signal_hook::flag::register(Signal::CONT.as_raw(), Arc::clone(&is_resumed));
        }
        JobControl { terminal, settings, command: None, is_stopping: false, is_resumed }
    }

    /// Call for every signal that is forwarded to the command.
    pub(crate) fn forwarded(&mut self, signal: Signal) {
        match signal {
            Signal::TSTP => self.is_stopping = true,
            Signal::CONT if !self.is_stopping => self.is_resumed.store(false, Ordering::SeqCst),
            _ => {}
        }
    }

    /// Whether our process group is in the foreground: the keys of the terminal reach us.
    pub(crate) fn is_foreground_job(&self) -> bool {
        self.has_terminal(Some(getpgrp()))
    }

    /// The command runs with this pid.
    pub(crate) fn started(&mut self, pid: i32) {
        self.command = Pid::from_raw(pid);
    }

    /// The command was stopped by this signal. Continues it, unless it has to stay stopped.
    pub(crate) fn stopped(&mut self, signal: i32, guardian: &Guardian) {
        let was_stopping = std::mem::take(&mut self.is_stopping);
        let wants_terminal = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal);
        let by_stop_signal = signal == Signal::STOP.as_raw();
        if was_stopping && self.is_resumed.swap(false, Ordering::SeqCst) {
            // A key stopped the whole job, and the shell has continued it before the guardian reported the
            // stop.
        } else if wants_terminal && !was_stopping && self.has_terminal(self.command) {
            // It read between its start and the moment in which the guardian gave it the terminal.
        } else if wants_terminal && !was_stopping && self.is_foreground_job() {
            self.give_to(self.command);
        } else if by_stop_signal || (wants_terminal && !terminal::is_shell_job()) {
            // STOP comes from `kill`, and its sender continues the command. Without a shell, nothing would
            // ever bring us to the foreground.
            return;
        } else if terminal::is_shell_job() {
            self.stop_ourselves(wants_terminal);
        }
        guardian.request(GuardianRequest::Signal(Signal::CONT.as_raw()));
    }

    /// Stops this process. Returns when the shell continues it, in the foreground or in the background.
    fn stop_ourselves(&self, wants_terminal: bool) {
        let had_terminal = self.has_terminal(self.command);
        if had_terminal {
            self.give_to(Some(getpgrp()));
        }
        // It cannot fail: STOP cannot be blocked, and a process may always signal itself.
        let _ = kill_process(getpid(), Signal::STOP);
        self.is_resumed.store(false, Ordering::SeqCst);
        if (had_terminal || wants_terminal) && self.is_foreground_job() {
            self.give_to(self.command);
        }
    }

    /// The command has ended: takes the terminal back. Restores its settings if the command was killed,
    /// because such a command could not restore them itself.
    pub(crate) fn end(&self, ended_by_itself: bool) {
        if !self.has_terminal(self.command) {
            return;
        }
        self.give_to(Some(getpgrp()));
        if let (false, Some(terminal), Some(settings)) = (ended_by_itself, &self.terminal, &self.settings) {
            terminal.set(settings);
        }
    }

    fn has_terminal(&self, group: Option<Pid>) -> bool {
        self.terminal.as_ref().zip(group).is_some_and(|(terminal, group)| terminal.is_foreground(group))
    }

    fn give_to(&self, group: Option<Pid>) {
        if let (Some(terminal), Some(group)) = (&self.terminal, group) {
            terminal.give_to(group);
        }
    }
}
