//! One question to all nodes at once, and their answers in the order in which they come.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

type Part<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Questions under way. All are polled in the caller's own future: asking five nodes starts no task.
pub(super) struct Fan<T> {
    asked: Vec<(usize, Part<T>)>,
    answered: VecDeque<(usize, T)>,
}

impl<T> Fan<T> {
    pub(super) const fn new() -> Fan<T> {
        Fan { asked: Vec::new(), answered: VecDeque::new() }
    }

    /// Asks the node with this number.
    pub(super) fn ask(&mut self, node: usize, question: impl Future<Output = T> + Send + 'static) {
        self.asked.push((node, Box::pin(question)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.answered.is_empty()
    }

    /// The next answer, and whose it is; none if everyone has answered. Cancel safe: an answer is taken only when it is
    /// returned.
    pub(super) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            if self.answered.is_empty() {
                // All of them, even if one is ready: so that all are asked at once, before anything is decided.
                let answered = &mut self.answered;
                self.asked.retain_mut(|(node, question)| match question.as_mut().poll(cx) {
                    Poll::Ready(answer) => {
                        answered.push_back((*node, answer));
                        false
                    }
                    Poll::Pending => true,
                });
            }
            match self.answered.pop_front() {
                None if !self.asked.is_empty() => Poll::Pending,
                answer => Poll::Ready(answer),
            }
        })
        .await
    }
}
