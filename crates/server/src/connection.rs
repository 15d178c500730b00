//! One connection: finds out its protocol, and serves its requests.

use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper::{
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Notify,
    time::timeout,
};

use crate::{
    hangup::{Hangup, WatchedStream},
    listener::drained,
    router::{self, ListenerKind, Peer},
    server::Shared,
    timed_stream::TimedStream,
};

/// The first bytes of HTTP/2 without TLS. No method of HTTP/1.1 begins with them.
const HTTP2_PREFACE: &[u8] = b"PRI";
/// How much of a request's head is kept.
const HEAD_MAX: usize = 64 << 10;
/// A host that has vanished is noticed after [`PING_EVERY`] and [`PINGS_LOST`] pings: by pings of HTTP/2, and by those of TCP.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_AGAIN_EVERY: Duration = Duration::from_secs(3);
const PINGS_LOST: u32 = 3;
/// The pauses of a peer that sends one byte of its first three at a time.
const SNIFF_PAUSE: Duration = Duration::from_millis(1);
const SNIFF_PAUSE_MAX: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Serves the connection until it ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    stream: TcpStream,
    address: SocketAddr,
    listener: ListenerKind,
) {
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(PING_EVERY).with_interval(PING_AGAIN_EVERY);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(PINGS_LOST));
    #[cfg(feature = "tls")]
    if let Some(tls) = shared.config.tls.clone().filter(|_| listener == ListenerKind::Api) {
        // Boxed: a connection without TLS need not have room for it.
        return Box::pin(serve_tls(shared, &tls, stream, address)).await;
    }
    // hyper's own way to tell the protocols apart has no timeout.
    let Ok(Some(protocol)) = timeout(shared.config.timeouts.first_byte, sniff(&stream)).await else { return };
    let peer = Peer { address, listener, certificate: Arc::new([]), hangup: Hangup::of_protocol() };
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
    let certificate = crate::tls::client_names(&stream);
    let peer = Peer { address, listener: ListenerKind::Api, certificate, hangup: Hangup::of_protocol() };
    serve_stream(shared, stream, peer, protocol).await;
}

/// The protocol, by the first bytes, which stay to be read. `None` if the connection ends before.
async fn sniff(stream: &TcpStream) -> Option<Protocol> {
    let mut first = [0; HTTP2_PREFACE.len()];
    let mut pause = SNIFF_PAUSE;
    loop {
        let count = stream.peek(&mut first).await.ok()?;
        match &first[..count] {
            [] => return None,
            bytes if bytes == HTTP2_PREFACE => return Some(Protocol::Http2),
            bytes if HTTP2_PREFACE.starts_with(bytes) => {
                // What was peeked at counts as readable, so nothing but a pause waits for more.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(SNIFF_PAUSE_MAX);
            }
            _ => return Some(Protocol::Http1),
        }
    }
}

async fn serve_stream<S>(shared: Arc<Shared>, stream: S, mut peer: Peer, protocol: Protocol)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, hangup) = WatchedStream::new(TimedStream::new(stream, shared.config.timeouts.write));
    if protocol == Protocol::Http1 {
        peer.hangup = hangup;
    }
    let io = TokioIo::new(stream);
    let (begun, answered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let no_request = no_request(Arc::clone(&begun), shared.config.timeouts.headers);
    let may_end = may_end(&shared, Arc::clone(&answered));
    let (timeouts, limits, address) = (shared.config.timeouts, shared.config.limits, peer.address);
    let service = service_fn(move |request| {
        begun.notify_one();
        let (shared, peer, answered) = (Arc::clone(&shared), peer.clone(), Arc::clone(&answered));
        async move {
            let response = tokio::select! {
                biased;
                response = router::answer(&shared, &peer, request) => response,
                () = peer.hangup.hung_up() => return Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
            };
            answered.notify_one();
            Ok(response)
        }
    });
    // Ends idle connections at once and others after their answers: HTTP/2 says GOAWAY.
    macro_rules! until_drained {
        ($connection:expr) => {{
            let mut connection = pin!($connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = no_request => return tracing::debug!(%address, "no request came in time"),
                () = may_end => {
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

/// Resolves when the server drains. A connection that begins after that may still bring a renewal: it ends after an answer.
fn may_end(shared: &Shared, answered: Arc<Notify>) -> impl Future<Output = ()> + use<> {
    let (draining, is_late) = (shared.draining.subscribe(), shared.is_draining());
    async move {
        drained(draining).await;
        if is_late {
            answered.notified().await;
        }
    }
}

/// Resolves if no request begins in time. hyper bounds that for HTTP/1.1 alone: a peer could hold a connection with half of the first
/// bytes of HTTP/2.
async fn no_request(begun: Arc<Notify>, at_most: Duration) {
    if timeout(at_most, begun.notified()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}
