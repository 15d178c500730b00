//! The clerk: the thread that does what may take long, and what comes while the desk is taken.

use std::{
    sync::{Arc, PoisonError},
    thread,
    time::Duration,
};

use leasehold_core::{Error, ErrorKind, Result};

use super::{
    Loan, Shared, State,
    job::{Done, Job},
};
use crate::{error::Fault, ledger::News, store::Store};

/// Jobs in one transaction.
const BATCH_MAX: usize = 256;
/// How long to pause before the lock of another process is tried again: from, to.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_micros(500);

impl Shared {
    /// Has the clerk look at the desk, who is started if there is none yet.
    pub(super) fn call_clerk(self: &Arc<Self>, state: &mut State) -> Result<()> {
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
        while let Some((mut loan, jobs)) = self.next() {
            let Some(store) = &mut loan.store else { continue };
            let (done, news) = self.handle(store, jobs);
            if store.is_checkpoint_due() {
                done.into_iter().for_each(Done::answer);
                store.checkpoint(&self.site);
            } else {
                // The desk is free before they hear: a lone caller then does its next work itself.
                drop(loan);
                done.into_iter().for_each(Done::answer);
            }
            news.iter().for_each(|news| self.tell(news));
        }
    }

    /// The store and what is to be done with it; none when the desk is closed.
    fn next(self: &Arc<Self>) -> Option<(Loan<'_>, Vec<Box<dyn Job>>)> {
        let mut state = self.state();
        loop {
            let wanted = state.wants_clerk || state.store.as_ref().is_some_and(Store::is_checkpoint_due);
            if wanted && let Some(store) = state.store.take() {
                state.clerk_is_next = false;
                let jobs = state.take(BATCH_MAX);
                return Some((Loan { shared: self, store: Some(store) }, jobs));
            }
            if state.closing {
                return None;
            }
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn handle(&self, store: &mut Store, mut jobs: Vec<Box<dyn Job>>) -> (Vec<Done>, Vec<News>) {
        let (mut done, mut news) = (Vec::with_capacity(jobs.len()), Vec::new());
        jobs.retain(|job| !job.is_forsaken());
        if store.is_replaced()
            && !jobs.is_empty()
            && let Err(error) = store.reopen(&self.site)
        {
            jobs.drain(..).for_each(|job| done.push(Done::new(job, Err(error.clone()))));
        }
        if !jobs.is_empty() {
            self.handle_all(store, jobs, &mut done, &mut news);
        }
        (done, news)
    }

    /// All of them in one transaction; if one of them makes that fail, each in its own.
    fn handle_all(
        &self,
        store: &mut Store,
        mut jobs: Vec<Box<dyn Job>>,
        done: &mut Vec<Done>,
        news: &mut Vec<News>,
    ) {
        match self.persevere(store, &mut jobs) {
            Ok(told) => {
                news.push(told);
                done.extend(jobs.into_iter().map(|job| Done::new(job, Ok(()))));
            }
            Err(fault) if jobs.len() > 1 && fault.is_of_one_job() => {
                jobs.into_iter().for_each(|job| self.handle_all(store, vec![job], done, news));
            }
            Err(fault) => {
                let error = fault.into_error(&self.site.path);
                done.extend(jobs.into_iter().map(|job| Done::new(job, Err(error.clone()))));
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
                    store.checkpoint(&self.site);
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
        (state.wants_clerk, state.clerk_is_next) = (false, false);
        let forsaken = std::mem::take(&mut state.queue);
        drop(state);
        drop(forsaken);
    }
}
