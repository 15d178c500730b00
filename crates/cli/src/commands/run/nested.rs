//! A run within a run that holds the same resource: it re-enters, once it has seen that the other one still holds it.
//!
//! What the runs around this one hold is in the environment, a line each. That alone proves nothing: it may be old, or
//! inherited by a daemon. So the backend is asked, and asked again as long as the command runs.

use std::{env, future::pending, sync::Arc, time::Duration};

use leasehold::{
    Backend, ClaimRef, Clock as _, EndReason, Error, FinishRequest, GoneReason, OwnerToken, Released,
    RenewRequest, Renewal, Resource, SystemClock, Timestamp, async_trait,
};
use tokio::sync::watch;

use super::{Run, claim::Share, terms::Permits};
use crate::{
    commands::Context,
    exit::Failure,
    hold::{Hold, Later},
};

/// What this run and those around it hold, the innermost last.
pub(super) const HELD: &str = "LEASEHOLD_HELD";

/// How often the backend is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// For how long: a renewal never shortens, so one this short only asks.
const ASK_FOR: Duration = Duration::from_millis(300);
const ASK_AT_MOST: Duration = Duration::from_secs(5);

/// Whether a run around this one holds it.
pub(super) enum Nesting {
    Within(Box<dyn Hold>),
    Outside,
}

/// One hold, as the environment has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) share: Share,
    pub(super) owner: OwnerToken,
    pub(super) token: String,
    pub(super) ttl: Duration,
    pub(super) resource: Resource,
    pub(super) store: String,
}

impl Entry {
    /// The line of this entry below those that are there.
    pub(super) fn append(&self) -> String {
        let mut lines = env::var(HELD).unwrap_or_default();
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines + &self.write()
    }

    fn write(&self) -> String {
        let (weight, capacity) = match self.share {
            Share::Whole => (1, 1),
            Share::Read => (1, u32::MAX),
            Share::Write => (u32::MAX, u32::MAX),
            Share::Permits(permits) => (permits.weight, permits.capacity),
        };
        let (owner, token, ttl) = (self.owner.reveal(), &self.token, self.ttl.as_millis());
        format!("{weight}|{capacity}|{owner}|{token}|{ttl}|{}|{}", self.resource.key(), self.store)
    }

    fn read(line: &str) -> Option<Entry> {
        let mut parts = line.splitn(7, '|');
        let (weight, capacity) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let share = match (weight, capacity) {
            (1, 1) => Share::Whole,
            (1, u32::MAX) => Share::Read,
            (u32::MAX, u32::MAX) => Share::Write,
            (weight, capacity) => Share::Permits(Permits { weight, capacity }),
        };
        let owner = parts.next()?.parse().ok()?;
        let token = parts.next()?.to_owned();
        let ttl = Duration::from_millis(parts.next()?.parse().ok()?);
        let resource = Resource::from_key(parts.next()?).ok()?;
        Some(Entry { share, owner, token, ttl, resource, store: parts.next()?.to_owned() })
    }

    /// Whether it is enough for this wish; an error if the wish would wait for its own end.
    fn covers(&self, wish: Share) -> Result<bool, Failure> {
        match (self.share, wish) {
            (Share::Permits(have), Share::Permits(want)) => {
                Ok(have.capacity == want.capacity && have.weight >= want.weight)
            }
            (have, Share::Read | Share::Whole) if have.is_exclusive() => Ok(true),
            (Share::Read, Share::Read) => Ok(true),
            (have, _) => {
                let has = if have.is_exclusive() { "alone" } else { "together with others" };
                let message = format!(
                    "{}: a run around this one holds it {has}, so this one would wait for ever",
                    self.resource
                );
                Err(Failure::usage(message).hint("ask for the same in both"))
            }
        }
    }
}

/// Re-enters the hold of a run around this one, if there is one and it is still there.
pub(super) async fn enter(
    run: &Run,
    context: &Context,
    backend: &Arc<dyn Backend>,
) -> Result<Nesting, Failure> {
    let lines = env::var(HELD).unwrap_or_default();
    let entries = lines.lines().rev().filter_map(Entry::read);
    let mut same =
        entries.filter(|entry| entry.resource == run.resource && entry.store == context.store.shown());
    let Some(entry) = same.next() else { return Ok(Nesting::Outside) };
    let standing = tokio::time::timeout(ASK_AT_MOST, ask(&**backend, &entry)).await;
    // No answer, or no: it is a claim like any other, which says what is wrong.
    let Ok(Ok(standing @ Standing::Until(_))) = standing else { return Ok(Nesting::Outside) };
    if !entry.covers(Share::of(run))? {
        return Ok(Nesting::Outside);
    }
    Ok(Nesting::Within(Box::new(Inherited::watch(entry, standing, Arc::clone(backend)))))
}

