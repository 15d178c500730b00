//! PostgreSQL: whether a connection leads to the server itself or to a pool, and whether a reply belongs to its request.
//!
//! Used by the PostgreSQL backend and by the PostgreSQL connections of the fence. The feature `postgres` turns it on.
//!
//! A pool such as PgBouncer shares its server connections among clients. ADR 0034 allows several statements under way on a
//! connection only if no pool is in between. How to find out:
//!
//! 1. At startup a server tells each client which of its processes serves the connection (`BackendKeyData`, meant for
//!    cancelling a statement). [`process_at_startup`] returns that process id.
//! 2. `pg_backend_pid()` returns the process that executes a statement. The caller asks for it.
//! 3. If both are the same, this client has the server process to itself: the connection is *direct*.
//!
//! PgBouncer, pgcat and Odyssey send 32 random bits instead of a process id, so the two differ. Pgpool-II passes the
//! server's key data on and counts as direct; it gives a client one server connection for the whole session. If it hands a
//! reply to the wrong client all the same, [`check_request_id`] finds that out (ADR 0033).

use std::{
    future::{Ready, ready},
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use leasehold_core::{Error, RequestId, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Client, Row,
    tls::{ChannelBinding, TlsConnect, TlsStream},
};

/// The length of a `CancelRequest`: its length, its code, the process id and the secret, four bytes each.
const CANCEL_REQUEST_BYTES: usize = 16;
/// Where the process id is in a `CancelRequest`.
const PROCESS_ID: std::ops::Range<usize> = 8..12;
/// How errors name the server.
const SERVER: &str = "PostgreSQL";

/// The process id that the server sent in `BackendKeyData` at startup; `None` if it sent none.
pub async fn process_at_startup(client: &Client) -> Option<i32> {
    // The driver does not expose the key data. It writes them into a cancel request, so write one into memory and read it
    // back. Nothing is sent to the server.
    let written = MemoryStream::default();
    client.cancel_token().cancel_query_raw(written.clone(), NoHandshake).await.ok()?;
    let written = written.0.lock().unwrap_or_else(PoisonError::into_inner);
    // With TLS the driver first writes an SSLRequest: the cancel request is at the end.
    let request = written.last_chunk::<CANCEL_REQUEST_BYTES>()?;
    let process: [u8; 4] = request.get(PROCESS_ID)?.try_into().ok()?;
    Some(i32::from_be_bytes(process))
}

/// Checks that the last column of every row is the id of the request. ADR 0033.
///
/// # Errors
/// `Unavailable` with an unknown effect if an id differs or is missing. A reply without rows carries no id, so it is refused
/// too: every statement that is checked returns at least one row.
pub fn check_request_id(rows: &[Row], request: RequestId) -> Result<()> {
    let id_of = |row: &Row| row.len().checked_sub(1).and_then(|last| row.try_get::<_, i64>(last).ok());
    if rows.is_empty() {
        return Err(Error::misdelivered(&SERVER));
    }
    rows.iter().try_for_each(|row| match id_of(row) {
        Some(id) => request.check(RequestId::from(id.cast_unsigned()), &SERVER),
        None => Err(Error::misdelivered(&SERVER)),
    })
}

/// A stream that keeps all bytes that are written to it.
#[derive(Clone, Default)]
struct MemoryStream(Arc<Mutex<Vec<u8>>>);

impl AsyncRead for MemoryStream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // The reply "yes" to an SSLRequest, the only thing that the driver reads here.
        buffer.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MemoryStream {
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

impl TlsStream for MemoryStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// TLS without a handshake. It protects nothing and does not have to: the bytes stay in this process.
struct NoHandshake;

impl TlsConnect<MemoryStream> for NoHandshake {
    type Stream = MemoryStream;
    type Error = io::Error;
    type Future = Ready<io::Result<MemoryStream>>;

    fn connect(self, stream: MemoryStream) -> Self::Future {
        ready(Ok(stream))
    }
}
