//! A process that a lease is kept for: noticing its end, and sending it signals.

use std::{io, os::fd::OwnedFd, sync::Arc, thread, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process},
};
use tokio::sync::watch;

use crate::process_id::ProcessId;

/// How often to look whether the process has ended, where the kernel has no pidfd.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A process that a lease is kept for.
pub(crate) struct KeptProcess {
    id: ProcessId,
    /// Names this process for good, and no later one with the same id. `None` on a kernel without pidfds.
    handle: Option<Arc<OwnedFd>>,
    has_ended: watch::Receiver<bool>,
}

impl KeptProcess {
    /// `None` if the process has ended.
    pub(crate) fn open(id: ProcessId) -> io::Result<Option<KeptProcess>> {
        let Some(pid) = Pid::from_raw(id.pid) else { return Ok(None) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Some(Arc::new(handle)),
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Ok(None),
            Err(_) => None,
        };
        // After the pidfd was opened: from here on it names the process with this start.
        if id.is_alive() { KeptProcess::watch(id, handle).map(Some) } else { Ok(None) }
    }

    /// Starts a thread that waits for the end of the process.
    fn watch(id: ProcessId, handle: Option<Arc<OwnedFd>>) -> io::Result<KeptProcess> {
        let (sender, has_ended) = watch::channel(false);
        let watched = handle.clone();
        thread::Builder::new().name("kept-process".to_owned()).spawn(move || {
            match watched {
                Some(handle) => wait_for(&handle),
                None => {
                    while id.is_alive() {
                        thread::sleep(LOOK_EVERY);
                    }
                }
            }
            sender.send_replace(true);
        })?;
        Ok(KeptProcess { id, handle, has_ended })
    }

    /// Whether we may send it signals.
    pub(crate) fn may_be_signalled(pid: i32) -> bool {
        Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::PERM))
    }

    /// Resolves when the process has ended.
    pub(crate) async fn ended(&self) {
        let _ = self.has_ended.clone().wait_for(|has_ended| *has_ended).await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.has_ended.borrow()
    }

    /// Sends it a signal. An error is ignored: the process may have ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = match (&self.handle, Pid::from_raw(self.id.pid)) {
            (Some(handle), _) => pidfd_send_signal(handle, signal),
            (None, Some(pid)) if self.id.is_alive() => kill_process(pid, signal),
            (None, _) => Ok(()),
        };
    }
}

/// Waits for the end of a process. A pidfd is readable as soon as its process has ended, also before its parent waits for it.
fn wait_for(handle: &OwnedFd) {
    while let Ok(0) | Err(Errno::INTR) = poll(&mut [PollFd::new(handle, PollFlags::IN)], None) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_process_that_was_meant_is_kept_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        let earlier = ProcessId { started: id.started - 1, ..id };
        assert!(KeptProcess::open(earlier).unwrap().is_none(), "another process has its id now");
        let kept = KeptProcess::open(id).unwrap().unwrap();
        let without_pidfd = KeptProcess::watch(id, None).unwrap();
        kept.signal(Signal::KILL);
        kept.ended().await; // its parent has not waited for it yet
        child.wait().unwrap();
        without_pidfd.ended().await;
        assert!(KeptProcess::open(id).unwrap().is_none());
    }
}
