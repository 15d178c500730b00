//! Who is below a process, and ending them.

use std::{fs, time::Duration};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, wait},
};

/// A process, as `/proc` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    parent: i32,
    pub(crate) group: i32,
    /// With the pid it names a process for good: pids are used again.
    started: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Process> {
        parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Sends it a signal, and to nobody else: not to one that has got its pid since.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let handle = pidfd_open(self.pid, PidfdFlags::empty())?;
        match Process::read(self.pid.as_raw_pid()) {
            Some(now) if now.started == self.started => pidfd_send_signal(handle, signal),
            _ => Err(Errno::SRCH),
        }
    }
}

/// `pid (name) state parent group …`, where the name may hold anything, and the start is the 22nd.
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

/// Everyone below this process. What is started meanwhile may be missed: look again.
pub(crate) fn below(root: Pid) -> Vec<Process> {
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

/// Kills everything below this process; returns those that it may not touch.
pub(crate) fn kill_below(root: Pid) -> Vec<Pid> {
    let killed = below(root).into_iter().map(|process| (process.pid, process.signal(Signal::KILL)));
    killed.filter(|(_, sent)| *sent == Err(Errno::PERM)).map(|(pid, _)| pid).collect()
}

/// Kills everything below this process until there is nothing left. The kernel says so, not a list: this process is
/// a subreaper, so as long as anything below it lives, it has a child.
pub(crate) fn slay() {
    loop {
        kill_below(getpid());
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = b"42 (a) b) (c\xff) S 7 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n";
        let process = parse(stat).unwrap();
        assert_eq!((process.pid.as_raw_pid(), process.parent, process.group), (42, 7, 40));
        assert_eq!(process.started, 12345);
        assert_eq!(parse(b"nonsense"), None);
    }

    #[test]
    fn children_are_found_and_only_they_are_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = below(getpid());
        let process = *found.iter().find(|process| process.pid.as_raw_pid() == pid).unwrap();
        let another = Process { started: process.started + 1, ..process };
        assert_eq!(another.signal(Signal::KILL), Err(Errno::SRCH), "its pid was used again");
        process.signal(Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap().code(), None);
    }
}
