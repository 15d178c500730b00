//! The desk: one writer at a time, and whoever comes meanwhile shares the next commit.
//!
//! A caller that finds the desk free does its own transaction, there and then, in its own future: no other thread is
//! involved, and nothing in it waits for a disk. In a crowd (another task was here a moment ago) it leaves its job in
//! the queue and lets the others do the same; the first of them whose turn comes again does all that is queued in one
//! transaction. Whoever finds the desk taken leaves its job to the clerk, a thread that is started when it is first
//! needed. The clerk also does what may take long: waiting for another process's lock, commits that wait for the
//! disk, writing back the log, opening a file that was replaced.

mod clerk;
mod job;

use std::{
    future::poll_fn,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use leasehold_core::{Effect, Error, ErrorKind, Result, Timestamp};
use tokio::sync::oneshot;

pub(crate) use self::job::Work;
use self::job::{Done, Job, Queued};
use crate::{
    bell,
    error::Fault,
    ledger::News,
    site::Site,
    store::{self, Store},
};

/// Jobs in one transaction that a caller does for others: it is in an async runtime, and not to stay there long.
const LED_MAX: usize = 64;
/// Times in a row that a task may go first. Work that never yields would starve the other tasks of its runtime.
const STREAK_MAX: u32 = 32;
/// Another task came this short a while ago: there is a crowd.
const CROWD: Duration = Duration::from_millis(2);

/// One writer at a time.
pub(crate) struct Desk {
    shared: Arc<Shared>,
}

struct Shared {
    site: Arc<Site>,
    state: Mutex<State>,
    called: Condvar,
}

struct State {
    /// None while someone is at the desk.
    store: Option<Store>,
    queue: Vec<Box<dyn Job>>,
    /// Someone in the queue counts on the clerk.
    wants_clerk: bool,
    has_clerk: bool,
    /// The log is to be written back: the clerk is the next one at the desk. Without this it would be woken in vain
    /// by every commit of a caller who is always a little faster.
    clerk_is_next: bool,
    closing: bool,
    last: Option<Visit>,
}

/// Who came last, and when.
struct Visit {
    waker: Waker,
    when: Timestamp,
    /// How many times in a row.
    streak: u32,
}

impl Desk {
    pub(crate) fn new(site: Arc<Site>, store: Store) -> Desk {
        let state = State {
            store: Some(store),
            queue: Vec::new(),
            wants_clerk: false,
            has_clerk: false,
            clerk_is_next: false,
            closing: false,
            last: None,
        };
        Desk { shared: Arc::new(Shared { site, state: Mutex::new(state), called: Condvar::new() }) }
    }

    /// Does the work in a transaction: alone if the desk is free, with others if not.
    ///
    /// # Cancel safety
    /// Once dropped, the work may still be done.
    pub(crate) async fn run<W: Work>(&self, work: W) -> Result<W::Reply> {
        let shared = &self.shared;
        let crowded = poll_fn(|cx| Poll::Ready(shared.is_crowded(cx.waker()))).await;
        let is_long = shared.site.config.is_full() || work.is_long();
        let tried = if crowded || is_long { Tried::Taken(work) } else { shared.alone(work) };
        let (work, by_clerk) = match tried {
            Tried::Done(answer) => return answer,
            Tried::Long(work) => (work, true),
            Tried::Taken(work) => (work, is_long),
        };
        let (sender, mut reply) = oneshot::channel();
        shared.enqueue(Box::new(Queued::new(work, sender)), by_clerk)?;
        if !by_clerk {
            let place = InQueue(shared);
            yield_once().await;
            std::mem::forget(place);
            // If someone has done it meanwhile, those who are in the queue now have not had their second turn.
            if let Ok(answer) = reply.try_recv() {
                return answer;
            }
            shared.lead();
        }
        reply.await.unwrap_or_else(|_| Err(abandoned()))
    }
}

/// What came of trying to do work alone.
enum Tried<W: Work> {
    Done(Result<W::Reply>),
    /// Another process is at it, or the disk is full: it will take its time.
    Long(W),
    /// Someone else is at the desk.
    Taken(W),
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.called.notify_all();
    }
}

/// Lets every other task that is ready have its turn.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Whoever leaves before its turn comes again leaves the queue to the clerk: others may count on it.
struct InQueue<'a>(&'a Arc<Shared>);

impl Drop for InQueue<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.wants_clerk = true;
        // Without a clerk the next one to come does what is queued.
        let _ = self.0.call_clerk(&mut state);
    }
}

fn abandoned() -> Error {
    Error::new(ErrorKind::Unavailable, "the clerk of the desk is gone").with_effect(Effect::Unknown)
}

