//! Two futures, the first of which decides. In a fixed order, so that a seed replays a run.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// Which of the two was ready first.
#[derive(Debug)]
pub enum Either<A, B> {
    /// The one that is polled first.
    Left(A),
    /// The other.
    Right(B),
}

impl<A, B> Either<A, B> {
    /// What the first one gave, if it was ready first.
    pub fn left(self) -> Option<A> {
        match self {
            Either::Left(a) => Some(a),
            Either::Right(_) => None,
        }
    }
}

/// Polls `left` before `right`, and drops whichever is not ready.
pub async fn first<A, B>(left: impl Future<Output = A>, right: impl Future<Output = B>) -> Either<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(move |cx| {
        if let Poll::Ready(a) = left.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(a));
        }
        right.as_mut().poll(cx).map(Either::Right)
    })
    .await
}
