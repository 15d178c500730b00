//! A file that is there while the command runs and the lease is held.

use std::{fs, io, path::PathBuf};

use leasehold::Resource;

/// Removed when it is dropped. Only a process that is killed leaves it behind; the next one removes it.
pub(super) struct Ready(Option<PathBuf>);

impl Ready {
    pub(super) fn new(path: Option<PathBuf>) -> Ready {
        let ready = Ready(path);
        ready.end();
        ready
    }

    /// The command runs.
    pub(super) fn begin(&self, resource: &Resource, token: &str) -> io::Result<()> {
        let text = format!("{resource} {token}\n");
        self.0.as_ref().map_or(Ok(()), |path| fs::write(path, text))
    }

    /// The lease is over, or the command is.
    pub(super) fn end(&self) {
        // It may not have been there.
        self.0.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.end();
    }
}
