//! This host: its name, its processes, and the user who runs the program.

use std::env;

pub(crate) use leasehold_support::processes::{ProcessTable, host_name as name};
use rustix::process::getuid;

/// The user who gives an order: under sudo, the user who called sudo.
pub(crate) fn user() -> String {
    let typed = ["SUDO_USER", "USER", "LOGNAME"];
    let named = typed.into_iter().find_map(|name| env::var(name).ok().filter(|name| !name.is_empty()));
    // Without these variables, as in a cron job or a unit of systemd, the user database knows the name.
    let listed = || nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.name);
    named.or_else(listed).unwrap_or_else(|| format!("uid-{}", getuid().as_raw()))
}
