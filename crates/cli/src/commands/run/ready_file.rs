//! `--ready-file`: a file that exists while the command runs and the lease is held.

use std::{fs, io, path::PathBuf};

use leasehold::Resource;

/// The file of `--ready-file`, if there is one. It is removed on drop. A process that is killed leaves it
/// behind; the next run removes it.
pub(super) struct ReadyFile(Option<PathBuf>);

impl ReadyFile {
    /// Removes a file that an earlier run left behind.
    pub(super) fn new(path: Option<PathBuf>) -> ReadyFile {
        let file = ReadyFile(path);
        file.remove();
        file
    }

    /// Writes the file: the resource and the token.
    pub(super) fn create(&self, resource: &Resource, token: &str) -> io::Result<()> {
        let text = format!("{resource} {token}\n");
        self.0.as_ref().map_or(Ok(()), |path| fs::write(path, text))
    }

    /// Removes the file, because the lease or the command has ended.
    pub(super) fn remove(&self) {
        // An error is ignored: the file may not exist.
        self.0.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        self.remove();
    }
}
