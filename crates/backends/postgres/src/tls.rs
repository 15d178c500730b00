//! TLS, with the feature `tls`.

use leasehold_core::{Error, ErrorKind, Result};

use crate::config::Config;

/// What the driver needs for a connection with TLS.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;
/// A placeholder: this build has no TLS, so [`connector`] always fails.
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// # Errors
/// `Unsupported`: this build has no TLS.
#[cfg(not(feature = "tls"))]
pub(crate) fn connector(_: &Config) -> Result<Connector> {
    let message = "the URL has sslmode=require, but this build has no TLS for PostgreSQL: build leasehold with the \
                   feature \"postgres-tls\"";
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// # Errors
/// `Invalid` if the certificates to trust cannot be read.
#[cfg(feature = "tls")]
pub(crate) fn connector(config: &Config) -> Result<Connector> {
    // Without a crypto provider the first handshake would panic. Use ring if the program has not installed another one.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // This fails only if another thread has just installed one. Then that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let roots = match &config.tls_files.ca {
        Some(path) => read_roots(path)?,
        None => system_roots()?,
    };
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(Connector::new(client))
}

/// The certificates that the host trusts. Unreadable ones are left out: what they signed is not trusted then.
#[cfg(feature = "tls")]
fn system_roots() -> Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let message = "this host has no certificates to trust: install them (Debian: ca-certificates), or name a file \
                       with ca_file= in the URL";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(roots)
}

#[cfg(feature = "tls")]
fn read_roots(path: &std::path::Path) -> Result<rustls::RootCertStore> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let unreadable = |why: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Invalid, format!("cannot read certificates from {}: {why}", path.display()))
    };
    let text = leasehold_support::tls::read_pem(path)?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    if roots.is_empty() { Err(unreadable(&"the file has none")) } else { Ok(roots) }
}
