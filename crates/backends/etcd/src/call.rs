//! Requests to the members: how long each may take, when the next member is asked, and when a change is taken for lost.

use std::{future::Future, sync::atomic::Ordering, time::Duration};

use etcd_client::{Client, Error as Driver, KvClient};
use leasehold_core::Timestamp;
use leasehold_support::race::{Either, first};

use crate::{
    error::Fault,
    link::{Link, Member, SOON, Wire},
    proof::Seen,
};

/// How often a member without a leader is asked again.
const LEADER_EVERY: Duration = Duration::from_millis(50);
/// A change that was not answered for this long may be lost with the leader.
const SUSPECT_AFTER: Duration = Duration::from_millis(300);
/// How often it is looked whether there is another leader by then.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A call that is dropped after this long was given up; before, its caller has other reasons.
const GIVEN_UP: Duration = Duration::from_millis(300);

/// How long a request may take.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// How long a member has to answer.
    answer: Duration,
    /// It may be asked twice: the next member is asked if this one fails.
    twice: bool,
}

impl Patience {
    fn once(answer: Duration) -> Patience {
        Patience { answer, twice: false }
    }
}

/// A call under way. Its caller may have less patience than we have: given up after a while, it blames the member too,
/// or a renewal would be sent to the same dead one again and again.
struct Attempt<'a> {
    link: &'a Link,
    wire: &'a Wire,
    began: Timestamp,
    over: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.over && self.began.until(self.link.environment.now()) >= GIVEN_UP {
            self.link.judge(self.wire, &Fault::Silent);
        }
    }
}

impl Link {
    /// Asks a member, or the next one if nothing could be sent. `check` says what an answer shows, or why it is not
    /// believed.
    pub(crate) async fn call<T, F>(
        &self,
        ask: impl Fn(Client) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let ask = |member: &Member| ask(member.client.clone());
        self.try_members(ask, check, Patience::once(self.config.timeout)).await
    }

    /// The same for a transaction.
    pub(crate) async fn call_kv<T, F>(
        &self,
        ask: impl Fn(KvClient) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let ask = |member: &Member| ask(member.kv.clone());
        self.try_members(ask, check, Patience::once(self.config.timeout)).await
    }

    /// The same for what may be asked twice: the next member is asked if this one does not answer soon.
    pub(crate) async fn call_again<T, F>(
        &self,
        ask: impl Fn(Client) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        self.try_members(|member| ask(member.client.clone()), check, self.again()).await
    }

    /// The same for a transaction that only reads.
    pub(crate) async fn call_kv_again<T, F>(
        &self,
        ask: impl Fn(KvClient) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        self.try_members(|member| ask(member.kv.clone()), check, self.again()).await
    }

    fn again(&self) -> Patience {
        let timeout = self.config.timeout;
        if self.config.hosts.len() == 1 {
            Patience::once(timeout)
        } else {
            Patience { answer: timeout.min(SOON), twice: true }
        }
    }

    async fn try_members<T, F>(
        &self,
        ask: impl Fn(&Member) -> F,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
        patience: Patience,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let began = self.environment.now();
        let until = began.after(self.config.timeout);
        let (mut left, mut leaderless_since) = (self.config.hosts.len(), None);
        loop {
            let wire = self.wire().await?;
            let fault = match self.ask_member(&wire, ask(&wire.member), &check, patience).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            let now = self.environment.now();
            if now < until && (fault.is_leaderless() || (patience.twice && fault.is_leader_change())) {
                // An election takes a second or two. A caller is served the moment that there is a leader; the pauses
                // of the engine between attempts would be longer. This member answers, another one may not: it is left
                // only if it seems to be cut off.
                if leaderless_since.get_or_insert(now).until(now) >= SOON {
                    self.judge(&wire, &fault);
                }
                self.environment.sleep(LEADER_EVERY).await;
                continue;
            }
            self.judge(&wire, &fault);
            let again = fault.was_not_sent() || (patience.twice && fault.blames_member());
            if !again || left == 0 {
                return Err(fault);
            }
            left -= 1;
        }
    }

