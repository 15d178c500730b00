//! Files with secrets: the password of the store, and the key of `--sensitive`.
//!
//! As ssh does with its keys, a file that others can read is refused if the user can change that. Two cases
//! are let through, because `chmod 600` is not ours to do there: a file of another user (with a warning if
//! everyone can read it), and a file on a read-only mount, where Kubernetes and Docker put their secrets.

use std::{os::unix::fs::MetadataExt as _, path::Path};

use leasehold_support::password;
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::{exit::Failure, output::Output, redact};

/// Reads a secret. `what` names it in errors, `option` is the option that names the file.
pub(crate) fn read(path: &Path, what: &str, option: &str, output: Output) -> Result<String, Failure> {
    check_permissions(path, what, output)?;
    let secret = password::read_file(path).map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(String::new, |why| format!(": {why}"));
        Failure::config(format!("cannot read the {what} {}{why}", path.display()))
            .hint(format!("name another file with {option}"))
    })?;
    redact::register(&secret);
    Ok(secret)
}

/// Refuses a secret that others can read. A missing file is reported when it is read.
pub(crate) fn check_permissions(path: &Path, what: &str, output: Output) -> Result<(), Failure> {
    let Ok(file) = std::fs::metadata(path) else { return Ok(()) };
    let is_ours = file.uid() == rustix::process::geteuid().as_raw();
    let (mode, shown) = (file.mode() & 0o7777, path.display());
    if mode & 0o077 == 0 || !file.is_file() || is_read_only(path) {
        return Ok(()); // a pipe (`<(command)`) is not a file
    }
    if is_ours {
        let message = format!("the {what} {shown} can be read by other users: its mode is {mode:04o}");
        return Err(Failure::config(message).hint(format!("run chmod 600 {shown}")));
    }
    if mode & 0o007 != 0 {
        output.note(&format!(
            "the {what} {shown} can be read by every user (mode {mode:04o}): ask its owner to run chmod 640"
        ));
    }
    Ok(())
}

fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY))
}
