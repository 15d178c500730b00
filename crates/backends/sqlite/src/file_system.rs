//! Which file systems are refused, and which file is at a path.

use std::{
    fs::{self, FileType},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

use leasehold_core::{Error, ErrorKind, Result};

/// Identifies a file whatever its name: another file at the same path has another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The identity of the file that is at this path now.
    pub(crate) fn of(path: &Path) -> io::Result<FileIdentity> {
        // By the path, not by an opened file: closing a second descriptor of the database would drop the
        // POSIX locks that SQLite holds on it in this process.
        let metadata = fs::metadata(path)?;
        Ok(FileIdentity { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// What is at a path, if it is not a file.
pub(crate) fn other_than_file(found: FileType) -> Option<&'static str> {
    Some(match found {
        _ if found.is_file() => return None,
        _ if found.is_dir() => "a directory",
        _ if found.is_fifo() => "a FIFO (named pipe)",
        _ if found.is_socket() => "a socket",
        _ if found.is_char_device() || found.is_block_device() => "a device",
        _ => "something else",
    })
}

/// Refuses file systems that other hosts may share, and those on which processes may not be able to share
/// memory.
pub(crate) fn check(directory: &Path) -> Result<()> {
    match shared_file_system(directory) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: SQLite's locks do not work on a {name} file system: use a local disk, or a server backend for many \
                 hosts (or set file_system=any if you know that only one host uses the file)",
                directory.display()
            ),
        )),
    }
}

#[cfg(target_os = "linux")]
fn shared_file_system(directory: &Path) -> Option<&'static str> {
    // If this fails, opening the file fails too, and gives the better error.
    let magic = rustix::fs::statfs(directory).ok()?.f_type;
    shared_name(u32::try_from(magic & 0xffff_ffff).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn shared_file_system(_: &Path) -> Option<&'static str> {
    None
}

/// The name of a shared file system, by the magic number of statfs(2).
///
/// FUSE is among them, because the number does not tell whether sshfs or a local disk is behind it. virtiofs
/// has the number of FUSE, too.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn shared_name(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x0102_1997 => "9p",
        0x6573_5546 => "FUSE or virtiofs",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x564c => "NCP",
        0x786f_4256 => "VirtualBox shared",
        0xbacb_acbc => "VMware shared",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_other_hosts_may_share_are_refused() {
        for (magic, local) in [
            (0xef53, true),       // ext4
            (0x5846_5342, true),  // XFS
            (0x9123_683e, true),  // Btrfs
            (0x0102_1994, true),  // tmpfs
            (0x794c_7630, true),  // overlayfs
            (0x2fc1_2fc1, true),  // ZFS
            (0x6969, false),      // NFS
            (0xff53_4d42, false), // CIFS
            (0x0102_1997, false), // 9p
            (0x6573_5546, false), // FUSE
        ] {
            assert_eq!(shared_name(magic).is_none(), local, "{magic:#x}");
        }
        assert!(check(Path::new("/")).is_ok());
    }
}