    /// One request to one member.
    async fn ask_member<T>(
        &self,
        wire: &Wire,
        request: impl Future<Output = Result<T, Driver>>,
        check: impl Fn(&T, Seen) -> Result<Seen, Fault>,
        patience: Patience,
    ) -> Result<T, Fault> {
        let seen = self.seen();
        let connecting = self.connecting(wire);
        let mut attempt = Attempt { link: self, wire, began: self.environment.now(), over: false };
        let given_up = first(
            self.environment.sleep(patience.answer + connecting),
            self.given_up_by(&wire.member, seen.term, (patience, connecting)),
        );
        let outcome = first(request, given_up).await;
        attempt.over = true;
        drop(attempt);
        let (host, port) = &self.config.hosts[wire.move_number % self.config.hosts.len()];
        match outcome {
            Either::Left(Ok(answer)) => {
                let shown = check(&answer, seen).map_err(|fault| fault.of_member(host, *port))?;
                self.saw(shown);
                if !wire.member.proven.swap(true, Ordering::Relaxed) {
                    self.members()[wire.move_number % self.config.hosts.len()].in_vain = 0;
                }
                Ok(answer)
            }
            Either::Left(Err(error)) => Err(Fault::from(error).of_member(host, *port)),
            Either::Right(Either::Left(())) => Err(Fault::Silent),
            Either::Right(Either::Right(fault)) => Err(fault),
        }
    }

    /// Resolves when a change that has not been answered will probably not be.
    ///
    /// The member has another leader by now than when it was asked: it had passed the change on to the old one, and waits
    /// for that much longer than we do. Nothing else tells us. A member notices its leader's death only after an election
    /// timeout, and takes changes until then. Or the member does not even say which leader it has, which it knows by itself.
    async fn given_up_by(
        &self,
        member: &Member,
        term: u64,
        (patience, connecting): (Patience, Duration),
    ) -> Fault {
        if patience.twice || self.config.hosts.len() == 1 {
            return std::future::pending().await;
        }
        self.environment.sleep(SUSPECT_AFTER).await;
        // Boxed: the usual call need not carry it along.
        Box::pin(self.another_leader(member, term, SOON + connecting)).await
    }

    /// A leader of a later term; if none is known, than the one that there is now.
    async fn another_leader(&self, member: &Member, mut term: u64, patience: Duration) -> Fault {
        loop {
            let mut client = member.client.maintenance_client();
            match first(client.status(), self.environment.sleep(patience)).await {
                Either::Left(Ok(status))
                    if status.leader() != 0 && term != 0 && status.raft_term() > term =>
                {
                    self.term.fetch_max(status.raft_term(), Ordering::Relaxed);
                    // An answer may be on its way.
                    self.environment.sleep(LOOK_EVERY).await;
                    return Fault::LeaderChanged;
                }
                Either::Left(Ok(status)) if term == 0 => term = status.raft_term(),
                Either::Left(_) => {}
                Either::Right(()) => return Fault::Silent,
            }
            self.environment.sleep(LOOK_EVERY).await;
        }
    }

    /// How much longer an answer may take because there may be no connection yet.
    fn connecting(&self, wire: &Wire) -> Duration {
        if wire.member.proven.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let (most, count) = (self.config.connect_timeout, self.config.hosts.len());
        if count == 1 { most } else { self.members()[wire.move_number % count].connecting(most) }
    }

    fn seen(&self) -> Seen {
        Seen {
            cluster: self.cluster.load(Ordering::Relaxed),
            revision: self.revision.load(Ordering::Relaxed),
            term: self.term.load(Ordering::Relaxed),
        }
    }

    /// Remembers what an answer has shown.
    fn saw(&self, shown: Seen) {
        let _ = self.cluster.compare_exchange(0, shown.cluster, Ordering::Relaxed, Ordering::Relaxed);
        self.revision.fetch_max(shown.revision, Ordering::Relaxed);
        self.term.fetch_max(shown.term, Ordering::Relaxed);
    }
}
