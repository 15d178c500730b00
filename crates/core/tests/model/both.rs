//! The model and its naive twin, side by side, with what must hold after every step.

use std::{collections::HashSet, num::NonZeroU32, sync::Arc, time::Duration};

use leasehold_core::{
    Claim, ClaimRef, CommandOutcome, FencingToken, Holder, Model, OperatorAction, OperatorCommand,
    OwnerToken, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Share, Snapshot, Timestamp,
    Verdict, admission,
};

use crate::naive::{Naive, QueuedClaim, Reply};

pub(crate) fn resource() -> Resource {
    Resource::new("model", "1").unwrap()
}

pub(crate) fn owner(number: u8) -> OwnerToken {
    OwnerToken::from_bytes([number + 1; 16])
}

pub(crate) fn reference(number: u8) -> ClaimRef {
    ClaimRef { resource: resource(), owner: owner(number) }
}

pub(crate) fn claim(number: u8, share: Share, ttl: Duration) -> Claim {
    let holder = Arc::new(Holder::new("host", u32::from(number), ""));
    let mut claim = Claim::new(resource(), owner(number), share, ttl, holder);
    claim.place_ttl = ttl;
    claim
}

pub(crate) fn resize(capacity: u32) -> OperatorAction {
    OperatorAction::Resize { capacity: NonZeroU32::new(capacity).unwrap() }
}

/// Both sides, and what was granted so far.
#[derive(Clone, Debug)]
pub(crate) struct Both {
    pub(crate) now: Timestamp,
    pub(crate) model: Model,
    pub(crate) naive: Naive,
    greatest: Option<FencingToken>,
    resized: bool,
}

impl Both {
    pub(crate) fn new() -> Both {
        let now = Timestamp::from_nanos(1_000_000_000);
        Both { now, model: Model::new(0), naive: Naive::default(), greatest: None, resized: false }
    }

    pub(crate) fn pass(&mut self, by: Duration) {
        self.now = self.now.after(by);
        self.check();
    }

    #[track_caller]
    pub(crate) fn acquire(&mut self, claim: &Claim) -> Verdict {
        let token = FencingToken::mint(self.naive.last, 0, claim.floor).unwrap();
        let before = self.model.clone();
        let verdict = self.model.acquire(self.now, claim, 0).unwrap();
        let said = match &verdict {
            Verdict::Granted(grant) => Reply::Granted { token: grant.token, remaining: grant.remaining },
            Verdict::Blocked(blocked) => {
                let ahead = blocked.ahead as usize;
                Reply::Blocked {
                    placed: blocked.queued,
                    ahead,
                    changes_in: blocked.changes_in,
                    paused: blocked.paused,
                }
            }
            Verdict::Cancelled => Reply::Cancelled,
            Verdict::Mismatch { capacity } => Reply::Mismatch { capacity: *capacity },
        };
        let due = self.naive.acquire(self.now, claim, token);
        assert_eq!(self.rounded(said), self.rounded(due), "{claim:?}");
        if let Verdict::Granted(grant) = &verdict {
            let known = self.greatest.is_some_and(|greatest| grant.token <= greatest);
            assert!(!known || before_holds(&before, self.now, grant.token), "a token was given twice");
            self.greatest = self.greatest.max(Some(grant.token));
        }
        self.check();
        verdict
    }

    #[track_caller]
    pub(crate) fn renew(&mut self, held: &RenewRequest) -> Renewal {
        let renewal = self.model.renew(self.now, held);
        let said = match &renewal {
            Renewal::Renewed(kept) => Reply::Kept {
                token: kept.token,
                remaining: kept.remaining,
                asked: kept.asked.as_ref().map(|asked| asked.within),
                evicting: kept.evicting,
            },
            Renewal::Queued { remaining } => Reply::Queued { remaining: *remaining },
            Renewal::Gone { why } => Reply::Gone(*why),
        };
        assert_eq!(said, self.naive.renew(self.now, held), "{held:?}");
        self.check();
        renewal
    }

    #[track_caller]
    pub(crate) fn release(&mut self, request: &ReleaseRequest) -> Released {
        let released = self.model.release(self.now, request);
        let said = Reply::Released { now: released == Released::Now };
        assert_eq!(said, self.naive.release(self.now, request), "{request:?}");
        self.check();
        released
    }

