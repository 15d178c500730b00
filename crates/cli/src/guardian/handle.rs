//! `leasehold`'s side: starts the guardian process and talks to it.

use std::{
    ffi::OsString,
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
use crate::settings;

/// A guardian process that was started before the lease is held, and waits for its [`StartMessage`] (ADR
/// 0042). If this is dropped, the guardian ends.
pub(crate) struct WaitingGuardian {
    /// `None` once a [`Guardian`] has taken it over.
    socket: Option<StdUnixStream>,
    process: EndingGuardian,
}

impl WaitingGuardian {
    /// Starts a guardian process for this command. The command starts with [`WaitingGuardian::start_command`].
    pub(crate) fn spawn(command: &[OsString]) -> io::Result<WaitingGuardian> {
        // If the guardian dies, its descendants become our children instead of init's.
        set_child_subreaper(Some(getpid()))?;
        // SEQPACKET keeps the borders of messages, and reports to either side that the other has closed.
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let ours = StdUnixStream::from(ours);
        ours.set_nonblocking(true)?;
        // Not the path of the program: an upgrade may have replaced the file there, and both sides must speak
        // the same version of the protocol.
        let mut process = Command::new("/proc/self/exe");
        for variable in settings::NOT_INHERITED {
            process.env_remove(variable);
        }
        let process = process
            .arg0("guardian")
            .arg(COMMAND)
            .args(command)
            .stdin(Stdio::from(theirs))
            .process_group(0) // a stop of our process group must not stop the guardian
            .spawn()?;
        Ok(WaitingGuardian { socket: Some(ours), process: EndingGuardian(process) })
    }

    /// Has the guardian start the command. `variables` are added to our own environment.
    pub(crate) fn start_command(
        mut self,
        start: StartMessage,
        variables: &[(&str, OsString)],
    ) -> io::Result<Guardian> {
        let socket = self.socket.take().expect("only this function takes it, and it takes `self`");
        start.send(&socket, io::stdin().as_fd(), variables)?;
        Ok(Guardian { socket: UnixStream::from_std(socket)?, process: self.process })
    }
}

/// A guardian process that ends, or has ended. Dropping this waits for its end.
pub(crate) struct EndingGuardian(Child);

impl Drop for EndingGuardian {
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

/// A running guardian process, and the socket to it.
pub(crate) struct Guardian {
    socket: UnixStream,
    process: EndingGuardian,
}

impl Guardian {
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

    /// Has the guardian process end. Call it when the command has ended.
    pub(crate) fn quit(self) -> EndingGuardian {
        self.request(GuardianRequest::Quit);
        self.process
    }
}
