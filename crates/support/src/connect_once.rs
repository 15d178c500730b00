//! One caller connects; the others wait for the result.
//!
//! When a connection breaks, all callers notice at once. If each of them connected, a server that has just come back would
//! be met by hundreds of logins; if they tried one after the other, the last one would wait for the timeouts of all. So:
//!
//! 1. A caller that finds a usable connection takes it. No lock is held.
//! 2. Otherwise it waits for the lock. The caller that has the lock looks again, then connects.
//! 3. A caller that waited while another one failed gets that failure, and does not try again by itself.

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
};

use tokio::sync::Mutex;

/// Lets one caller connect at a time, and shares a failure with the callers that waited meanwhile.
///
/// The connection itself is kept by the caller, who knows when it is no longer usable.
#[derive(Debug)]
pub struct ConnectOnce<E> {
    /// Held by the caller that connects. Keeps the number and the error of the last attempt if that attempt failed.
    last_failure: Mutex<Option<(u64, E)>>,
    /// How many attempts have begun.
    attempts: AtomicU64,
    /// The number of the last attempt that has ended.
    last_ended: AtomicU64,
}

impl<E> Default for ConnectOnce<E> {
    fn default() -> ConnectOnce<E> {
        ConnectOnce {
            last_failure: Mutex::new(None),
            attempts: AtomicU64::new(0),
            last_ended: AtomicU64::new(0),
        }
    }
}

impl<E: Clone> ConnectOnce<E> {
    /// Returns what `current` finds, or else what `connect` makes.
    ///
    /// `current` must be cheap: it is called once without the lock and once with it. `connect` must store the new
    /// connection where `current` finds it.
    ///
    /// # Cancel safety
    /// If the caller that connects is dropped, the next one that waits connects instead.
    ///
    /// # Errors
    /// The error of `connect`, of this caller or of the one that this caller waited for.
    pub async fn get<T, F>(
        &self,
        current: impl Fn() -> Option<T>,
        connect: impl FnOnce() -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let ended_before = self.last_ended.load(Ordering::Acquire);
        self.connect_unless_failed_since(ended_before, current, connect).await
    }

    /// As [`ConnectOnce::get`], but a failure is shared only if its attempt began after this call.
    ///
    /// For a backend whose server may have moved meanwhile: an attempt that is already under way may lead to the old
    /// place. A caller waits for two attempts at the most: the one under way, and the next one.
    ///
    /// # Cancel safety
    /// As [`ConnectOnce::get`].
    ///
    /// # Errors
    /// As [`ConnectOnce::get`].
    pub async fn get_fresh<T, F>(
        &self,
        current: impl Fn() -> Option<T>,
        connect: impl FnOnce() -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let begun_before = self.attempts.load(Ordering::Acquire);
        self.connect_unless_failed_since(begun_before, current, connect).await
    }

    /// Returns the failure of the last attempt if its number is greater than `attempt`; otherwise connects.
    async fn connect_unless_failed_since<T, F>(
        &self,
        attempt: u64,
        current: impl Fn() -> Option<T>,
        connect: impl FnOnce() -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        if let Some(connection) = current() {
            return Ok(connection);
        }
        let mut last_failure = self.last_failure.lock().await;
        if let Some(connection) = current() {
            return Ok(connection);
        }
        if let Some((_, failure)) = last_failure.as_ref().filter(|(number, _)| *number > attempt) {
            return Err(failure.clone());
        }
        let number = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let result = connect().await;
        self.last_ended.store(number, Ordering::Release);
        *last_failure = result.as_ref().err().map(|error| (number, error.clone()));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex as StdMutex};
    use tokio::sync::Notify;

    /// Starts ten callers that all wait for one attempt, ends that attempt with `result`, and counts the attempts.
    #[expect(clippy::disallowed_methods, reason = "a test on its own runtime")]
    async fn ten_callers(result: Result<u32, &'static str>) -> (Vec<Result<u32, &'static str>>, u64) {
        let (once, store) = (Arc::new(ConnectOnce::default()), Arc::new(StdMutex::new(None)));
        let (started, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let callers = (0..10).map(|_| {
            let (once, store) = (Arc::clone(&once), Arc::clone(&store));
            let (started, finish) = (Arc::clone(&started), Arc::clone(&finish));
            tokio::spawn(async move {
                let current = || *store.lock().unwrap();
                let connect = || async {
                    started.notify_one();
                    finish.notified().await;
                    *store.lock().unwrap() = result.ok();
                    result
                };
                once.get(current, connect).await
            })
        });
        let callers: Vec<_> = callers.collect();
        started.notified().await;
        // On this runtime of one thread every caller has been polled by now: nine of them wait for the lock.
        tokio::task::yield_now().await;
        finish.notify_one();
        let mut results = Vec::new();
        for caller in callers {
            results.push(caller.await.expect("a caller does not panic"));
        }
        (results, once.attempts.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn one_attempt_serves_all_that_wait() {
        for result in [Ok(7), Err("refused")] {
            let (results, attempts) = ten_callers(result).await;
            assert_eq!((results, attempts), (vec![result; 10], 1));
        }
    }

    #[tokio::test]
    async fn a_later_caller_tries_again_after_a_failure() {
        let once = ConnectOnce::default();
        let none = || None;
        assert_eq!(once.get(none, || async { Err::<u32, _>("refused") }).await, Err("refused"));
        assert_eq!(once.get(none, || async { Ok(7) }).await, Ok(7));
    }

    #[tokio::test]
    async fn when_the_connecting_caller_is_dropped_the_next_one_connects() {
        let once = ConnectOnce::<&str>::default();
        {
            let stuck = once.get(|| None::<u32>, std::future::pending);
            let mut stuck = std::pin::pin!(stuck);
            tokio::select! {
                biased;
                _ = &mut stuck => unreachable!("it never connects"),
                () = tokio::task::yield_now() => {}
            }
        }
        assert_eq!(once.get(|| None, || async { Ok(7) }).await, Ok(7));
    }

    #[tokio::test]
    async fn a_fresh_connection_ignores_the_failure_of_an_attempt_that_began_earlier() {
        let once = ConnectOnce::<&str>::default();
        let finish = Notify::new();
        let none = || None::<u32>;
        let early = once.get(none, || async {
            finish.notified().await;
            Err("refused")
        });
        let fresh = once.get_fresh(none, || async { Ok(7) });
        let finishes = async { finish.notify_one() };
        // Polled in this order: the early attempt is under way when the second caller comes.
        let (early, fresh, ()) = tokio::join!(biased; early, fresh, finishes);
        assert_eq!((early, fresh), (Err("refused"), Ok(7)));
        let failed = once.get_fresh(none, || async { Err("refused") });
        let shares = once.get_fresh(none, || async { Ok(7) });
        assert_eq!(tokio::join!(biased; failed, shares), (Err("refused"), Ok(7)), "it began before the call");
    }
}
