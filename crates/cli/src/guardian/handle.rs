//! `leasehold`'s side: starts the guardian process and talks to it.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::AsFd as _,
        unix::{net::UnixStream as StdUnixStream, process::CommandExt as _},
    },
    process::{Child, Command, Stdio},
};

use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{getpid, set_child_subreaper},
};
use tokio::{io::Interest, net::UnixStream};

use super::{
    COMMAND,
    protocol::{ConnectionBroken, GuardianEvent, GuardianRequest, Packet as _, StartMessage},
};

/// A running guardian process, and the socket to it.
pub(crate) struct Guardian {
    socket: UnixStream,
    process: Child,
}

impl Guardian {
    /// Starts a guardian, which starts the command. `environment` is added to our own environment.
    pub(crate) fn start<'a>(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'a str, &'a OsStr)>,
        start: StartMessage,
    ) -> io::Result<Guardian> {
        // If the guardian dies, its descendants become our children instead of init's.
        set_child_subreaper(Some(getpid()))?;
        // SEQPACKET keeps the borders of messages, and reports to either side that the other has closed.
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let ours = StdUnixStream::from(ours);
        ours.set_nonblocking(true)?;
        // Not the path of the program: an upgrade may have replaced the file there, and both sides must speak
        // the same version of the protocol.
        let process = Command::new("/proc/self/exe")
            .arg0("guardian")
            .arg(COMMAND)
            .args(command)
            .envs(environment)
            .stdin(Stdio::from(theirs))
            .process_group(0) // a stop of our process group must not stop the guardian
            .spawn()?;
        start.send(&ours, io::stdin().as_fd())?;
        Ok(Guardian { socket: UnixStream::from_std(ours)?, process })
    }

    /// The next event, or `None` if the guardian has ended.
    ///
    /// # Cancel safety
    /// No event is lost.
    pub(crate) async fn next(&self) -> Option<GuardianEvent> {
        loop {
            self.socket.readable().await.ok()?;
            let received =
                self.socket.try_io(Interest::READABLE, || match GuardianEvent::receive(&self.socket) {
                    Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
                    received => Ok(received),
                });
            match received {
                Ok(Ok(event)) => return event,
                Ok(Err(ConnectionBroken)) => return None,
                Err(_) => {} // not readable after all: wait again
            }
        }
    }

    /// Sends a request. An error is ignored: if the guardian has ended, [`Guardian::next`] returns `None`.
    pub(crate) fn request(&self, request: GuardianRequest) {
        let _ = request.send(&self.socket);
    }

    /// Ends the guardian process. Call it when the command has ended.
    pub(crate) fn quit(mut self) {
        self.request(GuardianRequest::Quit);
        drop(self.socket);
        let _ = self.process.wait();
    }
}
