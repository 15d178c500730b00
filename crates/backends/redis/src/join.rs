//! Polls several futures in one task.
//!
//! The order of polling is fixed, so that a simulated run can be replayed from its seed.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

type Running<'a, T> = Vec<Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>>;

/// Resolves with the outputs of all futures, in their order.
pub(crate) async fn join_all<'a, T: Send>(futures: Vec<impl Future<Output = T> + Send + 'a>) -> Vec<T> {
    let mut outputs: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    run(futures, |number, output| {
        outputs[number] = Some(output);
        false
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Resolves when `enough` futures have succeeded or all have ended, with the successes and the failures so
/// far. The other futures are dropped.
pub(crate) async fn join_until<'a, T: Send, E: Send>(
    futures: Vec<impl Future<Output = Result<T, E>> + Send + 'a>,
    enough: usize,
) -> (Vec<T>, Vec<E>) {
    let (mut outputs, mut failures) = (Vec::new(), Vec::new());
    run(futures, |_, output| {
        match output {
            Ok(output) => outputs.push(output),
            Err(error) => failures.push(error),
        }
        outputs.len() >= enough
    })
    .await;
    (outputs, failures)
}

/// Polls all futures until all have ended, or `on_output` returns true.
async fn run<'a, T: Send>(
    futures: Vec<impl Future<Output = T> + Send + 'a>,
    mut on_output: impl FnMut(usize, T) -> bool,
) {
    // Boxed, because the futures are polled through a list from which ended ones are dropped.
    let mut running: Running<'a, T> =
        futures.into_iter().map(|future| Some(Box::pin(future) as Pin<Box<_>>)).collect();
    poll_fn(|cx| {
        let mut enough = false;
        for (number, slot) in running.iter_mut().enumerate() {
            let Some(future) = slot else { continue };
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                *slot = None;
                enough |= on_output(number, output);
            }
        }
        if enough || running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it is not ready"),
        }
    }

    #[test]
    fn join_all_keeps_the_order_and_join_until_stops_when_enough_succeeded() {
        assert_eq!(now(join_all(vec![ready(1), ready(2), ready(3)])), [1, 2, 3]);
        type Asking = Pin<Box<dyn Future<Output = Result<u8, &'static str>> + Send>>;
        let asking: Vec<Asking> =
            vec![Box::pin(pending()), Box::pin(ready(Err("no"))), Box::pin(ready(Ok(7)))];
        assert_eq!(now(join_until(asking, 1)), (vec![7], vec!["no"]));
        assert_eq!(now(join_until(vec![ready(Err::<u8, _>("no"))], 1)), (vec![], vec!["no"]));
    }
}
