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
/// `Unsupported`: this build has no TLS.
#[cfg(not(feature = "tls"))]
pub(crate) fn connector(_: &Config) -> Result<Connector> {
    let message = "this build has no TLS for PostgreSQL: build leasehold with the feature \"postgres-tls\"";
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// # Errors
/// `Invalid` if the certificates cannot be read.
#[cfg(feature = "tls")]
pub(crate) fn connector(config: &Config) -> Result<Connector> {
    // Without a provider the first handshake would panic. If the program has chosen none, it is ring.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if someone else has just installed one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let roots = match &config.ca_file {
        Some(path) => read_roots(path)?,
        None => system_roots()?,
    };
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(Connector::new(client))
}

/// Those of the host. What cannot be read of them is left out: a certificate that needs it is not trusted.
#[cfg(feature = "tls")]
fn system_roots() -> Result<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let message =
            "this host has no certificates to trust (Debian: ca-certificates): name a file with ca_file";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(roots)
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
