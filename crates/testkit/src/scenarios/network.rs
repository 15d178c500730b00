//! Network and server faults.

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Lease};
use leasehold_core::{
    Backend, BackendExt as _, Claim, Effect, Error, ErrorKind, FencingToken, Grant, ReleaseRequest, Released,
    Result, Verdict,
};

use crate::{
    Proxy,
    calls::{
        LONG_TTL, TEST_TIMEOUT, claim, eventually, granted, holders_and_waiters, in_time, kind_and_effect,
        release, report, snapshot, token_of,
    },
    proxy::Direction,
};

/// How long the repeated acquire waits after an error.
const RETRY_EVERY: Duration = Duration::from_millis(10);

/// A backend on a real server, opened through a proxy and directly. All scenarios use the resource
/// `report/42`.
#[derive(Debug)]
pub struct NetworkScenario {
    /// The proxy in front of the server.
    pub proxy: Proxy,
    /// The backend, opened through the proxy, with request timeouts of about half a second.
    pub through: Arc<dyn Backend>,
    /// The backend, opened without the proxy, as another process would.
    pub direct: Arc<dyn Backend>,
}

/// What a backend replied while a connection was cut.
#[derive(Debug)]
pub struct Cut {
    /// The direction of the bytes that were counted.
    pub direction: Direction,
    /// After how many bytes the connection was cut.
    pub bytes: usize,
    /// The error of the acquire, if it failed.
    pub acquire_error: Option<Error>,
    /// The reply to the first release.
    pub first_release: Result<Released>,
}

impl Cut {
    /// A failed acquire has an unknown effect.
    ///
    /// # Panics
    /// If its effect is another one.
    pub fn assert_unknown_effect(&self) {
        assert!(
            self.acquire_error.as_ref().is_none_or(|error| error.effect() == Effect::Unknown),
            "{self:?}"
        );
    }

    /// The first release ended the lease.
    ///
    /// # Panics
    /// If it did not.
    pub fn assert_released_at_once(&self) {
        assert!(matches!(self.first_release, Ok(Released::Now)), "{self:?}");
    }
}

impl NetworkScenario {
    /// During a partition the holder loses its lease before another claim is granted. When the network heals,
    /// the lost lease stays lost. Returns the lost lease and that of the next holder.
    ///
    /// # Panics
    /// If it is otherwise.
    pub async fn partition_past_the_ttl(&self, ttl: Duration) -> (Lease, Lease) {
        let (ours, theirs) = (Client::new(self.through.clone()), Client::new(self.direct.clone()));
        let lost = ours.lease("report", "42").ttl(ttl).acquire().await.expect("free");
        self.proxy.black_hole();
        let next = tokio::spawn(theirs.lease("report", "42").ttl(LONG_TTL).wait(TEST_TIMEOUT).acquire());
        in_time("the loss of the lease", lost.ended()).await;
        assert!(!next.is_finished(), "the holder learns of the loss before another claim is granted");
        assert!(lost.check().is_err());
        let next = in_time("the next grant", next).await.expect("no panic").expect("granted after the ttl");
        assert!(next.token() > lost.token());
        self.proxy.heal();
        // Renewals that were held back arrive now.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(lost.check().is_err(), "a lost lease stays lost");
        next.check().expect("the next holder keeps its lease");
        (lost, next)
    }

    /// An acquire whose reply is lost has an unknown effect. A repeated acquire returns the same grant.
    /// `lose_reply` makes the proxy lose the reply; by default that is `|proxy| proxy.lose_replies(1)`.
    /// Returns the claim, which still holds, and its grant.
    ///
    /// # Panics
    /// If it is otherwise.
    pub async fn lost_reply(&self, lose_reply: impl FnOnce(&Proxy)) -> (Claim, Grant) {
        // A first pair loads scripts and opens connections, so that the fault hits the acquire.
        token_of(&*self.through, &report()).await;
        lose_reply(&self.proxy);
        let ours = claim(&report(), LONG_TTL);
        let error =
            in_time("the error", self.through.acquire_one(&ours)).await.expect_err("the reply is lost");
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
        eventually("the execution of the acquire", || async { self.contenders().await == (1, 0) }).await;
        let stored = snapshot(&*self.direct, &report()).await.holders[0].token;
        self.proxy.heal();
        let grant = in_time("the repeated acquire", granted(&*self.through, &ours)).await;
        assert_eq!(grant.token, stored, "granted once");
        assert_eq!(self.contenders().await, (1, 0), "granted once");
        (ours, grant)
    }

