//! Whether a connection leads to a PostgreSQL server itself, or to a pool that shares its connections among clients.
//!
//! As `direct.rs` of `leasehold-postgres`, which says why; this crate does not depend on that one. ADR 0034.

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
    types::Type,
};

use super::request;

/// The length of a `CancelRequest`: its length, its code, the process, the secret; four bytes each.
const CANCEL_REQUEST: usize = 16;

/// Whether the process that serves this connection is the one that executes its statements.
pub(super) async fn is_direct(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let request = request::next();
    let number = request.get().cast_signed();
    let rows = client.query_typed("SELECT pg_backend_pid(), $1::bigint", &[(&number, Type::INT8)]).await?;
    let process = rows.first().and_then(|row| row.try_get::<_, i32>(0).ok());
    let is_named = request::check(&rows, request).is_ok();
    Ok(is_named && process.is_some() && process == process_at_startup(client).await)
}

/// The process that `BackendKeyData` named at startup. The driver keeps that number to itself, but for the request that
/// would cancel a statement: that is written here, into memory, and read.
async fn process_at_startup(client: &Client) -> Option<i32> {
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
