//! The lock that says that a client lives: one byte of the change file.
//!
//! 1. A client that opens the database locks one byte of the change file, at a random offset. The kernel releases
//!    the lock when the client closes the file, and when its process ends, however it ends.
//! 2. The place of a queued claim names the byte (`place.client_lock`).
//! 3. A verb that calls a queued claim looks whether that byte is locked. If it is not, nobody will answer, and
//!    the claim is silent at once (`silence.rs`).
//!
//! The locks are *open file description locks*. They belong to the opened file and not to the process, so several
//! clients of a process have a lock each. They need no file of their own, so a killed process leaves nothing
//! behind. `flock` cannot lock a part of a file, and the locks of POSIX end when any descriptor of the file is
//! closed. The locks are shared ones, because the change file is opened for reading, and because two clients that
//! draw the same number do not disturb each other then.
//!
//! The lock is only a hint that saves a second. Where it is missing, or stays although the client is dead, the
//! client has the whole second to answer: on systems other than 64-bit Linux; with `file_system=any`, because locks of
//! network file systems may say anything; and while a child process lives that was forked and did not call `exec`
//! (`exec` closes the file).

/// No client lock.
pub(crate) const NO_LOCK: i64 = 0;

/// The byte for this random number. Offsets of files are positive, and 0 means that there is no lock.
pub(crate) fn byte_for(random: u64) -> i64 {
    i64::try_from(random >> 2).unwrap_or_default().max(1)
}

pub(crate) use self::system::{is_free, lock};

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod system {
    use std::{fs::File, io};

    use nix::{
        fcntl::{FcntlArg, fcntl},
        libc,
    };

    /// Locks this byte, until the file is closed.
    pub(crate) fn lock(file: &File, byte: i64) -> io::Result<()> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&request(libc::F_RDLCK, byte)))?;
        Ok(())
    }

    /// Whether no other opened file has a lock on this byte. The locks of `file` itself do not count.
    pub(crate) fn is_free(file: &File, byte: i64) -> io::Result<bool> {
        let mut lock = request(libc::F_WRLCK, byte);
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(i32::from(lock.l_type) == libc::F_UNLCK)
    }

    /// A request about one byte.
    fn request(kind: i32, byte: i64) -> libc::flock {
        let short = |number: i32| libc::c_short::try_from(number).unwrap_or_default();
        libc::flock {
            l_type: short(kind),
            l_whence: short(libc::SEEK_SET),
            l_start: byte,
            l_len: 1,
            l_pid: 0,
        }
    }
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
mod system {
    use std::{fs::File, io};

    pub(crate) fn lock(_: &File, _: i64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_free(_: &File, _: i64) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn every_number_gives_a_byte_of_a_file() {
        for random in [0, 1, 7, u64::MAX, 1 << 63] {
            assert!((1..i64::MAX / 2 + 2).contains(&byte_for(random)), "{random}");
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    fn a_lock_is_seen_by_other_clients_until_its_file_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db-bell");
        File::create(&path).unwrap();
        let open = || File::open(&path).unwrap();
        let (mine, other, third) = (open(), open(), open());
        let (byte, far) = (byte_for(u64::MAX), byte_for(9));
        lock(&mine, byte).unwrap();
        lock(&third, byte).unwrap();
        assert!(!is_free(&other, byte).unwrap());
        assert!(is_free(&other, far).unwrap() && is_free(&other, byte - 1).unwrap());
        drop(open()); // unlike a lock of POSIX, this one does not end with any descriptor of the process
        drop(third);
        assert!(!is_free(&other, byte).unwrap());
        drop(mine);
        assert!(is_free(&other, byte).unwrap());
    }
}
