//! `leasehold`'s end: starts the guardian, and talks with it.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::AsFd as _,
        unix::{net::UnixStream as Socket, process::CommandExt as _},
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
    wire::{Begin, Broken, News, Packet as _, Wish},
};

/// The guardian of a command, as `leasehold` sees it.
pub(crate) struct Guardian {
    link: UnixStream,
    process: Child,
}

impl Guardian {
    /// Starts a guardian, and has it start the command with this environment added to our own.
    pub(crate) fn start<'a>(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'a str, &'a OsStr)>,
        begin: Begin,
    ) -> io::Result<Guardian> {
        // If the guardian dies, what it watched comes to us.
        set_child_subreaper(Some(getpid()))?;
        // Packets, so that each is whole, on a connection, so that either side hears of the other's end.
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let here = Socket::from(here);
        here.set_nonblocking(true)?;
        // This very program, even if another one has been installed in its place meanwhile.
        let process = Command::new("/proc/self/exe")
            .arg0("guardian")
            .arg(COMMAND)
            .args(command)
            .envs(environment)
            .stdin(Stdio::from(there))
            .process_group(0) // what stops our group is not to stop the guardian
            .spawn()?;
        begin.send(&here, io::stdin().as_fd())?;
        Ok(Guardian { link: UnixStream::from_std(here)?, process })
    }

    /// What happens next; none if the guardian is gone.
    ///
    /// # Cancel safety
    /// Nothing is missed.
    pub(crate) async fn next(&self) -> Option<News> {
        loop {
            self.link.readable().await.ok()?;
            let heard = self.link.try_io(Interest::READABLE, || match News::receive(&self.link) {
                Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
                heard => Ok(heard),
            });
            match heard {
                Ok(Ok(news)) => return news,
                Ok(Err(Broken)) => return None,
                Err(_) => {}
            }
        }
    }

    /// Says what is wished. If the guardian is gone, [`Guardian::next`] says so.
    pub(crate) fn wish(&self, wish: Wish) {
        let _ = wish.send(&self.link);
    }

    /// The command is done: the guardian goes.
    pub(crate) fn dismiss(mut self) {
        self.wish(Wish::ReleaseRequest);
        drop(self.link);
        let _ = self.process.wait();
    }
}
