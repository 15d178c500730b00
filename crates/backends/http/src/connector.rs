//! Opens connections: TCP, and with `https` TLS on it.

use std::{
    error::Error as StdError,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use leasehold_core::{Environment, Result};
use leasehold_support::race::{Either, first};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tower_service::Service;

use crate::{config::Config, tls::Tls};

type BoxError = Box<dyn StdError + Send + Sync>;

/// Opens connections for the pools.
#[derive(Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    tls: Option<Arc<Tls>>,
    config: Arc<Config>,
    environment: Arc<dyn Environment>,
}

impl Connector {
    /// # Errors
    /// `Unsupported` for `https` if this build has no TLS. `Invalid` if a certificate cannot be read.
    pub(crate) fn new(config: &Arc<Config>, environment: &Arc<dyn Environment>) -> Result<Connector> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(config.connect_timeout));
        let tls = if config.is_tls { Some(Arc::new(Tls::new(config)?)) } else { None };
        Ok(Connector { tcp, tls, config: Arc::clone(config), environment: Arc::clone(environment) })
    }

    async fn open(mut self, uri: Uri) -> Result<TokioIo<Stream>, BoxError> {
        let limit = self.config.connect_timeout;
        let environment = Arc::clone(&self.environment);
        let opening = async move {
            let tcp = self.tcp.call(uri).await.map_err(BoxError::from)?.into_inner();
            match &self.tls {
                None => Ok(Stream::Plain(tcp)),
                Some(tls) => tls.handshake(tcp, &self.config).await,
            }
        };
        match first(opening, environment.sleep(limit)).await {
            Either::Left(stream) => stream.map(TokioIo::new),
            Either::Right(()) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}")).into())
            }
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().open(uri))
    }
}

/// A connection to the server.
pub(crate) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

/// Calls a method of the stream inside.
macro_rules! inside {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Plain($inner) => $call,
            #[cfg(feature = "tls")]
            Stream::Tls($inner) => $call,
        }
    };
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Stream::Plain(_) => Connected::new(),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                Connected::new().negotiated_h2()
            }
            #[cfg(feature = "tls")]
            Stream::Tls(_) => Connected::new(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        inside!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, into))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        inside!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inside!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inside!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        inside!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        inside!(self, stream => stream.is_write_vectored())
    }
}
