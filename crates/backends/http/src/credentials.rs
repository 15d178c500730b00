//! The token that every request carries.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::header::HeaderValue;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_support::Password;

/// The token, from the URL or from a file.
pub(crate) struct Credentials {
    token: Password,
    /// The header with the token as it was last read.
    header: Mutex<Option<HeaderValue>>,
}

impl Credentials {
    /// # Errors
    /// `Denied` if the file cannot be read. `Invalid` if the token has characters that no header can have.
    pub(crate) fn new(token: Password) -> Result<Credentials> {
        let header = Mutex::new(read(&token)?);
        Ok(Credentials { token, header })
    }

    pub(crate) fn header(&self) -> Option<HeaderValue> {
        self.lock().clone()
    }

    /// Reads the token again: the server has refused it, so it may have been replaced. True if it is another one now.
    pub(crate) fn reload(&self) -> bool {
        let Ok(header) = read(&self.token) else { return false };
        let mut current = self.lock();
        let is_new = *current != header;
        *current = header;
        is_new
    }

    fn lock(&self) -> MutexGuard<'_, Option<HeaderValue>> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(token: &Password) -> Result<Option<HeaderValue>> {
    let Some(token) = token.current()? else { return Ok(None) };
    let mut header = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| {
        // The text itself is a secret.
        Error::new(
            ErrorKind::Invalid,
            "the token has characters that no token has: copy it as `leasehold token` printed it",
        )
    })?;
    header.set_sensitive(true);
    Ok(Some(header))
}
