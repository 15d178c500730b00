//! Requests to several nodes at once, and their replies in the order in which they come.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

type BoxedRequest<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Requests under way, by the number of their node. All are polled in the caller's own future: asking five nodes starts no
/// task (ADR 0006).
pub(super) struct NodeRequests<T> {
    pending: Vec<(usize, BoxedRequest<T>)>,
    replies: VecDeque<(usize, T)>,
}

impl<T> NodeRequests<T> {
    pub(super) const fn new() -> NodeRequests<T> {
        NodeRequests { pending: Vec::new(), replies: VecDeque::new() }
    }

    /// Sends a request to the node with this number, when it is polled.
    pub(super) fn send(&mut self, node: usize, request: impl Future<Output = T> + Send + 'static) {
        self.pending.push((node, Box::pin(request)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.replies.is_empty()
    }

    /// The next reply, with the number of its node; `None` if all have replied. Cancel safe: a reply is taken only when it
    /// is returned.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            if self.replies.is_empty() {
                // Poll all of them, even if one is ready: all nodes are asked before anything is decided.
                let replies = &mut self.replies;
                self.pending.retain_mut(|(node, request)| match request.as_mut().poll(cx) {
                    Poll::Ready(reply) => {
                        replies.push_back((*node, reply));
                        false
                    }
                    Poll::Pending => true,
                });
            }
            match self.replies.pop_front() {
                None if !self.pending.is_empty() => Poll::Pending,
                reply => Poll::Ready(reply),
            }
        })
        .await
    }
}
