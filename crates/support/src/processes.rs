//! The processes of this host: whether that of a holder has ended.

use leasehold_core::Holder;
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};

/// The name of this host, in the form that holders are stored with.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Holder::new(&name, 0, "").host
}

/// Finds holders of this host whose process has ended.
#[derive(Clone, Debug)]
pub struct ProcessTable {
    host: String,
    is_alive: fn(u32) -> bool,
}

impl ProcessTable {
    /// The processes of this host.
    pub fn of_this_host() -> ProcessTable {
        ProcessTable { host: host_name(), is_alive }
    }

    /// The processes of a host of this name, for tests.
    pub fn of(host: &str, is_alive: fn(u32) -> bool) -> ProcessTable {
        ProcessTable { host: host.to_owned(), is_alive }
    }

    /// Whether the process of this holder was on this host and has ended. Processes of other hosts cannot be
    /// checked: they are not known to be gone. ADR 0073.
    pub fn is_gone(&self, holder: &Holder) -> bool {
        holder.host == self.host && holder.pid != 0 && !(self.is_alive)(holder.pid)
    }
}

/// Whether there is such a process. A process that we may not signal exists too.
fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_this_host_are_known_to_be_gone() {
        let processes = ProcessTable::of("here", |pid| pid == 1);
        assert!(processes.is_gone(&Holder::new("here", 2, "")));
        assert!(!processes.is_gone(&Holder::new("here", 1, "")), "it is there");
        assert!(!processes.is_gone(&Holder::new("here", 0, "")), "its process is not known");
        assert!(!processes.is_gone(&Holder::new("elsewhere", 2, "")));
    }

    #[test]
    fn this_process_is_alive() {
        let processes = ProcessTable::of_this_host();
        assert!(!processes.is_gone(&Holder::new(&host_name(), std::process::id(), "")));
    }
}
