//! The desk: one writer at a time, and whoever comes meanwhile shares the next commit.
//!
//! A caller that finds the desk free does its own transaction, there and then, in its own future: no other thread is
//! involved, and nothing in it waits for a disk. Everyone who comes while the desk is taken leaves a job in the
//! queue; a clerk, a thread that is started when it is first needed, does all that is queued in one transaction.
//! The clerk also does what may take long: waiting for another process's lock, commits that wait for the disk,
//! writing back the log, opening a file that was replaced.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use leasehold_core::{Effect, Error, ErrorKind, Result};
use tokio::sync::oneshot;

use crate::{
    bell,
    error::Fault,
    ledger::{Ledger, News, Step},
    site::Site,
    store::{self, Store},
};

/// Jobs in one transaction.
const BATCH_MAX: usize = 256;
/// How long to pause before the lock of another process is tried again: from, to.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// A verb, as the ledger does it.
pub(crate) trait Work: Send + 'static {
    /// Its answer.
    type Reply: Send;
    /// Does it. May be called again if the transaction that it was in came to nothing.
    fn run(&self, ledger: &mut Ledger<'_>) -> Step<Self::Reply>;
}

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
    has_clerk: bool,
    closing: bool,
}

impl Desk {
    pub(crate) fn new(site: Arc<Site>, store: Store) -> Desk {
        let state = State { store: Some(store), queue: Vec::new(), has_clerk: false, closing: false };
        Desk { shared: Arc::new(Shared { site, state: Mutex::new(state), called: Condvar::new() }) }
    }

