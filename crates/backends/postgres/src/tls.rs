//! TLS, with the feature `tls`.

use leasehold_core::Result;
#[cfg(not(feature = "tls"))]
use leasehold_core::{Error, ErrorKind};

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
    use leasehold_support::certificates;
    certificates::install_provider();
    let roots = certificates::trusted(config.tls_files.ca.as_deref())?;
    let client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(Connector::new(client))
}
