//! Two futures, the first of which decides; in a fixed order, so that a seed replays.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// `Ok` if `left` was ready first, `Err` if `right` was.
pub(crate) async fn first<A, B>(
    left: impl Future<Output = A>,
    right: impl Future<Output = B>,
) -> Result<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(move |cx| {
        if let Poll::Ready(a) = left.as_mut().poll(cx) {
            return Poll::Ready(Ok(a));
        }
        right.as_mut().poll(cx).map(Err)
    })
    .await
}
