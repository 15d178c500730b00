//! From a wish to a hold.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Backend, Client, Clock as _, Error, ErrorKind, LeaseRequest, Purpose, Resource, SystemClock, Timestamp,
    TokenKind,
};
use rustix::process::Signal;

use super::{Run, nested, nested::Nesting, terms::Permits, terms::Terms, waiting};
use crate::{
    commands::Context,
    exit::Failure,
    hold::{Hold, Leased},
};

/// What became of it.
pub(super) enum Claimed {
    Held(Box<dyn Hold>),
    /// Another run has succeeded not long ago.
    AlreadyDone,
    Interrupted(Signal),
}

/// How it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Alone.
    Whole,
    /// Alone, where others read.
    Write,
    /// With others who read.
    Read,
    /// Some of several.
    Permits(Permits),
}

impl Share {
    pub(super) fn of(run: &Run) -> Share {
        match run.permits {
            Some(permits) => Share::Permits(permits),
            None if run.shared => Share::Read,
            None => Share::Whole,
        }
    }

    /// The same wish, where others use the resource with another capacity. `flock -s` and `flock -x` of one file go
    /// together, so do ours: whoever wants it alone writes where others read; whoever reads takes it alone where
    /// others know it so.
    fn among(self, capacity: Option<u32>) -> Option<Share> {
        match (self, capacity) {
            (Share::Whole, Some(u32::MAX)) => Some(Share::Write),
            (Share::Write | Share::Read, Some(1)) => Some(Share::Whole),
            _ => None,
        }
    }

    pub(super) fn is_exclusive(self) -> bool {
        match self {
            Share::Whole | Share::Write => true,
            Share::Read => false,
            Share::Permits(permits) => permits.weight == permits.capacity,
        }
    }
}

/// Claims it: within a run that holds it already, or as a newcomer.
pub(super) async fn claim(
    run: &Run,
    terms: &Terms,
    context: &Context,
    backend: &Arc<dyn Backend>,
    client: &Client,
) -> Result<Claimed, Failure> {
    match nested::enter(run, context, backend).await? {
        Nesting::Within(hold) => return Ok(Claimed::Held(hold)),
        Nesting::Outside => {}
    }
    let claimant = Claimant { run, terms, client, started: SystemClock.now() };
    let claimed = tokio::select! {
        biased;
        held = claimant.seek() => match held {
            Err(error) if run.once_per.is_some() && is_kept(&error) => Claimed::AlreadyDone,
            held => Claimed::Held(held.map_err(|error| claimant.failure(error))?),
        },
        () = waiting::tell(run, context, client) => unreachable!("who waits is told until the wait is over"),
        () = waiting::done_elsewhere(run, backend, client) => Claimed::AlreadyDone,
    };
    if matches!(claimed, Claimed::AlreadyDone) {
        context.output.say(&format!("{}: done not long ago", run.resource));
    }
    Ok(claimed)
}

/// Whether nobody holds it: it stays closed for a while.
fn is_kept(error: &Error) -> bool {
    error.busy().is_some_and(|busy| busy.holders.iter().any(|by| by.kept))
}

struct Claimant<'a> {
    run: &'a Run,
    terms: &'a Terms,
    client: &'a Client,
    started: Timestamp,
}

/// How often others may change the way in which they use the resource while we ask.
const TURNS: usize = 100;

impl Claimant<'_> {
    async fn seek(&self) -> Result<Box<dyn Hold>, Error> {
        let mut share = Share::of(self.run);
        let mut answer = self.ask(share).await;
        for _ in 0..TURNS {
            let Err(error) = &answer else { break };
            let mismatch = Some(error).filter(|error| error.kind() == ErrorKind::Mismatch);
            let wish = Share::of(self.run);
            let back = if share == wish { None } else { Some(wish) };
            let Some(other) = mismatch.and_then(|error| share.among(error.capacity()).or(back)) else {
                break;
            };
            share = other;
            answer = self.ask(share).await;
        }
        answer
    }

    async fn ask(&self, share: Share) -> Result<Box<dyn Hold>, Error> {
        let resource = &self.run.resource;
        let (kind, id) = (resource.kind(), resource.id());
        let client = of_namespace(self.client, resource);
        match share {
            Share::Whole => self.acquire(client.lease(kind, &id)).await,
            Share::Write => self.acquire(client.rwlock(kind, &id).write()).await,
            Share::Read => self.acquire(client.rwlock(kind, &id).read()).await,
            Share::Permits(permits) => {
                let semaphore = client.semaphore(kind, &id, permits.capacity);
                self.acquire(semaphore.permits(permits.weight)).await
            }
        }
    }

    async fn acquire<T: TokenKind>(&self, request: LeaseRequest<T>) -> Result<Box<dyn Hold>, Error> {
        let events = self.client.events(); // from before the grant: no renewal is missed
        let lease = self.dress(request).acquire().await?;
        Ok(Box::new(Leased::new(lease, events)))
    }

    fn dress<T: TokenKind>(&self, request: LeaseRequest<T>) -> LeaseRequest<T> {
        let run = self.run;
        let mut request = request.ttl(self.terms.ttl).renew(!run.no_renew);
        request = match if run.nonblock { Some(Duration::ZERO) } else { run.wait } {
            None => request.wait_forever(),
            Some(wait) => request.wait(wait.saturating_sub(self.started.until(SystemClock.now()))),
        };
        if run.fair {
            request = request.fair();
        }
        if let Some(max_hold) = run.max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(at_least) = run.at_least {
            request = request.at_least(at_least);
        }
        if let Some(note) = &run.note {
            request = request.note(note);
        }
        if run.correctness {
            request = request.purpose(Purpose::Correctness);
        }
        if run.fenced { request.fenced() } else { request }
    }

    fn failure(&self, error: Error) -> Failure {
        let contended = error.kind() == ErrorKind::Contended;
        let mut failure = Failure::from(error);
        if contended {
            failure =
                failure.hint(format!("wait longer with -w, or see leasehold why {}", self.run.resource));
        }
        match self.run.conflict_exit_code {
            Some(code) if contended => failure.with_code(code),
            _ => failure,
        }
    }
}

/// The client where this resource is.
pub(super) fn of_namespace(client: &Client, resource: &Resource) -> Client {
    resource.namespace().map_or_else(|| client.clone(), |namespace| client.namespace(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_and_writers_find_together() {
        assert_eq!(Share::Whole.among(Some(u32::MAX)), Some(Share::Write));
        assert_eq!(Share::Read.among(Some(1)), Some(Share::Whole));
        assert_eq!(Share::Write.among(Some(1)), Some(Share::Whole));
        let three = Permits { weight: 1, capacity: 3 };
        for (share, capacity) in [(Share::Whole, 5), (Share::Read, 5), (Share::Permits(three), 1)] {
            assert_eq!(share.among(Some(capacity)), None);
        }
    }
}
