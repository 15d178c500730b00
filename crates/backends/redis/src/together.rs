//! Several futures at once, in one task.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

type Running<'a, T> = Vec<Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>>;

/// Resolves with the outputs of all, in order.
pub(crate) async fn all<'a, T: Send>(futures: Vec<impl Future<Output = T> + Send + 'a>) -> Vec<T> {
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    run(futures, |number, output| {
        done[number] = Some(output);
        false
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Resolves once `enough` have succeeded, or all are done: what there is then.
pub(crate) async fn some<'a, T: Send, E: Send>(
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

/// Polls all until all are done, or `done` says that this is enough.
async fn run<'a, T: Send>(
    futures: Vec<impl Future<Output = T> + Send + 'a>,
    mut done: impl FnMut(usize, T) -> bool,
) {
    let mut running: Running<'a, T> =
        futures.into_iter().map(|future| Some(Box::pin(future) as Pin<Box<_>>)).collect();
    poll_fn(|cx| {
        let mut enough = false;
        for (number, slot) in running.iter_mut().enumerate() {
            let Some(future) = slot else { continue };
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                *slot = None;
                enough |= done(number, output);
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
            Poll::Pending => panic!("it waits"),
        }
    }

    #[test]
    fn all_are_in_order_and_some_are_enough() {
        assert_eq!(now(all(vec![ready(1), ready(2), ready(3)])), [1, 2, 3]);
        type Asked = Pin<Box<dyn Future<Output = Result<u8, &'static str>> + Send>>;
        let asked: Vec<Asked> = vec![Box::pin(pending()), Box::pin(ready(Err("no"))), Box::pin(ready(Ok(7)))];
        assert_eq!(now(some(asked, 1)), (vec![7], vec!["no"]));
        assert_eq!(now(some(vec![ready(Err::<u8, _>("no"))], 1)), (vec![], vec!["no"]));
    }
}
