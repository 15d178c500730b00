//! The doorbell: how processes wake each other.
//!
//! A file beside the database. To ring is to open it for writing and close it again: that changes nothing on the
//! disk, and the kernel tells everyone who watches the file. Whom a ring is for stands in the table `ring`.
//!
//! The same file says who is there: everyone who has the database open holds a shared lock on it.

use std::{
    fs::{File, Metadata, OpenOptions, Permissions},
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
};

use self::watch::Watch;

/// How long to wait for a ring before looking anyway: one may be lost, and nobody should notice.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same where the kernel cannot tell us of rings.
const LOOK_EVERY_DEAF: Duration = Duration::from_millis(25);

/// Rings, so that waiters in other processes look. Rings that nobody hears cost nothing; one that cannot be rung is
/// made up for by those who look anyway.
pub(crate) fn ring(path: &Path) {
    let _ = OpenOptions::new().write(true).open(path);
}

/// That this process is there. The lock ends with it, however it ends.
#[derive(Debug)]
pub(crate) struct Presence {
    file: File,
}

impl Presence {
    /// Opens the file, and makes it with the permissions of the database if need be.
    pub(crate) fn open(path: &Path, mode: u32) -> io::Result<Presence> {
        let file = match OpenOptions::new().read(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
                match made {
                    Ok(made) => made.set_permissions(Permissions::from_mode(mode))?,
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                }
                OpenOptions::new().read(true).open(path)?
            }
            opened => opened?,
        };
        Ok(Presence { file })
    }

    /// Whether nobody else is there. If so nobody else can come until [`Presence::join`].
    pub(crate) fn is_alone(&self) -> io::Result<bool> {
        self.lock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Is there like the others; false while someone wants to be alone.
    pub(crate) fn join(&self) -> io::Result<bool> {
        self.lock(FlockOperation::NonBlockingLockShared)
    }

    /// The database was replaced, and the doorbell goes with it: those who have not noticed yet must not keep us from
    /// being alone with the new one. Somebody else may have seen to it already.
    pub(crate) fn abandon(self, path: &Path) {
        let same = |here: Metadata, there: Metadata| (here.dev(), here.ino()) == (there.dev(), there.ino());
        if self.file.metadata().ok().zip(path.metadata().ok()).is_some_and(|(here, there)| same(here, there))
        {
            let _ = std::fs::remove_file(path);
        }
    }

    fn lock(&self, operation: FlockOperation) -> io::Result<bool> {
        match flock(&self.file, operation) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Listens for rings.
#[derive(Debug)]
pub(crate) struct Ear {
    path: PathBuf,
    wake: PipeReader,
    /// None where the kernel cannot tell us.
    watch: Option<Watch>,
    /// Nobody tells us now: we look more often.
    deaf: bool,
}

/// Calls the thread that listens.
#[derive(Debug)]
pub(crate) struct Caller(PipeWriter);

impl Caller {
    pub(crate) fn call(&self) {
        // A full pipe has called already.
        let _ = (&self.0).write(&[0]);
    }
}

impl Ear {
    pub(crate) fn new(path: PathBuf) -> io::Result<(Ear, Caller)> {
        let (wake, call) = io::pipe()?;
        rustix::io::ioctl_fionbio(&wake, true)?;
        rustix::io::ioctl_fionbio(&call, true)?;
        Ok((Ear { path, wake, watch: Watch::new().ok(), deaf: true }, Caller(call)))
    }

    /// Hears of rings from now on, also if the file was made anew since.
    pub(crate) fn prick_up(&mut self) {
        self.deaf = self.watch.as_ref().is_none_or(|watch| watch.follow(&self.path).is_err());
    }

    /// Waits for a ring, a call, or until it is time to look anyway.
    pub(crate) fn listen(&mut self) {
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(self.watch.as_ref().map(|watch| PollFd::new(watch.fd(), PollFlags::IN)));
        let every = if self.deaf { LOOK_EVERY_DEAF } else { LOOK_EVERY };
        let every = every + every * (std::process::id() % 16) / 64; // not every process at the same moment
        let _ = poll(&mut fds, Timespec::try_from(every).ok().as_ref());
        self.drain();
        self.prick_up();
    }

    /// Waits for a call alone.
    pub(crate) fn sleep(&mut self) {
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        self.drain();
    }

    fn drain(&mut self) {
        let mut buffer = [0; 64];
        while matches!(self.wake.read(&mut buffer), Ok(64)) {}
        self.watch.iter().for_each(Watch::drain);
    }
}

#[cfg(target_os = "linux")]
mod watch {
    use std::{io, mem::MaybeUninit, path::Path};

    use rustix::{
        fd::OwnedFd,
        fs::inotify::{self, CreateFlags, WatchFlags},
    };

    /// The kernel's own file watch.
    #[derive(Debug)]
    pub(super) struct Watch(OwnedFd);

    impl Watch {
        pub(super) fn new() -> io::Result<Watch> {
            Ok(Watch(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?))
        }

        /// Watches whatever file is at the path now. Doing so again changes nothing.
        pub(super) fn follow(&self, path: &Path) -> io::Result<()> {
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
mod watch {
    use std::{io, path::Path};

    use rustix::fd::OwnedFd;

    /// There is none here.
    #[derive(Debug)]
    pub(super) struct Watch(OwnedFd);

    impl Watch {
        pub(super) fn new() -> io::Result<Watch> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn follow(&self, _: &Path) -> io::Result<()> {
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

    #[test]
    fn a_ring_is_heard_also_after_the_file_was_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bell");
        drop(Presence::open(&path, 0o600).unwrap());
        let (mut ear, _caller) = Ear::new(path.clone()).unwrap();
        ear.prick_up();
        assert!(!ear.deaf);
        for _ in 0..2 {
            ring(&path);
            let mut fds = [PollFd::new(ear.watch.as_ref().unwrap().fd(), PollFlags::IN)];
            let at_once = Timespec::default();
            assert_eq!(poll(&mut fds, Some(&at_once)).unwrap(), 1, "it rang");
            std::fs::remove_file(&path).unwrap();
            drop(Presence::open(&path, 0o600).unwrap());
            ear.listen(); // hears that the old one is gone, and follows the new one
        }
    }

    #[test]
    fn a_deaf_one_looks_more_often() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bell");
        let (mut ear, _caller) = Ear::new(path.clone()).unwrap();
        ear.prick_up();
        assert!(ear.deaf, "there is nothing to watch");
        drop(Presence::open(&path, 0o600).unwrap());
        ear.listen();
        assert!(!ear.deaf, "now there is");
    }

    #[test]
    fn those_who_are_there_keep_others_from_being_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bell");
        let open = || Presence::open(&path, 0o600).unwrap();
        let (first, second) = (open(), open());
        assert!(first.is_alone().unwrap());
        assert!(!second.join().unwrap(), "the first wants to be alone");
        assert!(first.join().unwrap() && second.join().unwrap());
        assert!(!second.is_alone().unwrap());
        drop(first);
        assert!(second.is_alone().unwrap());
        second.abandon(&path);
        assert!(!path.exists());
        let other = open();
        open().abandon(&path);
        assert!(!path.exists(), "it was the same file");
        let newer = open();
        other.abandon(&path);
        assert!(path.exists(), "somebody has seen to it already");
        drop(newer);
    }
}
