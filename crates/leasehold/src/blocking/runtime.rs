//! The thread that drives timers, connections and renewals for all blocking clients of the process.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use leasehold_core::{Environment as _, Error, ErrorKind, Result};
use leasehold_support::race::{Either, first};
use tokio::runtime::{Builder, Handle};

use crate::system::System;

/// The runtime of the process. Its thread is started by the first call, and lives as long as the process.
static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// A tokio runtime that a thread of its own drives.
#[derive(Clone, Debug)]
pub(super) struct Runtime {
    handle: Handle,
    /// The process that has the thread. A process that it forks has only the thread that called `fork`.
    process: u32,
}

impl Runtime {
    pub(super) fn get() -> Result<Runtime> {
        let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.as_ref().filter(|runtime| runtime.check_process().is_ok()) {
            return Ok(runtime.clone());
        }
        let started = start().map_err(|error| {
            let message = format!("cannot start the thread that renews leases: {error}");
            Error::new(ErrorKind::Unavailable, message)
        })?;
        Ok(runtime.insert(started).clone())
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Fails in a process that was forked after this runtime was started: nothing drives the runtime there, so a call would
    /// wait forever.
    pub(super) fn check_process(&self) -> Result<()> {
        check_process(self.process, std::process::id())
    }

    /// As `wait`, for a future that can fail. It is an error in a forked process.
    pub(super) fn call<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.check_process()?;
        self.wait(future)
    }

    /// Polls the future on this thread until it is ready. Panics in a forked process: without the thread of the runtime it
    /// would wait forever.
    ///
    /// Not by tokio's `block_on`, which panics inside of a runtime: the future only needs a waker, because the timers and
    /// connections that it waits for belong to the thread of this runtime.
    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        if let Err(error) = self.check_process() {
            panic!("{error}");
        }
        let _entered = self.handle.enter();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            thread::park();
        }
    }

    /// As `wait`, but no longer than this: `None` if the future is not ready then.
    pub(super) fn wait_at_most<F: Future>(&self, at_most: Duration, future: F) -> Option<F::Output> {
        let limit = self.environment().sleep(at_most);
        match self.wait(first(future, limit)) {
            Either::Left(output) => Some(output),
            Either::Right(()) => None,
        }
    }

    pub(super) fn sleep(&self, duration: Duration) {
        self.wait(self.environment().sleep(duration));
    }

    fn environment(&self) -> System {
        System::on(self.handle.clone())
    }
}

fn start() -> std::io::Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let drive = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("leasehold".to_owned()).spawn(drive)?;
    Ok(Runtime { handle, process: std::process::id() })
}

/// `started_by` is the process that has the thread of the runtime.
fn check_process(started_by: u32, current: u32) -> Result<()> {
    if started_by == current {
        return Ok(());
    }
    let message = format!(
        "process {started_by} made this blocking client, and process {current} is a fork of it: the thread that renews \
         leases exists only in process {started_by}. Connect again in process {current}, or fork before connecting"
    );
    Err(Error::new(ErrorKind::Invalid, message))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_gets_an_error_and_does_not_wait_forever() {
        assert!(check_process(7, 7).is_ok());
        let error = check_process(7, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("process 8 is a fork"), "{error}");

        let runtime = Runtime::get().unwrap();
        assert_eq!(runtime.call(async { Ok(3) }).unwrap(), 3);
        // No process has the id 0, so this is the runtime of another process.
        let inherited = Runtime { process: 0, ..runtime };
        let error = inherited.call(std::future::pending::<Result<()>>()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let waits = || inherited.wait(std::future::pending::<()>());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(waits)).is_err());
    }
}
