//! Finding and killing all descendants of a process, from `/proc`.

use std::{fs, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, wait},
};

/// The pause before descendants that are still alive are killed again.
const KILL_AGAIN: Duration = Duration::from_millis(5);

/// A process, as `/proc/PID/stat` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    parent: i32,
    pub(crate) group: i32,
    /// The start time. The kernel uses pids again; pid and start time together name one process for good.
    started: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Process> {
        parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Sends a signal to this process, and never to a newer process with the same pid.
    ///
    /// The pidfd is opened first and the start time is compared then: from the comparison on, the pidfd names
    /// the right process.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let handle = pidfd_open(self.pid, PidfdFlags::empty())?;
        match Process::read(self.pid.as_raw_pid()) {
            Some(now) if now.started == self.started => pidfd_send_signal(handle, signal),
            _ => Err(Errno::SRCH),
        }
    }
}

/// Parses `pid (name) state parent group …`. The name may contain any bytes, also `)`. The start time is
/// field 22.
fn parse(stat: &[u8]) -> Option<Process> {
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let open = stat.iter().position(|&byte| byte == b'(')?;
    let pid: i32 = std::str::from_utf8(&stat[..open]).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(&stat[close + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let started = fields.nth(16)?.parse().ok()?;
    Some(Process { pid: Pid::from_raw(pid)?, parent, group, started })
}

/// All descendants of a process. A process that starts meanwhile may be missing: call it again.
pub(crate) fn descendants(root: Pid) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut others: Vec<Process> = pids.filter_map(Process::read).collect();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root.as_raw_pid()];
    while let Some(parent) = parents.pop() {
        let (children, rest) = others.into_iter().partition(|process| process.parent == parent);
        others = rest;
        let children: Vec<Process> = children;
        parents.extend(children.iter().map(|child| child.pid.as_raw_pid()));
        found.extend(children);
    }
    found
}

/// Kills all descendants of a process. Returns those that belong to another user and cannot be killed.
pub(crate) fn kill_descendants(root: Pid) -> Vec<Pid> {
    let killed = descendants(root).into_iter().map(|process| (process.pid, process.signal(Signal::KILL)));
    killed.filter(|(_, sent)| *sent == Err(Errno::PERM)).map(|(pid, _)| pid).collect()
}

/// Kills all descendants of this process until none is left.
///
/// The list from `/proc` can miss a process that has just started, so it is not the proof. The proof is
/// `wait`: this process is a subreaper, so it has a child as long as any descendant lives.
pub(crate) fn kill_all_descendants() {
    loop {
        kill_descendants(getpid());
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        std::thread::sleep(KILL_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_contain_any_bytes() {
        let stat = b"42 (a) b) (c\xff) S 7 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n";
        let process = parse(stat).unwrap();
        assert_eq!((process.pid.as_raw_pid(), process.parent, process.group), (42, 7, 40));
        assert_eq!(process.started, 12345);
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn a_signal_reaches_the_process_that_was_found_and_no_newer_one_with_its_pid() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = descendants(getpid());
        let process = *found.iter().find(|process| process.pid.as_raw_pid() == pid).unwrap();
        let newer = Process { started: process.started + 1, ..process };
        assert_eq!(newer.signal(Signal::KILL), Err(Errno::SRCH), "a newer process has the pid");
        process.signal(Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().code(), None);
    }
}
