//! Signals between processes that the database changed (ADR 0012).
//!
//! 1. The sender, [`ChangeSignal::send`], opens the change file for writing and closes it again. This writes
//!    nothing to the disk, and works on a full one.
//! 2. The kernel tells every process that watches the file with `inotify`: [`ChangeReceiver`].
//! 3. The receiver reads the table `ring`, which says which waiters to wake (`listener.rs`).
//!
//! A signal can be lost (a limit on watches, a container with another kernel). So the receiver also looks
//! once a second, and every 25 ms where there is no `inotify`.

use std::{
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
};

use self::file_watch::FileWatch;
use crate::change_file::open_at_once;

/// The longest wait for a signal, in case one was lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The same where the kernel does not report signals.
const POLL_INTERVAL_UNWATCHED: Duration = Duration::from_millis(25);

/// Tells other processes that the database changed.
pub(crate) struct ChangeSignal;

impl ChangeSignal {
    /// Sends the signal. It is a hint: if it cannot be sent, the receivers look a little later on their own.
    pub(crate) fn send(change_file: &Path) {
        let _ = open_at_once(change_file, OFlags::WRONLY);
    }
}

/// Receives the signals of other processes, in a thread of its own.
#[derive(Debug)]
pub(crate) struct ChangeReceiver {
    path: PathBuf,
    wake_pipe: PipeReader,
    /// None where the kernel has no file watch.
    watch: Option<FileWatch>,
    /// Whether the kernel reports signals now. If not, the receiver looks more often.
    is_watching: bool,
}

/// Wakes the thread that waits in a [`ChangeReceiver`].
#[derive(Debug)]
pub(crate) struct ReceiverWaker(PipeWriter);

impl ReceiverWaker {
    pub(crate) fn wake(&self) {
        // If the pipe is full, the thread has been woken already.
        let _ = (&self.0).write(&[0]);
    }
}

impl ChangeReceiver {
    pub(crate) fn new(change_file: PathBuf) -> io::Result<(ChangeReceiver, ReceiverWaker)> {
        let (wake_pipe, writer) = io::pipe()?;
        rustix::io::ioctl_fionbio(&wake_pipe, true)?;
        rustix::io::ioctl_fionbio(&writer, true)?;
        let watch = FileWatch::new().ok();
        let receiver = ChangeReceiver { path: change_file, wake_pipe, watch, is_watching: false };
        Ok((receiver, ReceiverWaker(writer)))
    }

    /// Watches the file that is at the path now. It may be another one than before.
    pub(crate) fn watch_file(&mut self) {
        self.is_watching = self.watch.as_ref().is_some_and(|watch| watch.add(&self.path).is_ok());
    }

    /// Waits for a signal, for the waker, or until it is time to look anyway.
    pub(crate) fn wait_for_signal(&mut self) {
        let mut fds = vec![PollFd::new(&self.wake_pipe, PollFlags::IN)];
        fds.extend(self.watch.as_ref().map(|watch| PollFd::new(watch.fd(), PollFlags::IN)));
        let interval = if self.is_watching { POLL_INTERVAL } else { POLL_INTERVAL_UNWATCHED };
        // Up to a quarter longer, so that not all processes look at the same moment.
        let interval = interval + interval * (std::process::id() % 16) / 64;
        let _ = poll(&mut fds, Timespec::try_from(interval).ok().as_ref());
        self.drain();
        self.watch_file();
    }

    /// Waits for the waker alone.
    pub(crate) fn wait_for_waker(&mut self) {
        let mut fds = [PollFd::new(&self.wake_pipe, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        self.drain();
    }

    fn drain(&mut self) {
        let mut buffer = [0; 64];
        while matches!(self.wake_pipe.read(&mut buffer), Ok(64)) {}
        self.watch.iter().for_each(FileWatch::drain);
    }
}

#[cfg(target_os = "linux")]
mod file_watch {
    use std::{io, mem::MaybeUninit, path::Path};

    use rustix::{
        fd::OwnedFd,
        fs::inotify::{self, CreateFlags, WatchFlags},
    };

    /// The kernel's file watch.
    #[derive(Debug)]
    pub(super) struct FileWatch(OwnedFd);

    impl FileWatch {
        pub(super) fn new() -> io::Result<FileWatch> {
            Ok(FileWatch(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?))
        }

        /// Watches the file that is at the path now. To add the same file again changes nothing.
        pub(super) fn add(&self, path: &Path) -> io::Result<()> {
            inotify::add_watch(&self.0, path, WatchFlags::CLOSE_WRITE | WatchFlags::DELETE_SELF)?;
            Ok(())
        }

        pub(super) fn fd(&self) -> &OwnedFd {
            &self.0
        }

        pub(super) fn drain(&self) {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = inotify::Reader::new(&self.0, &mut buffer);
            while reader.next().is_ok() {}
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod file_watch {
    use std::{io, path::Path};

    use rustix::fd::OwnedFd;

    /// There is no file watch on this system: `new` fails.
    #[derive(Debug)]
    pub(super) struct FileWatch(OwnedFd);

    impl FileWatch {
        pub(super) fn new() -> io::Result<FileWatch> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn add(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }

        pub(super) fn fd(&self) -> &OwnedFd {
            &self.0
        }

        pub(super) fn drain(&self) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change_file::ChangeFile;

    #[test]
    fn a_signal_arrives_also_after_the_file_was_created_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db-bell");
        drop(ChangeFile::open(&path, 0o600).unwrap());
        let (mut receiver, _waker) = ChangeReceiver::new(path.clone()).unwrap();
        receiver.watch_file();
        assert!(receiver.is_watching);
        for _ in 0..2 {
            ChangeSignal::send(&path);
            let mut fds = [PollFd::new(receiver.watch.as_ref().unwrap().fd(), PollFlags::IN)];
            let at_once = Timespec::default();
            assert_eq!(poll(&mut fds, Some(&at_once)).unwrap(), 1, "the signal arrived");
            std::fs::remove_file(&path).unwrap();
            drop(ChangeFile::open(&path, 0o600).unwrap());
            receiver.wait_for_signal(); // the old file is gone, so it watches the new one
        }
    }

    #[test]
    fn a_receiver_without_a_file_to_watch_looks_more_often() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db-bell");
        let (mut receiver, _waker) = ChangeReceiver::new(path.clone()).unwrap();
        receiver.watch_file();
        assert!(!receiver.is_watching, "there is no file to watch");
        drop(ChangeFile::open(&path, 0o600).unwrap());
        receiver.wait_for_signal();
        assert!(receiver.is_watching, "now there is one");
    }
}
