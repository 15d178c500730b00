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
pub(super) struct Runtime(Handle);

impl Runtime {
    pub(super) fn get() -> Result<Runtime> {
        let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(runtime.clone());
        }
        let started = start().map_err(|error| {
            let message = format!("cannot start the thread that renews leases: {error}");
            Error::new(ErrorKind::Unavailable, message)
        })?;
        Ok(runtime.insert(started).clone())
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.0
    }

    /// Polls the future on this thread until it is ready.
    ///
    /// Not by tokio's `block_on`, which panics inside of a runtime: the future only needs a waker, because the timers and
    /// connections that it waits for belong to the thread of this runtime.
    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        let _entered = self.0.enter();
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
        System::on(self.0.clone())
    }
}

fn start() -> std::io::Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let drive = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("leasehold".to_owned()).spawn(drive)?;
    Ok(Runtime(handle))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
