//! Checks that there is room for what the tests build.
//!
//! A disk that is full in the middle of a run shows as a linker that failed, or as a database that stopped.

use std::{fs, process::Command};

use crate::target_dir;

const GIB: u64 = 1 << 30;
/// What a whole run needs, measured from a fresh clone, and some room for the data of the test servers.
const NEEDED: u64 = 30 * GIB;

pub(crate) fn check() -> Result<(), String> {
    let folder = target_dir();
    fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    // What an earlier run has built is not built again.
    let built = bytes(Command::new("du").args(["--summarize", "--block-size=1"]).arg(&folder))?;
    let free = bytes(Command::new("df").args(["--output=avail", "--block-size=1"]).arg(&folder))?;
    judge(built, free).map_err(|why| format!("{}: {why}", folder.display()))
}

fn judge(built: u64, free: u64) -> Result<(), String> {
    let missing = NEEDED.saturating_sub(built);
    if free >= missing {
        return Ok(());
    }
    let gib = |bytes: u64| format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB);
    Err(format!(
        "the disk has {} free, and the tests need {}. Remove other build folders, or set CARGO_TARGET_DIR to a larger disk",
        gib(free),
        gib(missing)
    ))
}

/// The first number that the command prints.
fn bytes(command: &mut Command) -> Result<u64, String> {
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split_whitespace().find_map(|word| word.parse().ok());
    number.ok_or_else(|| format!("{command:?} printed no number: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_refused_before_the_build() {
        assert_eq!(judge(0, NEEDED), Ok(()));
        assert_eq!(judge(NEEDED - GIB, GIB), Ok(()), "most of it is built already");
        let why = judge(GIB, GIB + GIB / 2).expect_err("no room");
        assert!(why.contains("1.5 GiB free") && why.contains("need 29.0 GiB"), "{why}");
    }

    #[test]
    fn the_free_space_is_read_from_df() {
        let free = bytes(Command::new("df").args(["--output=avail", "--block-size=1", "."]));
        assert!(free.is_ok_and(|free| free > 0));
        assert!(bytes(&mut Command::new("true")).is_err(), "no number");
    }
}
