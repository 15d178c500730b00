//! TLS, with the feature `tls`. HTTP/2 if the server has it, else HTTP/1.1.

#[cfg(feature = "tls")]
pub(crate) use with::Tls;
#[cfg(not(feature = "tls"))]
pub(crate) use without::Tls;

#[cfg(not(feature = "tls"))]
mod without {
    use std::{error::Error as StdError, io};

    use leasehold_core::{Error, ErrorKind, Result};
    use tokio::net::TcpStream;

    use crate::{config::Config, connector::Stream};

    /// A placeholder: it cannot be made.
    pub(crate) struct Tls;

    impl Tls {
        /// # Errors
        /// `Unsupported`: this build has no TLS.
        pub(crate) fn new(_: &Config) -> Result<Tls> {
            let message = "the URL begins with https, but this build has no TLS for HTTP: build leasehold with the feature \
                           \"http-tls\", or run `cargo xtask build`";
            Err(Error::new(ErrorKind::Unsupported, message))
        }

        #[expect(clippy::unused_async, reason = "as with TLS")]
        pub(crate) async fn handshake(
            &self,
            _: TcpStream,
            _: &Config,
        ) -> std::result::Result<Stream, Box<dyn StdError + Send + Sync>> {
            Err(io::Error::from(io::ErrorKind::Unsupported).into())
        }
    }
}

#[cfg(feature = "tls")]
mod with {
    use std::{error::Error as StdError, sync::Arc};

    use leasehold_core::Result;
    use leasehold_support::{TlsFiles, certificates};
    use rustls::{
        ClientConfig, RootCertStore,
        pki_types::{PrivateKeyDer, ServerName, pem::PemObject as _},
    };
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    use crate::{config::Config, connector::Stream};

    /// What a handshake needs. The files are read for every connection, so that they can be replaced.
    pub(crate) struct Tls {
        /// The certificates that the host trusts, unless the URL names a file.
        system_roots: Option<Arc<RootCertStore>>,
    }

    impl Tls {
        /// # Errors
        /// `Invalid` if a file cannot be read, or if the host trusts no certificate.
        pub(crate) fn new(config: &Config) -> Result<Tls> {
            certificates::install_provider();
            let system_roots = match &config.tls_files.ca {
                Some(_) => None,
                None => Some(certificates::trusted(None)?),
            };
            let tls = Tls { system_roots };
            tls.client_config(&config.tls_files)?; // report wrong files now, not at the first request
            Ok(tls)
        }

        pub(crate) async fn handshake(
            &self,
            tcp: TcpStream,
            config: &Config,
        ) -> std::result::Result<Stream, Box<dyn StdError + Send + Sync>> {
            let tls = TlsConnector::from(Arc::new(self.client_config(&config.tls_files)?));
            let name = ServerName::try_from(config.host.clone())?;
            Ok(Stream::Tls(Box::new(tls.connect(name, tcp).await?)))
        }

        fn client_config(&self, files: &TlsFiles) -> Result<ClientConfig> {
            let roots = match &self.system_roots {
                Some(roots) => Arc::clone(roots),
                None => certificates::trusted(files.ca.as_deref())?,
            };
            let builder = ClientConfig::builder().with_root_certificates(roots);
            let mut config = match (files.read_identity()?, &files.cert, &files.key) {
                (Some((cert, key)), Some(cert_path), Some(key_path)) => {
                    let chain = certificates::parse_certificates(&cert, cert_path)?;
                    let key = PrivateKeyDer::from_pem_slice(&key)
                        .map_err(|error| certificates::unreadable(key_path, &error))?;
                    builder
                        .with_client_auth_cert(chain, key)
                        .map_err(|error| certificates::unreadable(cert_path, &error))?
                }
                _ => builder.with_no_client_auth(),
            };
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            Ok(config)
        }
    }
}
