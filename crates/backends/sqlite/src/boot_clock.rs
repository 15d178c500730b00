//! The boot id of the host, and how far this process's boot clock is shifted (ADR 0010).

use leasehold_core::{Error, ErrorKind, Result};

/// The id of the current boot of the host.
pub(crate) fn boot_id() -> Result<String> {
    read_boot_id().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()).ok_or_else(|| {
        unsupported(
            "cannot read the boot id of this host (Linux: /proc/sys/kernel/random/boot_id, macOS: \
                 sysctl kern.bootsessionuuid): without it, a lease could outlive a reboot",
        )
    })
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

/// How far this process's boot clock is ahead of the host's, in nanoseconds. A time namespace (a container)
/// may shift it. Subtracting the shift makes the times of all containers of a host comparable.
pub(crate) fn clock_shift() -> Result<i64> {
    let link = |name| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let Ok(offsets) = std::fs::read_to_string("/proc/self/timens_offsets") else { return Ok(0) };
    // The file shows the offsets for future children of this process. They are its own only if the namespaces
    // are the same.
    if link("time") != link("time_for_children") {
        return Err(unsupported(
            "this process set up another time namespace for its children, so the offset of its own boot clock \
             cannot be read: start it inside that namespace",
        ));
    }
    parse_shift(&offsets).ok_or_else(|| {
        unsupported(
            "/proc/self/timens_offsets has no readable line 'boottime', so the offset of the boot clock is unknown",
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_namespace_shifts_the_clock() {
        assert_eq!(parse_shift("monotonic 0 0\nboottime 0 0\n"), Some(0));
        assert_eq!(parse_shift("monotonic  5 0\nboottime  -86400  250\n"), Some(-86_399_999_999_750));
        assert_eq!(parse_shift("boottime x 0"), None);
        assert_eq!(parse_shift(""), None);
    }

    #[test]
    fn the_boot_id_and_the_shift_of_this_host_can_be_read() {
        assert!(!boot_id().unwrap().contains('\n'));
        assert!(clock_shift().is_ok());
    }
}
