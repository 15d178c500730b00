//! Makes a stream of an async function that is called again and again.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio_util::sync::ReusableBoxFuture;

/// A stream of what `next` returns, until it returns `None`. `next` gets the state, and gives it back with each item.
pub(crate) fn unfold<S, T, N, F>(
    state: S,
    mut next: N,
) -> impl Stream<Item = T> + Send + Unpin + use<S, T, N, F>
where
    S: Send + 'static,
    T: Send + 'static,
    N: FnMut(S) -> F + Send + Unpin,
    F: Future<Output = (S, Option<T>)> + Send + 'static,
{
    let call = Some(ReusableBoxFuture::new(next(state)));
    Unfold { next, call }
}

struct Unfold<S, T, N> {
    next: N,
    /// The call that brings the next item; `None` after the last one.
    call: Option<ReusableBoxFuture<'static, (S, Option<T>)>>,
}

impl<S, T, N, F> Stream for Unfold<S, T, N>
where
    N: FnMut(S) -> F + Unpin,
    F: Future<Output = (S, Option<T>)> + Send + 'static,
{
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let this = &mut *self;
        let Some(call) = &mut this.call else { return Poll::Ready(None) };
        let Poll::Ready((state, item)) = call.poll(cx) else { return Poll::Pending };
        match item {
            Some(_) => call.set((this.next)(state)),
            None => this.call = None,
        }
        Poll::Ready(item)
    }
}
