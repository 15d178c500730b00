//! Network and server faults.

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Lease};
use leasehold_core::{Backend, Effect, ErrorKind, Grant, ReleaseRequest, Released, Verdict};

use crate::{
    Proxy,
    calls::{
        LONG_TTL, TEST_TIMEOUT, claim, eventually, granted, in_time, kind_and_effect, release, report,
        snapshot,
    },
    proxy::Direction,
};

/// How long a request is observed that the proxy holds back, if the backend has no shorter timeout.
const HELD_BACK_FOR: Duration = Duration::from_secs(2);

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
    ///
    /// # Panics
    /// If it is otherwise.
    pub async fn lost_reply(&self, lose_reply: impl FnOnce(&Proxy)) -> Grant {
        // A first pair loads scripts and opens connections, so that the fault hits the acquire.
        let first = claim(&report(), LONG_TTL);
        granted(&*self.through, &first).await;
        release(&*self.through, &first).await;
        lose_reply(&self.proxy);
        let ours = claim(&report(), LONG_TTL);
        let error = in_time("the error", self.through.acquire(&ours)).await.expect_err("the reply is lost");
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
        let executed = || async { snapshot(&*self.direct, &report()).await.holder_count == 1 };
        eventually("the execution of the acquire", executed).await;
        let stored = snapshot(&*self.direct, &report()).await.holders[0].token;
        self.proxy.heal();
        let grant = in_time("the repeated acquire", granted(&*self.through, &ours)).await;
        assert_eq!(grant.token, stored, "granted once");
        assert_eq!(release(&*self.through, &ours).await, Released::Now);
        grant
    }

    /// A tombstone stops an acquire that is executed after its owner has given up. `executed` returns how
    /// many requests the server has executed.
    ///
    /// # Panics
    /// If it is otherwise.
    pub async fn late_acquire(&self, executed: impl Fn() -> u64) {
        let first = claim(&report(), LONG_TTL);
        granted(&*self.through, &first).await;
        release(&*self.through, &first).await;
        self.proxy.hold(Direction::Requests);
        let ours = claim(&report(), LONG_TTL);
        if let Ok(reply) = tokio::time::timeout(HELD_BACK_FOR, self.through.acquire(&ours)).await {
            let error = reply.expect_err("the request is held back");
            assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
        }
        let cancel =
            ReleaseRequest::new(ours.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(LONG_TTL));
        let released = self.direct.release(&cancel).await.expect("the direct handle works");
        assert_eq!(released, Released::AlreadyGone);
        let before = executed();
        self.proxy.heal();
        eventually("the late execution", || async { executed() > before }).await;
        let holders = snapshot(&*self.direct, &report()).await.holder_count;
        assert_eq!(holders, 0, "the tombstone stops the late acquire");
        granted(&*self.direct, &claim(&report(), LONG_TTL)).await;
    }

    /// A connection that is cut after any number of bytes never makes a wrong reply. Afterwards it is safe to
    /// acquire again and to release.
    ///
    /// # Panics
    /// If it is otherwise.
    pub async fn connection_cut_anywhere(&self, cuts_after: &[usize]) {
        for direction in [Direction::Requests, Direction::Replies] {
            for &bytes in cuts_after {
                let ours = claim(&report(), LONG_TTL);
                self.proxy.cut_after(direction, bytes);
                match in_time("the first reply", self.through.acquire(&ours)).await {
                    Ok(Verdict::Granted(_)) => {}
                    Ok(other) => panic!("{direction:?} after {bytes}: {other:?}"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
                }
                let again = || async { matches!(self.through.acquire(&ours).await, Ok(Verdict::Granted(_))) };
                eventually("the repeated acquire", again).await;
                let holders = snapshot(&*self.direct, &report()).await.holder_count;
                assert_eq!(holders, 1, "{direction:?} after {bytes}: one grant");
                let request = ReleaseRequest::new(ours.reference());
                let released = || async { self.through.release(&request).await.is_ok() };
                eventually("the release", released).await;
                let holders = snapshot(&*self.direct, &report()).await.holder_count;
                assert_eq!(holders, 0, "{direction:?} after {bytes}: nothing is left");
            }
        }
    }

    /// A connection that does not answer any more is replaced.
    ///
    /// # Panics
    /// If it is not.
    pub async fn silent_connection_is_replaced(&self) {
        let before = self.proxy.connections();
        self.proxy.hold(Direction::Replies);
        eventually("another connection", || async {
            let reply = self.through.acquire(&claim(&report(), LONG_TTL)).await;
            reply.expect_err("the reply is held back");
            self.proxy.connections() > before
        })
        .await;
        self.proxy.heal();
        let works = || async { self.through.acquire(&claim(&report(), LONG_TTL)).await.is_ok() };
        eventually("a reply", works).await;
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
        let error = in_time("the timeout", self.through.acquire(&ours)).await.expect_err("it is stopped");
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
        thaw();
        eventually("a reply", || async { self.through.acquire(&ours).await.is_ok() }).await;
        assert_eq!(release(&*self.through, &ours).await, Released::Now);
        assert_eq!(snapshot(&*self.direct, &report()).await.holder_count, 0);
    }
}