    #[track_caller]
    pub(crate) fn order(&mut self, order: &OperatorCommand) -> CommandOutcome {
        let answer = self.model.order(self.now, order);
        let said = match answer {
            CommandOutcome::Done => Reply::Done,
            CommandOutcome::HolderChanged { token } => Reply::HolderChanged { token },
        };
        assert_eq!(said, self.naive.order(self.now, order), "{order:?}");
        self.resized |= matches!(order.action, OperatorAction::Resize { .. });
        self.check();
        answer
    }

    pub(crate) fn look(&self) -> Snapshot {
        self.model.snapshot(self.now, &resource())
    }

    /// Beyond the window, how many are ahead is an upper bound.
    fn rounded(&self, said: Reply) -> Reply {
        match said {
            Reply::Blocked { placed, ahead, changes_in, paused } if ahead > admission::WINDOW => {
                assert!(ahead <= self.naive.queue.len());
                Reply::Blocked { placed, ahead: usize::MAX, changes_in, paused }
            }
            said => said,
        }
    }

    /// What must hold at any time, whatever was done.
    #[track_caller]
    fn check(&self) {
        let (now, seen) = (self.now, self.look());
        let live_holders: Vec<_> = self.naive.holders.iter().filter(|holder| holder.ends > now).collect();
        let live_queue: Vec<_> = self.naive.queue.iter().filter(|place| place.ends > now).collect();
        assert_eq!(seen.holder_count as usize, live_holders.len());
        assert_eq!(seen.queue_length as usize, live_queue.len());
        let weight: u64 = seen.holders.iter().map(|by| u64::from(by.weight)).sum();
        assert!(self.resized || weight <= u64::from(seen.capacity), "{weight} of {} are held", seen.capacity);
        assert!(seen.holders.is_sorted_by_key(|by| by.token), "holders are listed by token");
        for (by, holder) in seen.holders.iter().zip(&live_holders) {
            assert_eq!((by.token, by.weight, by.handovers), (holder.token, holder.weight, holder.handovers));
            assert_eq!((by.kept, by.evicting), (holder.kept, holder.evicting));
            assert_eq!((by.remaining, by.held_for), (now.until(holder.ends), holder.since.until(now)));
        }
        for (place, naive) in seen.queue.iter().zip(&live_queue) {
            assert_eq!((place.weight, place.waited), (naive.weight, naive.since.until(now)));
            assert_eq!((place.remaining, place.silent), (now.until(naive.ends), naive.silent));
        }
        let mut owners = HashSet::new();
        let present =
            live_holders.iter().map(|holder| holder.owner).chain(live_queue.iter().map(|place| place.owner));
        assert!(
            present.into_iter().all(|owner| owners.insert(owner)),
            "an owner holds once or is queued once"
        );
        assert_eq!(seen.last_token, self.naive.last);
        assert_eq!(seen.paused_for, self.naive.paused_until.filter(|at| *at > now).map(|at| now.until(at)));
        if live_queue.len() <= 8 {
            self.check_movers();
        }
    }

    /// Exactly the claims can be granted that would be granted if they asked, and all of them are called. A silent one that
    /// asks is not silent any more, so it may be granted, too.
    #[track_caller]
    fn check_movers(&self) {
        let mut current = self.model.clone();
        current.release(self.now, &ReleaseRequest::new(reference(u8::MAX - 1))); // of nobody: time has passed
        let grantable: Vec<_> = current.grantable().collect();
        let called: Vec<_> = current.called().collect();
        assert!(grantable.iter().all(|owner| called.contains(owner)), "all grantable claims are called");
        let live = |place: &&QueuedClaim| place.ends > self.now && !current.is_silent(place.owner);
        for place in self.naive.queue.iter().filter(live) {
            let mut asked = current.clone();
            let share = Share::new(place.weight.min(self.naive.capacity), self.naive.capacity).unwrap();
            let mut claim = claim(0, share, Duration::from_secs(1));
            claim.owner = place.owner;
            let granted = matches!(asked.acquire(self.now, &claim, 0), Ok(Verdict::Granted(_)));
            let fits = place.weight <= self.naive.capacity;
            assert_eq!(
                grantable.contains(&place.owner),
                granted && fits,
                "exactly the grantable claims are woken"
            );
        }
    }
}

fn before_holds(model: &Model, now: Timestamp, token: FencingToken) -> bool {
    model.snapshot(now, &resource()).holders.iter().any(|by| by.token == token)
}
