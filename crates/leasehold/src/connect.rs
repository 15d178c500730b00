//! From a URL to a client.

use std::sync::Arc;

use leasehold_core::{Backend, Error, ErrorKind, Result};

use crate::{client::Client, memory::Memory};

/// A client of the backend that the URL names.
///
/// | URL | backend |
/// |---|---|
/// | `memory:` | this process's memory: for tests, and for programs of one process |
///
/// # Errors
/// `Invalid` for a URL that names no backend; `Unsupported` for one that this build has not; whatever opening says.
pub async fn connect(url: &str) -> Result<Client> {
    Ok(Client::new(open(url).await?))
}

/// The backend that the URL names, for a [`Client::builder`].
///
/// # Errors
/// As [`connect`].
pub async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    let (scheme, _) = url.split_once(':').unwrap_or((url, ""));
    match scheme {
        "memory" => Ok(Arc::new(Memory::new())),
        _ => {
            // The rest of the URL may hold a password: it is not repeated.
            let message = format!("no backend is called {scheme:.20?}: write memory:");
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}
