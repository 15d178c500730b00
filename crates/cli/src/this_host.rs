//! This host: its name, its processes, and the user who runs the program.

use std::env;

use leasehold::Holder;
use rustix::{
    io::Errno,
    process::{Pid, getuid, test_kill_process},
};

/// The name of this host, in the form that holders are stored with.
pub(crate) fn name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Holder::new(&name, 0, "").host
}

/// The user who gives an order: under sudo, the user who called sudo.
pub(crate) fn user() -> String {
    let typed = ["SUDO_USER", "USER", "LOGNAME"];
    let named = typed.into_iter().find_map(|name| env::var(name).ok().filter(|name| !name.is_empty()));
    // Without these variables, as in a cron job or a unit of systemd, the user database knows the name.
    let listed = || nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
    named.or_else(listed).unwrap_or_else(|| format!("uid-{}", getuid().as_raw()))
}

/// Finds holders of this host whose process has ended.
#[derive(Debug)]
pub(crate) struct ProcessTable {
    host: String,
    is_alive: fn(u32) -> bool,
}

impl ProcessTable {
    pub(crate) fn of_this_host() -> ProcessTable {
        ProcessTable { host: name(), is_alive }
    }

    #[cfg(test)]
    pub(crate) fn of(host: &str, is_alive: fn(u32) -> bool) -> ProcessTable {
        ProcessTable { host: host.to_owned(), is_alive }
    }

    /// Whether the process of this holder was on this host and has ended. Processes of other hosts cannot be
    /// checked: they are not known to be gone.
    pub(crate) fn is_gone(&self, holder: &Holder) -> bool {
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
}