    /// Does the work in a transaction: alone if the desk is free, with others if not.
    ///
    /// # Cancel safety
    /// Once dropped, the work may still be done.
    pub(crate) async fn run<W: Work>(&self, work: W) -> Result<W::Reply> {
        let work = match self.shared.alone(work) {
            Ok(answer) => return answer,
            Err(work) => work,
        };
        let (sender, reply) = oneshot::channel();
        self.shared.enqueue(Box::new(Queued { work, reply: None, sender }))?;
        reply.await.unwrap_or_else(|_| Err(abandoned()))
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.called.notify_all();
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
        if due || !state.queue.is_empty() {
            // Without a clerk nobody is in the queue, and SQLite itself writes back the log when it grows too long.
            let _ = self.shared.call_clerk(&mut state);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does it here and now if the desk is free and nothing in it can take long; else gives it back.
    fn alone<W: Work>(self: &Arc<Self>, work: W) -> Result<Result<W::Reply>, W> {
        if self.site.config.is_full() {
            return Err(work);
        }
        let mut loan = {
            let mut state = self.state();
            let free =
                state.queue.is_empty() && state.store.as_ref().is_some_and(|store| !store.is_replaced());
            match state.store.take_if(|_| free) {
                Some(store) => Loan { shared: self, store: Some(store) },
                None => return Err(work),
            }
        };
        let Some(store) = &mut loan.store else { return Err(work) };
        let mut reply = None;
        let done = store.transact(&self.site, |ledger| {
            reply = Some(work.run(ledger)?);
            Ok(())
        });
        drop(loan);
        match (done, reply) {
            (Ok(news), Some(reply)) => {
                self.tell(&news);
                Ok(Ok(reply))
            }
            (Err(fault), _) if fault.is_busy() || fault.is_full() => Err(work),
            (Err(fault), _) => Ok(Err(fault.into_error(&self.site.path))),
            (Ok(_), None) => Ok(Err(abandoned())),
        }
    }

    fn tell(&self, news: &News) {
        self.site.waiters.tell(news);
        if news.abroad {
            bell::ring(&self.site.beside(store::BELL));
        }
    }

    fn enqueue(self: &Arc<Self>, job: Box<dyn Job>) -> Result<()> {
        let mut state = self.state();
        self.call_clerk(&mut state)?;
        state.queue.push(job);
        Ok(())
    }

    /// Has the clerk look at the desk, who is started if there is none yet.
    fn call_clerk(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if !state.has_clerk {
            let shared = Arc::clone(self);
            let clerk = thread::Builder::new().name("leasehold-sqlite".to_owned());
            let started = clerk.spawn(move || shared.serve());
            started.map_err(|e| Error::new(ErrorKind::Unavailable, "cannot start a thread").because(e))?;
            state.has_clerk = true;
        }
        if state.store.is_some() {
            self.called.notify_one();
        }
        Ok(())
    }

    /// The clerk's day.
    fn serve(self: &Arc<Self>) {
        let _duty = Duty(self);
        while let Some((mut loan, mut jobs)) = self.next() {
            let Some(store) = &mut loan.store else { continue };
            if store.is_replaced() {
                match Store::open(&self.site) {
                    Ok(opened) => *store = opened,
                    Err(error) => {
                        jobs.into_iter().for_each(|job| job.answer(Err(error.clone())));
                        continue;
                    }
                }
            }
            jobs.retain(|job| !job.is_forsaken());
            if !jobs.is_empty() {
                self.serve_all(store, jobs);
            }
            if store.is_checkpoint_due() {
                store.checkpoint();
            }
        }
    }

    /// The store and what is to be done with it; none when the desk is closed.
    fn next(self: &Arc<Self>) -> Option<(Loan<'_>, Vec<Box<dyn Job>>)> {
        let mut state = self.state();
        loop {
            let wanted =
                !state.queue.is_empty() || state.store.as_ref().is_some_and(Store::is_checkpoint_due);
            if wanted && let Some(store) = state.store.take() {
                let most = state.queue.len().min(BATCH_MAX);
                let jobs = state.queue.drain(..most).collect();
                return Some((Loan { shared: self, store: Some(store) }, jobs));
            }
            if state.closing {
                return None;
            }
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// All of them in one transaction; if one of them makes that fail, each in its own.
    fn serve_all(&self, store: &mut Store, mut jobs: Vec<Box<dyn Job>>) {
        match self.persevere(store, &mut jobs) {
            Ok(news) => {
                jobs.into_iter().for_each(|job| job.answer(Ok(())));
                self.tell(&news);
            }
            Err(fault) if jobs.len() > 1 && fault.effect() == Effect::None && !fault.is_busy() => {
                jobs.into_iter().for_each(|job| self.serve_all(store, vec![job]));
            }
            Err(fault) => {
                let error = fault.into_error(&self.site.path);
                jobs.into_iter().for_each(|job| job.answer(Err(error.clone())));
            }
        }
    }

    /// Tries while another process has the lock, as long as the patience lasts; makes room if there is none.
    fn persevere(&self, store: &mut Store, jobs: &mut [Box<dyn Job>]) -> Result<News, Fault> {
        let (mut patience, mut pause) = (self.site.config.patience(), PAUSE_MIN);
        let mut made_room = false;
        loop {
            let done =
                store.transact(&self.site, |ledger| jobs.iter_mut().try_for_each(|job| job.run(ledger)));
            match done {
                Err(fault) if fault.is_busy() && !patience.is_zero() => {
                    thread::sleep(pause);
                    patience = patience.saturating_sub(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                // The log can begin anew, in the room that it has, once it is written back.
                Err(fault) if fault.is_full() && !made_room => {
                    store.checkpoint();
                    made_room = true;
                }
                done => return done,
            }
        }
    }
}

/// A clerk is there. If a bug ends it, those in the queue are told, and the next job gets another one.
struct Duty<'a>(&'a Shared);

impl Drop for Duty<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.has_clerk = false;
        let forsaken = std::mem::take(&mut state.queue);
        drop(state);
        drop(forsaken);
    }
}

/// Work in the queue.
trait Job: Send {
    fn run(&mut self, ledger: &mut Ledger<'_>) -> Step<()>;
    /// Whether nobody waits for the answer any more.
    fn is_forsaken(&self) -> bool;
    fn answer(self: Box<Self>, outcome: Result<()>);
}

struct Queued<W: Work> {
    work: W,
    reply: Option<W::Reply>,
    sender: oneshot::Sender<Result<W::Reply>>,
}

impl<W: Work> Job for Queued<W> {
    fn run(&mut self, ledger: &mut Ledger<'_>) -> Step<()> {
        self.reply = Some(self.work.run(ledger)?);
        Ok(())
    }

    fn is_forsaken(&self) -> bool {
        self.sender.is_closed()
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let Queued { reply, sender, .. } = *self;
        // Whoever asked may have gone meanwhile.
        let _ = sender.send(outcome.and_then(|()| reply.ok_or_else(abandoned)));
    }
}
