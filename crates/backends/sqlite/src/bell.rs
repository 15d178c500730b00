//! The doorbell: how processes wake each other.
//!
//! A file beside the database. To ring is to open it for writing and close it again: that changes nothing on the
//! disk, and the kernel tells everyone who watches the file. Whom a ring is for stands in the table `ring`.
//!
//! The same file says who is there: everyone who has the database open holds a shared lock on it.

use std::{
    fs::{File, Metadata, OpenOptions, Permissions},
    io::{self, PipeReader, PipeWriter, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
};

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
    #[cfg(target_os = "linux")]
    watch: Option<watch::Watch>,
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
        let ear = Ear {
            #[cfg(target_os = "linux")]
            watch: watch::Watch::new().ok(),
            path,
            wake,
        };
        Ok((ear, Caller(call)))
    }

    /// Hears of rings from now on, also if the file was made anew since.
    pub(crate) fn prick_up(&mut self) {
        #[cfg(target_os = "linux")]
        if self.watch.as_ref().is_some_and(|watch| watch.follow(&self.path).is_err()) {
            self.watch = None;
        }
    }

    /// Waits for a ring, a call, or until it is time to look anyway.
    pub(crate) fn listen(&mut self) {
        self.wait(Some(self.look_every()));
        self.prick_up();
    }

    /// Waits for a call alone.
    pub(crate) fn sleep(&mut self) {
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        self.drain();
    }

    #[cfg(target_os = "linux")]
    fn wait(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        if let Some(watch) = &self.watch {
            fds.push(PollFd::new(watch.fd(), PollFlags::IN));
        }
        let _ = poll(&mut fds, timeout.as_ref());
        self.drain();
    }

    #[cfg(not(target_os = "linux"))]
    fn wait(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
        let _ = poll(&mut fds, timeout.as_ref());
        self.drain();
    }

    fn drain(&mut self) {
        let mut buffer = [0; 64];
        while matches!(io::Read::read(&mut self.wake, &mut buffer), Ok(64)) {}
        #[cfg(target_os = "linux")]
        if let Some(watch) = &self.watch {
            watch.drain();
        }
    }

    /// Not every process at the same moment.
    fn look_every(&self) -> Duration {
        #[cfg(target_os = "linux")]
        let deaf = self.watch.is_none();
        #[cfg(not(target_os = "linux"))]
        let deaf = true;
        let every = if deaf { LOOK_EVERY_DEAF } else { LOOK_EVERY };
        every + every * (std::process::id() % 16) / 64
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
