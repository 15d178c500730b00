//! A process, told from a later one with the same id.

use std::{fs, io};

/// A process: its id and its start, in clock ticks since boot. An id alone is used again after a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    pub(crate) started: u64,
}

impl ProcessId {
    pub(crate) fn own() -> io::Result<ProcessId> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        ProcessId::of(pid).ok_or_else(|| io::Error::other("/proc cannot be read"))
    }

    /// The process that has this id now. `None` if there is none.
    pub(crate) fn of(pid: i32) -> Option<ProcessId> {
        Some(ProcessId { pid, started: start_of(pid)? })
    }

    pub(crate) fn read(text: &str) -> Option<ProcessId> {
        let (pid, started) = text.split_once(" started at ")?;
        Some(ProcessId { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }

    /// Whether there is such a process. One that has ended, and that its parent has not waited for, counts.
    pub(crate) fn is_alive(self) -> bool {
        start_of(self.pid) == Some(self.started)
    }
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} started at {}", self.pid, self.started)
    }
}

/// When this process was started: field 22 of `/proc/PID/stat`.
fn start_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may contain anything.
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}