/// The store, on loan to whoever is at the desk; it comes back whatever happens to them.
struct Loan<'a> {
    shared: &'a Arc<Shared>,
    store: Option<Store>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let due = self.store.as_ref().is_some_and(Store::is_checkpoint_due);
        state.store = self.store.take();
        if due || state.wants_clerk {
            // Without a clerk nobody counts on it, and SQLite itself writes back the log when it grows too long.
            let called = self.shared.call_clerk(&mut state).is_ok();
            state.clerk_is_next = due && called;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another task was here a moment ago, or this one so often that another may be waiting for its turn.
    fn is_crowded(&self, waker: &Waker) -> bool {
        let when = self.site.environment.now();
        let mut state = self.state();
        match &mut state.last {
            // By its data alone: one task's wakers may have several tables.
            Some(last) if last.waker.data() == waker.data() => {
                last.when = when;
                last.streak = (last.streak + 1) % STREAK_MAX;
                last.streak == 0
            }
            last => {
                let before = last.replace(Visit { waker: waker.clone(), when, streak: 0 });
                before.is_some_and(|before| before.when.until(when) < CROWD)
            }
        }
    }

    /// Does it here and now if the desk is free.
    fn alone<W: Work>(self: &Arc<Self>, work: W) -> Tried<W> {
        let Some(mut loan) = self.borrow() else { return Tried::Taken(work) };
        let Some(store) = &mut loan.store else { return Tried::Taken(work) };
        let mut reply = None;
        let done = store.transact(&self.site, |ledger| {
            reply = Some(work.run(ledger)?);
            Ok(())
        });
        drop(loan);
        match (done, reply) {
            (Ok(news), Some(reply)) => {
                self.tell(&news);
                Tried::Done(Ok(reply))
            }
            (Err(fault), _) if is_long(&fault) => Tried::Long(work),
            (Err(fault), _) => Tried::Done(Err(fault.into_error(&self.site.path))),
            (Ok(_), None) => Tried::Done(Err(abandoned())),
        }
    }

    /// Does what is queued if the desk is free; if not, leaves it to the clerk.
    fn lead(self: &Arc<Self>) {
        let Some((mut loan, mut jobs)) = self.borrow_for_queue() else { return };
        jobs.retain(|job| !job.is_forsaken());
        let Some(store) = &mut loan.store else { return };
        match store.transact(&self.site, |ledger| jobs.iter_mut().try_for_each(|job| job.run(ledger))) {
            Ok(news) => {
                drop(loan);
                Done::all(jobs, &Ok(()));
                self.tell(&news);
            }
            Err(fault) if is_long(&fault) || (jobs.len() > 1 && fault.is_of_one_job()) => {
                let mut state = self.state();
                state.queue.splice(0..0, jobs);
                state.wants_clerk = true;
            }
            Err(fault) => Done::all(jobs, &Err(fault.into_error(&self.site.path))),
        }
    }

    /// The store, if nobody else has it or wants it, and nothing about it takes long.
    fn borrow(self: &Arc<Self>) -> Option<Loan<'_>> {
        let mut state = self.state();
        let free = state.queue.is_empty() && !state.clerk_is_next;
        let store = state.store.take_if(|store| free && !store.is_replaced())?;
        Some(Loan { shared: self, store: Some(store) })
    }

    /// The store and the head of the queue. If there is a queue but no store for it, the clerk has to see to it.
    fn borrow_for_queue(self: &Arc<Self>) -> Option<(Loan<'_>, Vec<Box<dyn Job>>)> {
        let mut state = self.state();
        if state.queue.is_empty() {
            return None;
        }
        let short = state.queue.iter().take(LED_MAX).take_while(|job| !job.is_long()).count();
        let may = short > 0 && !state.clerk_is_next;
        match state.store.take_if(|store| may && !store.is_replaced()) {
            Some(store) => Some((Loan { shared: self, store: Some(store) }, state.take(short))),
            None => {
                state.wants_clerk = true;
                // Without a clerk the next one to come does what is queued.
                let _ = self.call_clerk(&mut state);
                None
            }
        }
    }

    fn tell(&self, news: &News) {
        self.site.waiters.tell(news);
        if news.abroad {
            bell::ring(&self.site.beside(store::BELL));
        }
    }

    fn enqueue(self: &Arc<Self>, job: Box<dyn Job>, by_clerk: bool) -> Result<()> {
        let mut state = self.state();
        if by_clerk {
            state.wants_clerk = true;
            self.call_clerk(&mut state)?;
        }
        state.queue.push(job);
        Ok(())
    }
}

/// Whether another try may succeed, but may also take its time.
fn is_long(fault: &Fault) -> bool {
    fault.is_busy() || fault.is_full()
}

impl State {
    fn take(&mut self, most: usize) -> Vec<Box<dyn Job>> {
        let most = self.queue.len().min(most);
        let jobs = self.queue.drain(..most).collect();
        self.wants_clerk &= !self.queue.is_empty();
        jobs
    }
}
