//! Messages to the system log, of a process without a terminal.

use std::{os::unix::net::UnixDatagram, path::Path};

use crate::redact;

/// The socket of syslog and of the journal.
const SOCKET: &str = "/dev/log";
/// The facility `user` and the severity `warning`.
const PRIORITY: u32 = 8 + 4;

/// Sends a warning. Where there is no system log, it is dropped.
pub(crate) fn warn(text: &str) {
    let _ = send(Path::new(SOCKET), text);
}

fn send(socket: &Path, text: &str) -> std::io::Result<()> {
    let line = format!("<{PRIORITY}>leasehold[{}]: {}", std::process::id(), redact::redact(text));
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to(line.as_bytes(), socket).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_one_datagram_with_its_priority() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = UnixDatagram::bind(&path).unwrap();
        send(&path, "x/1: lost").unwrap();
        let mut bytes = [0; 100];
        let length = log.recv(&mut bytes).unwrap();
        let expected = format!("<12>leasehold[{}]: x/1: lost", std::process::id());
        assert_eq!(String::from_utf8_lossy(&bytes[..length]), expected);
        assert!(send(&directory.path().join("none"), "x").is_err());
    }
}
