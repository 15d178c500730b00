//! A client of a server whose callers are not inside of a tokio runtime: also when a call has to connect anew.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use common::{TestServer, open_store};
use leasehold::{Released, blocking};

const LONG: Duration = Duration::from_secs(30);

/// The smallest executor: it knows nothing of tokio.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park();
    }
}

#[test]
fn a_call_outside_of_tokio_connects_anew_after_the_connection_broke() {
    let (_directory, path) = common::sqlite();
    let url = format!("sqlite:{}", path.display());
    let mut server = TestServer::start(open_store(url.clone()));
    let client = blocking::connect(&server.url()).unwrap();
    let leases = client.as_async();
    for _ in 0..3 {
        let lease = block_on(leases.lease("report", "1").ttl(LONG).wait(LONG).acquire()).unwrap();
        assert_eq!(block_on(lease.release()).unwrap(), Released::Now);
        let port = server.port;
        drop(server);
        server = TestServer::at(port, "a store of a test", open_store(url.clone()));
    }
}

#[test]
fn a_waiting_thread_is_woken_by_another_client() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(format!("sqlite:{}", path.display())));
    let [holder, waiter] = [0; 2].map(|_| blocking::connect(&server.url()).unwrap());
    let held = holder.lease("report", "3").ttl(LONG).acquire().unwrap();
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| waiter.lease("report", "3").wait(LONG).acquire().map(|lease| lease.token()));
        while holder.look("report", "3").unwrap().queue.is_empty() {
            thread::yield_now();
        }
        let first = held.token();
        held.release().unwrap();
        assert!(waiting.join().unwrap().unwrap() > first);
    });
}
