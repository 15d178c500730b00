//! A request to stop, for loops that run for ever: they finish what they do, and return.

use std::{future::Future, pin::Pin};

use crate::race::{Either, first};

/// A future whose end asks a loop to stop. Once it has ended, it is not polled again.
#[derive(Debug)]
pub struct StopRequest<S> {
    /// `None` once it has ended.
    stop: Option<Pin<Box<S>>>,
}

impl<S: Future> StopRequest<S> {
    /// Asks to stop when this future ends, whatever its output.
    pub fn new(stop: S) -> StopRequest<S> {
        StopRequest { stop: Some(Box::pin(stop)) }
    }

    /// Awaits the work; `None` as soon as a stop is asked. The work is dropped then, so it must be safe to drop.
    ///
    /// The request is looked at first: if a stop was asked before, the work is not even begun.
    pub async fn unless_asked<W: Future>(&mut self, work: W) -> Option<W::Output> {
        let stop = self.stop.as_mut()?;
        match first(stop, work).await {
            Either::Left(_) => {
                self.stop = None;
                None
            }
            Either::Right(output) => Some(output),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_stop_is_remembered_and_no_work_is_begun_after_it() {
        let (ask, asked) = tokio::sync::oneshot::channel::<()>();
        let mut stop = StopRequest::new(asked);
        assert_eq!(stop.unless_asked(ready(1)).await, Some(1));
        drop(ask); // the future has ended, with an error: that is a stop, too
        assert_eq!(stop.unless_asked(ready(2)).await, None);
        assert_eq!(stop.unless_asked(ready(3)).await, None);
        assert_eq!(StopRequest::new(ready(())).unless_asked(pending::<()>()).await, None);
    }
}
