//! TLS, if it was built in and is asked for.

use leasehold_core::{Error, ErrorKind, Result};

use crate::config::Config;

/// What the driver needs for a connection with TLS.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;
/// There is none in this build.
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// # Errors
/// `Unsupported` if this build has no TLS, or the program has not said whose cryptography to use.
#[cfg(not(feature = "tls"))]
pub(crate) fn connector(_: &Config) -> Result<Connector> {
    let message = "this build has no TLS for PostgreSQL: build leasehold with the feature \"postgres-tls\"";
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// # Errors
/// `Unsupported` if the program has not said whose cryptography to use; `Invalid` if the certificates cannot be read.
#[cfg(feature = "tls")]
pub(crate) fn connector(config: &Config) -> Result<Connector> {
    // The first handshake would panic otherwise.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let message =
            "no cryptography is installed: call rustls::crypto::CryptoProvider::install_default() first";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let roots = match &config.ca_file {
        Some(path) => read_roots(path)?,
        None => rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
    };
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(Connector::new(client))
}

#[cfg(feature = "tls")]
fn read_roots(path: &std::path::Path) -> Result<rustls::RootCertStore> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let unreadable = |why: String| {
        Error::new(ErrorKind::Invalid, format!("cannot read certificates from {}: {why}", path.display()))
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))? {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
    }
    if roots.is_empty() { Err(unreadable("there are none".to_owned())) } else { Ok(roots) }
}
