//! One connection: finds out its protocol, and serves its requests.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper::{
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

use crate::{
    listener::drained,
    router::{self, Door, Peer},
    server::Shared,
    timed_stream::TimedStream,
};

/// The first bytes of HTTP/2 without TLS. No method of HTTP/1.1 begins with them.
const HTTP2_PREFACE: &[u8] = b"PRI";
/// How much of a request's head is kept.
const HEAD_MAX: usize = 64 << 10;
/// HTTP/2: a peer that does not answer a ping is gone.
const PING_EVERY: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Serves the connection until it ends.
pub(crate) async fn serve(shared: Arc<Shared>, stream: TcpStream, address: SocketAddr, door: Door) {
    let _ = stream.set_nodelay(true);
    #[cfg(feature = "tls")]
    if let Some(tls) = shared.config.tls.clone().filter(|_| door == Door::Api) {
        return serve_tls(shared, &tls, stream, address).await;
    }
    // hyper's own way to tell the protocols apart has no timeout.
    let Ok(Some(protocol)) = timeout(shared.config.timeouts.first_byte, sniff(&stream)).await else { return };
    let peer = Peer { address, door, certificate: Arc::new([]) };
    serve_stream(shared, stream, peer, protocol).await;
}

#[cfg(feature = "tls")]
async fn serve_tls(shared: Arc<Shared>, tls: &crate::Tls, stream: TcpStream, address: SocketAddr) {
    let stream = match timeout(shared.config.timeouts.first_byte, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%address, %error, "a TLS handshake failed"),
        Err(_) => return tracing::debug!(%address, "a TLS handshake took too long"),
    };
    let protocol = if crate::tls::is_http2(&stream) { Protocol::Http2 } else { Protocol::Http1 };
    let peer = Peer { address, door: Door::Api, certificate: crate::tls::client_names(&stream) };
    serve_stream(shared, stream, peer, protocol).await;
}

/// The protocol, by the first bytes, which stay to be read. `None` if the connection ends before.
async fn sniff(stream: &TcpStream) -> Option<Protocol> {
    let mut first = [0; HTTP2_PREFACE.len()];
    loop {
        let count = stream.peek(&mut first).await.ok()?;
        match &first[..count] {
            [] => return None,
            bytes if bytes == HTTP2_PREFACE => return Some(Protocol::Http2),
            bytes if HTTP2_PREFACE.starts_with(bytes) => tokio::time::sleep(Duration::from_millis(1)).await,
            _ => return Some(Protocol::Http1),
        }
    }
}

async fn serve_stream<S>(shared: Arc<Shared>, stream: S, peer: Peer, protocol: Protocol)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(TimedStream::new(stream, shared.config.timeouts.write));
    // A connection that begins while the server drains may still bring a renewal: its answer ends it.
    let is_late = shared.is_draining();
    let draining = shared.draining.subscribe();
    let (timeouts, limits) = (shared.config.timeouts, shared.config.limits);
    let address = peer.address;
    let service = service_fn(move |request| {
        let (shared, peer) = (Arc::clone(&shared), peer.clone());
        async move { Ok::<_, Infallible>(router::answer(&shared, &peer, request).await) }
    });
    // Ends idle connections at once and others after their answers: HTTP/2 says GOAWAY.
    macro_rules! until_drained {
        ($connection:expr) => {{
            let mut connection = pin!($connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = drained(draining), if !is_late => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }};
    }
    let ended = match protocol {
        Protocol::Http1 => {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(timeouts.headers).max_buf_size(HEAD_MAX);
            until_drained!(builder.serve_connection(io, service))
        }
        Protocol::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(timeouts.write);
            let head_max = u32::try_from(HEAD_MAX).unwrap_or(u32::MAX);
            builder.max_concurrent_streams(limits.streams).max_header_list_size(head_max);
            until_drained!(builder.serve_connection(io, service))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%address, %error, "a connection ended");
    }
}
