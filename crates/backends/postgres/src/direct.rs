//! Whether a connection leads to a PostgreSQL server itself, or to a pool that shares its connections among clients.
//!
//! A server tells each client at startup which process serves it (`BackendKeyData`, so that the client can cancel), and
//! `pg_backend_pid()` tells which process executes a statement. If both name the same process, this client has that
//! process to itself. PgBouncer, pgcat and Odyssey invent key data of their own, 32 random bits in place of the process.
//! A pool that passes the server's key data on, such as Pgpool-II, gives a client one server connection for the whole of
//! its session, so statements may follow each other there too. What such a pool may leave behind for the next client is
//! found out by the request ids (ADR 0033), and from then on nothing is believed to be direct (`Link`).

use std::{
    future::{Ready, ready},
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Client,
    tls::{ChannelBinding, TlsConnect, TlsStream},
};

/// The length of a `CancelRequest`: its length, its code, the process, the secret; four bytes each.
const CANCEL_REQUEST: usize = 16;

/// The process that `BackendKeyData` named at startup. The driver keeps that number to itself, but for the request that
/// would cancel a statement: that is written here, into memory, and read.
pub(crate) async fn process_at_startup(client: &Client) -> Option<i32> {
    let written = Memory::default();
    client.cancel_token().cancel_query_raw(written.clone(), NoHandshake).await.ok()?;
    let written = written.0.lock().unwrap_or_else(PoisonError::into_inner);
    // With TLS, a request for it comes first.
    let request = written.last_chunk::<CANCEL_REQUEST>()?;
    let process: [u8; 4] = request.get(8..12)?.try_into().ok()?;
    Some(i32::from_be_bytes(process))
}

/// Keeps what is written. What is read says yes to a request for TLS.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl AsyncRead for Memory {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        buffer.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Memory {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for Memory {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// TLS without a handshake: nothing here leaves this process.
struct NoHandshake;

impl TlsConnect<Memory> for NoHandshake {
    type Stream = Memory;
    type Error = io::Error;
    type Future = Ready<io::Result<Memory>>;

    fn connect(self, stream: Memory) -> Self::Future {
        ready(Ok(stream))
    }
}
