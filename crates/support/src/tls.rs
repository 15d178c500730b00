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

/// What is wrong with a server that shows a certificate for signing others.
pub const OF_AUTHORITY: &str = "its certificate is that of an authority, which a server must not show (`openssl req -x509` makes such \
                                a one): give the server one with basicConstraints=CA:FALSE, and name that, or its authority, with \
                                ca_file= in the URL";

/// Why a handshake was refused because of the server's certificate, and what to do, if the text of the driver's error says so.
/// Such an error is one of the configuration: to try again does not help.
pub fn explain_certificate(error: &str) -> Option<&'static str> {
    let text = error.to_ascii_lowercase();
    let says = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if says(&["causedasendentity"]) {
        Some(OF_AUTHORITY)
    } else if says(&["unknownissuer", "unknown issuer", "self-signed", "self signed", "badsignature"]) {
        Some(
            "its certificate is self-signed or of an unknown issuer: name the certificate to trust with ca_file= in the URL",
        )
    } else if says(&["notvalidforname", "not valid for name"]) {
        Some("its certificate is for another host name: write the name that the certificate has")
    } else if says(&["notvalidyet", "not valid yet"]) {
        Some("its certificate is not valid yet: check the clock of this host, or replace the certificate")
    } else if says(&["expired"]) {
        Some("its certificate has expired: replace it, or check the clock of this host")
    } else if says(&["invalid peer certificate"]) {
        Some("its certificate is not valid: replace it")
    } else {
        None
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
    fn a_bad_certificate_is_explained_in_words() {
        for (error, words) in [
            ("invalid peer certificate: UnknownIssuer", "self-signed or of an unknown issuer"),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "CA:FALSE"),
            ("invalid peer certificate: BadSignature", "self-signed"),
            ("invalid peer certificate: NotValidForName", "another host name"),
            (
                "invalid peer certificate: certificate not valid for name \"a\"; certificate is only valid",
                "another host name",
            ),
            ("invalid peer certificate: certificate expired: verification time 5 (UNIX)", "has expired"),
            (
                "invalid peer certificate: certificate not valid yet: verification time 5 (UNIX)",
                "not valid yet",
            ),
            ("invalid peer certificate: Revoked", "not valid"),
        ] {
            assert!(explain_certificate(error).is_some_and(|text| text.contains(words)), "{error}");
        }
        for error in ["connection refused", "received fatal alert: CertificateRequired", "tls handshake eof"]
        {
            assert_eq!(explain_certificate(error), None, "{error}");
        }
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
