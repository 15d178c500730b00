//! HTTPS, and client certificates.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_support::certificates;
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::file_state::{FileState, LOOK_EVERY};

/// The certificate of the server, and whose client certificates it believes, as its files are now.
///
/// Files that cannot be used leave the old certificate in force, and are reported at every look until they can. New connections get the
/// new certificate; open ones stay as they are.
#[derive(Clone)]
pub struct Tls {
    inner: Arc<Inner>,
}

struct Inner {
    files: Files,
    current: RwLock<TlsAcceptor>,
    seen: Mutex<[Option<FileState>; 3]>,
    /// The files have changed and cannot be used.
    is_bad: AtomicBool,
}

#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.inner.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a certificate chain and its key, in PEM. With `client_ca`, a client may show a certificate of that authority instead of
    /// a token; it need not. [`Server::run`](crate::Server::run) reads the files again when they change.
    ///
    /// # Errors
    /// `Invalid`, with the path, if a file cannot be read, or if the key is not that of the certificate.
    pub fn read(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Tls> {
        let files = Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            client_ca: client_ca.map(Path::to_owned),
        };
        let seen = Mutex::new(files.state());
        let current = RwLock::new(files.acceptor()?);
        Ok(Tls { inner: Arc::new(Inner { files, current, seen, is_bad: AtomicBool::new(false) }) })
    }

    pub(crate) async fn accept<S>(&self, stream: S) -> std::io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = self.inner.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        acceptor.accept(stream).await
    }

    /// Looks at the files until the future is dropped.
    pub(crate) async fn follow(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.look();
        }
    }

    /// Reads the files if one of them has changed. A certificate and its key are two files: between the replacement of one and of the
    /// other they do not fit, and the next look tries again.
    pub fn look(&self) {
        let inner = &*self.inner;
        let now = inner.files.state();
        let mut seen = inner.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return;
        }
        let read = inner.files.acceptor();
        inner.is_bad.store(read.is_err(), Ordering::Relaxed);
        match read {
            Ok(acceptor) => {
                *seen = now;
                *inner.current.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
                tracing::info!("the certificate was read again: new connections get it");
            }
            Err(error) => {
                tracing::error!(%error, "the certificate cannot be read again: the one from before stays in force");
            }
        }
    }

    /// Whether the files have changed and cannot be used.
    pub(crate) fn is_bad(&self) -> bool {
        self.inner.is_bad.load(Ordering::Relaxed)
    }
}

impl Files {
    fn state(&self) -> [Option<FileState>; 3] {
        let client_ca = self.client_ca.as_deref().and_then(FileState::of);
        [FileState::of(&self.certificate), FileState::of(&self.key), client_ca]
    }

    fn acceptor(&self) -> Result<TlsAcceptor> {
        let provider = rustls::crypto::CryptoProvider::get_default()
            .map_or_else(|| Arc::new(rustls::crypto::ring::default_provider()), Arc::clone);
        let no_versions = |error: rustls::Error| invalid(format!("TLS cannot be used: {error}"));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(no_versions)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = certificates::trusted(Some(path))?;
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = verifier.allow_unauthenticated().build();
                let verifier = verifier.map_err(|error| certificates::unreadable(path, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| invalid(format!("cannot read a key from {}: {error}", self.key.display())))?;
        let mut config = builder
            .with_single_cert(certificates::read_certificates(&self.certificate)?, key)
            .map_err(|error| certificates::unreadable(&self.certificate, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Whether the client chose HTTP/2.
pub(crate) fn is_http2<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

/// The DNS names in the client's certificate, which has been checked.
pub(crate) fn client_names<S>(stream: &TlsStream<S>) -> Arc<[String]> {
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let parsed = certificate.and_then(|certificate| webpki::EndEntityCert::try_from(certificate).ok());
    parsed.iter().flat_map(|parsed| parsed.valid_dns_names()).map(str::to_owned).collect()
}
