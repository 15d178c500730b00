//! Polls two futures and takes the first result.
//!
//! The order of polling is fixed, so that a simulated run can be replayed from its seed. `tokio::select!` polls in random
//! order.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

/// The result of the future that was ready first.
#[derive(Debug)]
pub enum Either<A, B> {
    /// The first argument of [`first`] was ready. If both are ready, it wins.
    Left(A),
    /// The second argument was ready, and the first one was not.
    Right(B),
}

impl<A, B> Either<A, B> {
    /// The result of the first argument, if it won.
    pub fn left(self) -> Option<A> {
        match self {
            Either::Left(a) => Some(a),
            Either::Right(_) => None,
        }
    }
}

/// Polls `left`, then `right`, until one of them is ready; drops the other.
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
