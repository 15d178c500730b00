//! The temporary folder of the demonstration.

use std::{fs, io, os::unix::fs::DirBuilderExt as _, path::PathBuf};

use leasehold::{Environment as _, System};

use crate::exit::Failure;

/// A folder that only this user can read, removed when this is dropped.
#[derive(Debug)]
pub(super) struct DemoFolder {
    path: PathBuf,
}

impl DemoFolder {
    pub(super) fn create() -> Result<DemoFolder, Failure> {
        let temporary = std::env::temp_dir();
        let path = temporary.join(format!("leasehold-demo-{:016x}", System::current().random()));
        // Fails if it exists: somebody else may have made it, to read what is in it.
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| {
            Failure::config(format!(
                "cannot create the folder {} of the demonstration: {error}",
                path.display()
            ))
            .hint("set TMPDIR to a folder that you can write to")
        })?;
        Ok(DemoFolder { path })
    }

    /// The file of the store.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join("leases.db")
    }

    /// Removes the folder. The writer of the store may add a file meanwhile, so it tries again.
    pub(super) fn remove(&self) {
        const TRIES: usize = 10;
        for _ in 0..TRIES {
            match fs::remove_dir_all(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!(%error, "the folder of the demonstration could not be removed");
                }
                _ => return,
            }
        }
    }
}

impl Drop for DemoFolder {
    fn drop(&mut self) {
        self.remove();
    }
}
