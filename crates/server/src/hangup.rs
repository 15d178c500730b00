//! Sees that the peer of an HTTP/1.1 connection has gone while its request is answered.
//!
//! hyper sees it only if nothing was read behind the request. A peer that sends a line break after its body, as old clients do, or its
//! next request, would be granted a lease after its death. Therefore:
//!
//! 1. hyper uses the stream through [`WatchedStream`]; a [`Hangup`] is a second handle to it.
//! 2. While a request is answered, the handle reads ahead, into a buffer from which hyper reads later.
//! 3. The peer has gone at the end of the stream, after an error, or when it sends more ahead than the buffer takes.
//!
//! Both are used by the task of the connection alone, so the lock is always free.

use std::{
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read ahead: some requests behind the one that is answered.
const AHEAD_MAX: usize = 16 << 10;

/// A stream whose end a [`Hangup`] sees.
pub(crate) struct WatchedStream<S>(Arc<Mutex<Shared<S>>>);

struct Shared<S> {
    stream: S,
    /// What was read ahead, and not by hyper yet.
    ahead: Vec<u8>,
    has_ended: bool,
}

/// Tells when the peer of a connection has gone.
#[derive(Clone)]
pub(crate) struct Hangup {
    stream: Option<Arc<Mutex<dyn PollEnd + Send>>>,
    /// The body of the request has been read.
    is_watching: Arc<AtomicBool>,
}

/// Reads ahead until the stream ends.
trait PollEnd {
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

impl<S: AsyncRead + Unpin> PollEnd for Shared<S> {
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.has_ended && self.ahead.len() < AHEAD_MAX {
            let mut bytes = [0; 1024];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
            self.has_ended = read.is_err() || buffer.filled().is_empty();
            self.ahead.extend_from_slice(buffer.filled());
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin + Send + 'static> WatchedStream<S> {
    pub(crate) fn new(stream: S) -> (WatchedStream<S>, Hangup) {
        let shared = Arc::new(Mutex::new(Shared { stream, ahead: Vec::new(), has_ended: false }));
        let hangup = Hangup { stream: Some(shared.clone()), is_watching: Arc::default() };
        (WatchedStream(shared), hangup)
    }
}

impl<S> WatchedStream<S> {
    fn shared(&self) -> MutexGuard<'_, Shared<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hangup {
    /// For HTTP/2, which always reads, and drops the requests of a peer that has gone.
    pub(crate) fn of_protocol() -> Hangup {
        Hangup { stream: None, is_watching: Arc::default() }
    }

    /// Begins to watch. Not before the body of the request has been read: it would be read ahead.
    pub(crate) fn watch(&self) {
        self.is_watching.store(true, Ordering::Relaxed);
    }

    /// Resolves when the peer has gone while its next request is answered. Must be polled in the task that calls `watch`, after it.
    pub(crate) fn hung_up(&self) -> impl Future<Output = ()> {
        self.is_watching.store(false, Ordering::Relaxed); // at once, and not with the first poll: `watch` may come before that
        poll_fn(|cx| match &self.stream {
            Some(stream) if self.is_watching.load(Ordering::Relaxed) => {
                stream.lock().unwrap_or_else(PoisonError::into_inner).poll_end(cx)
            }
            _ => Poll::Pending,
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.shared();
        if !shared.ahead.is_empty() {
            let count = shared.ahead.len().min(into.remaining());
            into.put_slice(&shared.ahead[..count]);
            shared.ahead.drain(..count);
            return Poll::Ready(Ok(()));
        }
        if shared.has_ended {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut shared.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.shared().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.shared().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.shared().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.shared().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.shared().stream.is_write_vectored()
    }
}
