//! One question to all nodes at once, and their answers in the order in which they come.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

type Part<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Questions under way. All are polled in the caller's own future: asking five nodes starts no task.
pub(super) struct Fan<T>(Vec<(usize, Part<T>)>);

impl<T> Fan<T> {
    pub(super) const fn new() -> Fan<T> {
        Fan(Vec::new())
    }

    /// Asks the node with this number.
    pub(super) fn ask(&mut self, node: usize, question: impl Future<Output = T> + Send + 'static) {
        self.0.push((node, Box::pin(question)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next answer, and whose it is; none if everyone has answered. Cancel safe: an answer is taken only when it is
    /// returned.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            for index in 0..self.0.len() {
                if let Poll::Ready(answer) = self.0[index].1.as_mut().poll(cx) {
                    let (node, _) = self.0.swap_remove(index);
                    return Poll::Ready(Some((node, answer)));
                }
            }
            Poll::Pending
        })
        .await
    }
}
