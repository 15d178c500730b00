//! What the host says of itself: which boot this is, how its clock is shifted, and what file system this is.

use std::path::Path;

use leasehold_core::{Error, ErrorKind, Result};

/// Which boot of the host's kernel this is.
pub(crate) fn boot_id() -> Result<String> {
    read_boot_id()
        .map(|id| id.trim().to_owned())
        .filter(|id| !id.is_empty())
        .ok_or_else(|| unsupported("the host does not tell its boot id, so leases could outlive a reboot"))
}

#[cfg(target_os = "linux")]
fn read_boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

#[cfg(not(target_os = "linux"))]
fn read_boot_id() -> Option<String> {
    let output = std::process::Command::new("sysctl").args(["-n", "kern.bootsessionuuid"]).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).ok()).flatten()
}

/// How far this process's boot clock is ahead of the host's, in nanoseconds: a time namespace may shift it. Taking
/// it off makes the times of all containers of a host comparable.
pub(crate) fn clock_shift() -> Result<i64> {
    let link = |name| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let Ok(offsets) = std::fs::read_to_string("/proc/self/timens_offsets") else { return Ok(0) };
    // The offsets that can be read are those of the children to come.
    if link("time") != link("time_for_children") {
        return Err(unsupported(
            "this process has left its time namespace for its children: its clock is unknown",
        ));
    }
    parse_shift(&offsets)
        .ok_or_else(|| unsupported("/proc/self/timens_offsets cannot be read: the clock is unknown"))
}

fn parse_shift(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find(|line| line.starts_with("boottime"))?;
    let mut numbers = line.split_whitespace().skip(1).map(|number| number.parse::<i64>().ok());
    let (seconds, nanos) = (numbers.next()??, numbers.next()??);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

fn unsupported(message: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

/// Refuses file systems that other hosts may share, or that may not share memory between processes.
pub(crate) fn check_file_system(directory: &Path) -> Result<()> {
    match foreign_file_system(directory) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: a {name} file system cannot carry locks for SQLite: use a local disk, or a server backend for \
                 many hosts (file_system=any if you know that one host alone uses it)",
                directory.display()
            ),
        )),
    }
}

#[cfg(target_os = "linux")]
fn foreign_file_system(directory: &Path) -> Option<&'static str> {
    // One that cannot be asked will answer for itself when the file is opened.
    let magic = rustix::fs::statfs(directory).ok()?.f_type;
    foreign(u32::try_from(magic & 0xffff_ffff).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn foreign_file_system(_: &Path) -> Option<&'static str> {
    None
}

/// By the numbers of statfs(2). FUSE is among them because it cannot be told whether sshfs or a local disk is behind
/// it; virtiofs shows itself as FUSE, too.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn foreign(magic: u32) -> Option<&'static str> {
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
    fn file_systems_that_leave_the_host_are_refused() {
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
            assert_eq!(foreign(magic).is_none(), local, "{magic:#x}");
        }
        assert!(check_file_system(Path::new("/")).is_ok());
    }

    #[test]
    fn a_time_namespace_shifts_the_clock() {
        assert_eq!(parse_shift("monotonic 0 0\nboottime 0 0\n"), Some(0));
        assert_eq!(parse_shift("monotonic  5 0\nboottime  -86400  250\n"), Some(-86_399_999_999_750));
        assert_eq!(parse_shift("boottime x 0"), None);
        assert_eq!(parse_shift(""), None);
    }

    #[test]
    fn this_host_tells_its_boot() {
        assert!(!boot_id().unwrap().contains('\n'));
        assert!(clock_shift().is_ok());
    }
}
