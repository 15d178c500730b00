//! Tells one version of a file from another, so that files are read again when they have changed.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

/// How often files are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What tells one version of a file from another. A file that was replaced by renaming has another inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl FileState {
    /// `None` if there is no such file.
    pub(crate) fn of(path: &Path) -> Option<FileState> {
        let file = fs::metadata(path).ok()?;
        Some(FileState { inode: file.ino(), size: file.size(), changed: (file.mtime(), file.mtime_nsec()) })
    }
}
