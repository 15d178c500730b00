//! The files that TLS needs: certificates to trust, a client's certificate and key.
//!
//! How they are used is up to each driver; where they are, and what a URL says of them, is the same for all.

use std::path::{Path, PathBuf};

use leasehold_core::{Error, ErrorKind, Result};

use crate::url::{decode, invalid};

/// What the URL options `ca_file`, `cert_file` and `key_file` name. The files are read for every connection, so that they
/// can be replaced while the program runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates to trust instead of the default ones, in PEM.
    pub ca: Option<PathBuf>,
    /// The client's certificate, in PEM.
    pub cert: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Takes a URL option if it is one of `ca_file`, `cert_file` and `key_file`; returns false if it is another one.
    ///
    /// # Errors
    /// `Invalid` if the value is not percent-encoded UTF-8.
    pub fn set_option(&mut self, name: &str, value: &str) -> Result<bool> {
        let file = match name {
            "ca_file" => &mut self.ca,
            "cert_file" => &mut self.cert,
            "key_file" => &mut self.key,
            _ => return Ok(false),
        };
        *file = Some(decode(value)?.into());
        Ok(true)
    }

    /// Whether no file is named.
    pub fn is_empty(&self) -> bool {
        *self == TlsFiles::default()
    }

    /// Checks that a certificate comes with its key.
    ///
    /// # Errors
    /// `Invalid` if one is named without the other.
    pub fn check(&self) -> Result<()> {
        if self.cert.is_some() == self.key.is_some() {
            return Ok(());
        }
        Err(invalid("cert_file and key_file belong together: name both or neither"))
    }

    /// Reads the client's certificate and key, if they are named.
    ///
    /// # Errors
    /// As [`read_pem`].
    pub fn read_identity(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Ok(Some((read_pem(cert)?, read_pem(key)?))),
            _ => Ok(None),
        }
    }
}

/// Reads a file with certificates or a key.
///
/// # Errors
/// `Invalid`, with the path, if the file cannot be read or is not in PEM.
pub fn read_pem(path: &Path) -> Result<Vec<u8>> {
    let failed = |what: &str| Error::new(ErrorKind::Invalid, format!("{what} {}", path.display()));
    let text = std::fs::read(path).map_err(|error| failed("cannot read").because(error))?;
    if text.windows(5).any(|bytes| bytes == b"-----") {
        Ok(text)
    } else {
        Err(failed("expected a file in PEM format, found another format in"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_needs_its_key() {
        let mut files = TlsFiles::default();
        assert!(files.check().is_ok() && files.is_empty());
        assert!(files.set_option("cert_file", "/a%20b.pem").expect("it is encoded"));
        assert!(!files.set_option("timeout", "5s").expect("it is another option"));
        assert_eq!(files.cert.as_deref(), Some(Path::new("/a b.pem")));
        assert!(files.check().expect_err("the key is missing").to_string().contains("key_file"));
    }

    #[test]
    fn a_file_that_is_missing_or_not_pem_is_named() {
        for path in ["/no/such/file", "/proc/self/cmdline"] {
            let error = read_pem(Path::new(path)).expect_err(path);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}