    /// A tombstone stops an acquire that is executed after its owner has given up. The owner gives up after
    /// the time given, or else when the backend's own timeout ends the acquire. `executed` returns how many
    /// requests the server has executed, and no earlier request of the test may change it late. Returns the
    /// claim that came late.
    ///
    /// # Panics
    /// If it is otherwise.
    pub async fn late_acquire(&self, gives_up_after: Option<Duration>, executed: impl Fn() -> u64) -> Claim {
        self.proxy.hold(Direction::Requests);
        let ours = claim(&report(), LONG_TTL);
        let acquire = self.through.acquire_one(&ours);
        if let Some(limit) = gives_up_after {
            let reply = tokio::time::timeout(limit, acquire).await;
            assert!(reply.is_err(), "the request is held back: {reply:?}");
        } else {
            let error = in_time("the timeout", acquire).await.expect_err("the request is held back");
            assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
        }
        let cancel =
            ReleaseRequest::new(ours.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(LONG_TTL));
        let released = self.direct.release_one(&cancel).await.expect("the direct handle works");
        assert_eq!(released, Released::AlreadyGone);
        let before = executed();
        self.proxy.heal();
        eventually("the late execution", || async { executed() > before }).await;
        assert_eq!(self.contenders().await, (0, 0), "the tombstone stops the late acquire");
        ours
    }

    /// A connection that is cut after any number of bytes never makes a wrong reply. Afterwards it is safe to
    /// acquire again and to release. Returns what the backend replied at each cut.
    ///
    /// # Panics
    /// If it is otherwise.
    pub async fn connection_cut_anywhere(&self, cuts_after: &[usize]) -> Vec<Cut> {
        let (mut cuts, mut last) = (Vec::new(), None);
        for direction in [Direction::Requests, Direction::Replies] {
            for &bytes in cuts_after {
                let (cut, token) = self.connection_cut(direction, bytes).await;
                assert!(last < Some(token), "tokens grow: {last:?}, {token:?}");
                last = Some(token);
                cuts.push(cut);
            }
        }
        cuts
    }

    async fn connection_cut(&self, direction: Direction, bytes: usize) -> (Cut, FencingToken) {
        let ours = claim(&report(), LONG_TTL);
        self.proxy.cut_after(direction, bytes);
        let first = match in_time("the first reply", self.through.acquire_one(&ours)).await {
            Ok(Verdict::Granted(grant)) => Ok(grant.token),
            Ok(other) => panic!("{direction:?} after {bytes}: {other:?}"),
            Err(error) => Err(error),
        };
        let again = in_time("the repeated acquire", async {
            loop {
                match self.through.acquire_one(&ours).await {
                    Ok(Verdict::Granted(grant)) => break grant.token,
                    Ok(other) => panic!("{direction:?} after {bytes}, again: {other:?}"),
                    Err(_) => tokio::time::sleep(RETRY_EVERY).await,
                }
            }
        })
        .await;
        match &first {
            Ok(token) => assert_eq!(*token, again, "{direction:?} after {bytes}: the same grant"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
        }
        assert_eq!(self.contenders().await, (1, 0), "{direction:?} after {bytes}: one grant");
        let request = ReleaseRequest::new(ours.reference());
        let first_release = self.through.release_one(&request).await;
        if first_release.is_err() {
            eventually("the release", || async { self.through.release_one(&request).await.is_ok() }).await;
        }
        assert_eq!(self.contenders().await, (0, 0), "{direction:?} after {bytes}: nothing is left");
        (Cut { direction, bytes, acquire_error: first.err(), first_release }, again)
    }

    /// A connection that does not answer any more is replaced. Returns how many calls failed until then.
    ///
    /// # Panics
    /// If it is not.
    pub async fn silent_connection_is_replaced(&self) -> u32 {
        let (before, mut failed) = (self.proxy.connections(), 0);
        self.proxy.hold(Direction::Replies);
        in_time("another connection", async {
            while self.proxy.connections() <= before {
                let reply = self.through.acquire_one(&claim(&report(), LONG_TTL)).await;
                reply.expect_err("the reply is held back");
                failed += 1;
            }
        })
        .await;
        self.proxy.heal();
        let works = || async { self.through.acquire_one(&claim(&report(), LONG_TTL)).await.is_ok() };
        eventually("a reply", works).await;
        failed
    }

    /// A network that is slower than usual, but faster than the request timeout, loses no lease.
    ///
    /// # Panics
    /// If an acquire or a release fails.
    pub async fn slow_network(&self, delay_max: Duration) {
        let client = Client::new(self.through.clone());
        self.proxy.delay(delay_max);
        for _ in 0..5 {
            let lease = client.lease("report", "42").ttl(LONG_TTL).acquire().await.expect("free");
            lease.check().expect("held");
            assert_eq!(lease.release().await.expect("held"), Released::Now);
        }
    }

    /// A stopped server costs a timeout. After it continues, the late execution of the acquire does no harm.
    ///
    /// # Panics
    /// If it is otherwise.
    pub async fn frozen_server(&self, freeze: impl FnOnce(), thaw: impl FnOnce()) {
        let ours = claim(&report(), LONG_TTL);
        freeze();
        let error = in_time("the timeout", self.through.acquire_one(&ours)).await.expect_err("it is stopped");
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
        thaw();
        eventually("a reply", || async { self.through.acquire_one(&ours).await.is_ok() }).await;
        assert_eq!(release(&*self.through, &ours).await, Released::Now);
        assert_eq!(self.contenders().await, (0, 0));
    }

    /// How many claims hold and wait, as another process sees it.
    async fn contenders(&self) -> (u32, u32) {
        holders_and_waiters(&*self.direct, &report()).await
    }
}
