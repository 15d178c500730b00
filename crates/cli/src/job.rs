//! Job control: the command and `leasehold` look like one job to the shell, though they are two process groups.
//!
//! The keys of a terminal reach the group in front. At first that is ours, and signals are passed on; a command that
//! was typed alone gets the terminal from the start, any other when it first reads from it or changes its settings,
//! for which the kernel stops it. When the command is stopped by Ctrl-Z, we stop, too, so that the shell goes on; when
//! the shell lets us go on, so does the command.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rustix::{
    process::{Pid, Signal, getpgrp, getpid, kill_process},
    termios::Termios,
};

use crate::{
    guardian::{Guardian, Wish},
    terminal::{self, Terminal},
};

/// The command as a job.
pub(crate) struct Job {
    terminal: Option<Terminal>,
    /// How the terminal was set before the command got it.
    settings: Option<Termios>,
    command: Option<Pid>,
    /// A stop was passed on to the command, which has not been seen to stop yet.
    is_stopping: bool,
    /// The shell has let us go on. Set by the signal itself, so that it is known at once.
    is_resumed: Arc<AtomicBool>,
}

impl Job {
    pub(crate) fn begin() -> Job {
        let terminal = Terminal::controlling();
        let settings =
            terminal.as_ref().filter(|terminal| terminal.is_with(getpgrp())).and_then(Terminal::settings);
        let is_resumed = Arc::new(AtomicBool::new(false));
        if terminal.is_some() {
            // Without it, a shell that is faster than we are finds us stopped once more: `fg` mends that.
            let _ = signal_hook::flag::register(Signal::CONT.as_raw(), Arc::clone(&is_resumed));
        }
        Job { terminal, settings, command: None, is_stopping: false, is_resumed }
    }

    /// This was sent to us, and is passed on.
    pub(crate) fn signalled(&mut self, signal: Signal) {
        match signal {
            Signal::TSTP => self.is_stopping = true,
            Signal::CONT if !self.is_stopping => self.is_resumed.store(false, Ordering::SeqCst),
            _ => {}
        }
    }

    /// Whether the keys of the terminal reach us.
    pub(crate) fn is_in_front(&self) -> bool {
        self.has_terminal(Some(getpgrp()))
    }

    pub(crate) fn started(&mut self, pid: i32) {
        self.command = Pid::from_raw(pid);
    }

    /// The command was stopped by this signal.
    pub(crate) fn stopped(&mut self, signal: i32, guardian: &Guardian) {
        let was_stopping = std::mem::take(&mut self.is_stopping);
        let wants_terminal = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal);
        let by_someone = signal == Signal::STOP.as_raw();
        if was_stopping && self.is_resumed.swap(false, Ordering::SeqCst) {
            // The whole job was stopped by a key, and has been let go on before we knew.
        } else if wants_terminal && !was_stopping && self.has_terminal(self.command) {
            // It asked in the moment between its start and the guardian's giving.
        } else if wants_terminal && !was_stopping && self.is_in_front() {
            self.give_to(self.command);
        } else if by_someone || (wants_terminal && !terminal::is_a_job()) {
            return; // someone did that, and may undo it; or there is nobody to bring us to the front
        } else if terminal::is_a_job() {
            self.stop_with_it(wants_terminal);
        }
        guardian.wish(Wish::Signal(Signal::CONT.as_raw()));
    }

    /// Stops us; returns when the shell lets us go on, in front or not.
    fn stop_with_it(&self, wants_terminal: bool) {
        let had_terminal = self.has_terminal(self.command);
        if had_terminal {
            self.give_to(Some(getpgrp()));
        }
        let _ = kill_process(getpid(), Signal::STOP); // nobody can forbid us that
        self.is_resumed.store(false, Ordering::SeqCst);
        if (had_terminal || wants_terminal) && self.is_in_front() {
            self.give_to(self.command);
        }
    }

    /// The command is gone. One that was killed had no chance to put the terminal right.
    pub(crate) fn end(&self, was_orderly: bool) {
        if !self.has_terminal(self.command) {
            return;
        }
        self.give_to(Some(getpgrp()));
        if let (false, Some(terminal), Some(settings)) = (was_orderly, &self.terminal, &self.settings) {
            terminal.set(settings);
        }
    }

    fn has_terminal(&self, group: Option<Pid>) -> bool {
        self.terminal.as_ref().zip(group).is_some_and(|(terminal, group)| terminal.is_with(group))
    }

    fn give_to(&self, group: Option<Pid>) {
        if let (Some(terminal), Some(group)) = (&self.terminal, group) {
            terminal.give_to(group);
        }
    }
}
