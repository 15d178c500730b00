//! Certificates for rustls: those to trust, and those to show. Errors name the file.

use std::{fmt::Display, path::Path, sync::Arc};

use leasehold_core::{Error, ErrorKind, Result};
use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::tls::read_pem;

/// Makes ring the crypto provider of rustls, if the program has not installed another one. Without any, a handshake panics.
pub fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // This fails only if another thread has just installed one. Then that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// The certificates to trust: those in this file, or those that the host trusts.
///
/// # Errors
/// `Invalid` if the file cannot be read, or if there are none.
pub fn trusted(file: Option<&Path>) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in read_certificates(path)? {
                roots.add(certificate).map_err(|error| unreadable(path, &error))?;
            }
        }
        None => {
            // Unreadable ones are left out: what they signed is not trusted then.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let message = "this host has no certificates to trust: install them (Debian: ca-certificates), or name a file \
                               with ca_file= in the URL";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
    }
    Ok(Arc::new(roots))
}

/// Reads a chain of certificates.
///
/// # Errors
/// `Invalid`, with the path, if the file cannot be read or has none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    parse_certificates(&read_pem(path)?, path)
}

/// The certificates in a text that was read from this file.
///
/// # Errors
/// `Invalid`, with the path, if it has none.
pub fn parse_certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<Vec<_>, _>>();
    let found = read.map_err(|error| unreadable(path, &error))?;
    if found.is_empty() { Err(unreadable(path, &"the file has no certificate")) } else { Ok(found) }
}

/// The error for a file that cannot be used.
pub fn unreadable(path: &Path, why: &dyn Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("cannot read certificates from {}: {why}", path.display()))
}
