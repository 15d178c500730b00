//! `--ready-file`: a file that exists while the command runs and the lease is held.
//!
//! Its first lines name what is held, its last line the process that wrote it. By that line a later run knows that it may replace
//! the file if the process was killed. A file without such a line belongs to someone else: it is never changed or removed.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use crate::{exit::Failure, held_leases::HeldLeases, process_id::ProcessId};

/// The last line starts with this. The process id and its start follow.
const SIGNATURE: &str = "leasehold process ";
/// A file of ours is never longer than this.
const LENGTH_MAX: u64 = 64 * 1024;

/// The file of `--ready-file`, if there is one. It is removed on drop.
pub(super) struct ReadyFile(Option<PathBuf>);

impl ReadyFile {
    /// Fails if there is a file of someone else in its place.
    pub(super) fn check(path: Option<&Path>) -> Result<(), Failure> {
        match path.map(|path| (path, Found::at(path))) {
            Some((path, Ok(Found::NotOurs))) => Err(not_ours(path)),
            Some((path, Err(error))) => Err(Failure::config(format!(
                "the file of --ready-file {} cannot be used: {error}",
                path.display()
            ))
            .hint("name another file")),
            _ => Ok(()),
        }
    }

    pub(super) fn new(path: Option<PathBuf>) -> ReadyFile {
        ReadyFile(path)
    }

    /// Writes the file: for each resource a line with its token, then the line that names this process. Replaces only a file
    /// that a run which has ended left behind.
    pub(super) fn create(&self, leases: &HeldLeases) -> io::Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        match Found::at(path)? {
            Found::Nothing => {}
            Found::LeftBehind | Found::OfThisProcess => fs::remove_file(path)?,
            Found::NotOurs => return Err(io::Error::other("the file exists and is not from leasehold")),
            Found::InUse(pid) => return Err(io::Error::other(format!("process {pid} uses the file"))),
        }
        let lines = leases.iter().map(|held| format!("{} {}\n", held.resource, held.lease.token()));
        let text = lines.collect::<String>() + &format!("{SIGNATURE}{}\n", ProcessId::own()?);
        // Never through a link, and never over a file that has appeared meanwhile.
        File::create_new(path)?.write_all(text.as_bytes())
    }

    /// Removes the file, because the lease or the command has ended. Only the file of this process.
    pub(super) fn remove(&self) {
        if let Some(path) = &self.0
            && matches!(Found::at(path), Ok(Found::OfThisProcess))
        {
            let _ = fs::remove_file(path); // it may have gone
        }
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn not_ours(path: &Path) -> Failure {
    let message = format!(
        "the file of --ready-file {} exists, and it is not from leasehold: it is left as it is",
        path.display()
    );
    Failure::config(message).hint("remove it, or name another file")
}

/// What stands in the place of the file.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A file of a run that has ended.
    LeftBehind,
    OfThisProcess,
    /// A file of another run.
    InUse(i32),
    NotOurs,
}

impl Found {
    fn at(path: &Path) -> io::Result<Found> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(error) => return Err(error),
            Ok(found) if !found.is_file() => return Ok(Found::NotOurs),
            Ok(_) => {}
        }
        let mut text = Vec::new();
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Found::NotOurs),
            file => file?.take(LENGTH_MAX).read_to_end(&mut text)?,
        };
        Ok(Found::by_text(&String::from_utf8_lossy(&text)))
    }

    fn by_text(text: &str) -> Found {
        let signed = text.lines().last().and_then(|line| ProcessId::read(line.strip_prefix(SIGNATURE)?));
        match signed {
            None => Found::NotOurs,
            Some(process) if ProcessId::own().is_ok_and(|own| own == process) => Found::OfThisProcess,
            Some(process) if process.is_alive() => Found::InUse(process.pid),
            Some(_) => Found::LeftBehind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_leasehold_signed_is_ours() {
        let own = ProcessId::own().unwrap();
        let signed = |process: ProcessId| Found::by_text(&format!("x/1 17\n{SIGNATURE}{process}\n"));
        assert_eq!(signed(own), Found::OfThisProcess);
        assert_eq!(signed(ProcessId { started: own.started + 1, ..own }), Found::LeftBehind);
        let init = ProcessId::of(1).unwrap();
        assert_eq!(signed(init), Found::InUse(1));
        for other in ["", "x/1 17\n", "leasehold process 7\n", "leasehold process 7 started at 8\nmore\n"] {
            assert_eq!(Found::by_text(other), Found::NotOurs, "{other:?}");
        }
    }
}