#[derive(Clone, Copy, Debug)]
enum Standing {
    Until(Timestamp),
    Over(EndReason),
}

/// Asks whether it is still held.
async fn ask(backend: &dyn Backend, entry: &Entry) -> Result<Standing, Error> {
    let claim = ClaimRef { resource: entry.resource.clone(), owner: entry.owner };
    let sent = SystemClock.now();
    let answer = backend.renew(&[RenewRequest::new(claim, ASK_FOR)]).await.pop().transpose()?;
    Ok(match answer {
        Some(Renewal::Renewed(kept)) if kept.token.to_string() == entry.token => {
            let margin = entry.ttl / 100 + Duration::from_millis(2);
            // Where a session keeps it, only the run around this one can vouch for that; it stops this one in time.
            let own = backend.info().capabilities.own_ttl;
            let remaining = if own { kept.remaining } else { entry.ttl };
            Standing::Until(sent.after(remaining.saturating_sub(margin)))
        }
        Some(Renewal::Gone { why: GoneReason::Evicted }) => Standing::Over(EndReason::Evicted),
        _ => Standing::Over(EndReason::NotOurs),
    })
}

/// The hold of a run around this one.
struct Inherited {
    entry: Entry,
    standing: watch::Receiver<Standing>,
}

impl Inherited {
    fn watch(entry: Entry, standing: Standing, backend: Arc<dyn Backend>) -> Inherited {
        let (tell, standing) = watch::channel(standing);
        let asked = entry.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(ASK_EVERY).await;
                // Without an answer the deadline stays where it is, and the guardian stops the command in time.
                let answer = tokio::time::timeout(ASK_AT_MOST, ask(&*backend, &asked)).await;
                if let Ok(Ok(standing)) = answer
                    && (tell.send(standing).is_err() || matches!(standing, Standing::Over(_)))
                {
                    return;
                }
            }
        });
        Inherited { entry, standing }
    }
}

#[async_trait(?Send)]
impl Hold for Inherited {
    fn token(&self) -> String {
        self.entry.token.clone()
    }

    fn owner(&self) -> OwnerToken {
        self.entry.owner
    }

    fn ttl(&self) -> Duration {
        self.entry.ttl
    }

    fn deadline(&self) -> Option<Timestamp> {
        match *self.standing.borrow() {
            Standing::Until(deadline) => Some(deadline).filter(|deadline| *deadline > SystemClock.now()),
            Standing::Over(_) => None,
        }
    }

    fn ended(&self) -> Later<EndReason> {
        let mut standing = self.standing.clone();
        Box::pin(async move {
            let over =
                standing.wait_for(|standing| matches!(standing, Standing::Over(_))).await.map(|over| *over);
            match over {
                Ok(Standing::Over(ending)) => ending,
                _ => pending().await,
            }
        })
    }

    fn asked(&self) -> Later<Option<FinishRequest>> {
        Box::pin(pending()) // the run around this one is
    }

    async fn moved(&mut self) {
        if self.standing.changed().await.is_err() {
            pending::<()>().await;
        }
    }

    async fn release(self: Box<Self>, _: Option<Duration>) -> Result<Released, Error> {
        Ok(Released::StillHeld)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(share: Share) -> Entry {
        Entry {
            share,
            owner: OwnerToken::from_bytes([7; 16]),
            token: "42".into(),
            ttl: Duration::from_secs(30),
            resource: "acme:report/4|2 {x}".parse().unwrap(),
            store: "sqlite:/a|b".into(),
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let permits = Permits { weight: 2, capacity: 5 };
        for share in [Share::Whole, Share::Read, Share::Write, Share::Permits(permits)] {
            assert_eq!(Entry::read(&entry(share).write()), Some(entry(share)));
        }
        assert_eq!(Entry::read(""), None);
        assert_eq!(Entry::read("1|1|x|42|30|a/b|c"), None);
    }

    #[test]
    fn a_hold_covers_the_same_and_less_and_refuses_to_wait_for_itself() {
        let permits = |weight, capacity| Share::Permits(Permits { weight, capacity });
        assert!(entry(Share::Whole).covers(Share::Whole).unwrap());
        assert!(entry(Share::Write).covers(Share::Read).unwrap());
        assert!(entry(Share::Read).covers(Share::Read).unwrap());
        assert!(entry(permits(2, 5)).covers(permits(1, 5)).unwrap());
        assert!(!entry(permits(1, 5)).covers(permits(2, 5)).unwrap(), "it may get more");
        assert_eq!(entry(Share::Read).covers(Share::Whole).unwrap_err().code, 64);
    }
}
