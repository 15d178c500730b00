//! Sends a request to a member, and to the next member if that fails.
//!
//! 1. Take the connection to the member in use, and send the request. The reply must come within the timeout,
//!    and must belong to the request (`verify_reply.rs`).
//! 2. If the member has no leader, ask it again every 50 ms until the timeout. Elections take a second or
//!    two, and the engine's pauses between attempts would be longer.
//! 3. If the request was not sent, or may be repeated and the member is at fault: move on to the next member,
//!    and go to 1.
//! 4. Anything else is the caller's error.
//!
//! While a *write* has no reply, step 1 also watches for a change of the leader: see
//! [`Connections::write_lost`].

use std::{future::Future, sync::atomic::Ordering, time::Duration};

use etcd_client::Error as DriverError;
use leasehold_core::Timestamp;
use leasehold_support::race::{Either, first};

use crate::{
    connection::{Connection, Connections, MemberClient, REPEATABLE_TIMEOUT},
    error::StoreError,
    verify_reply::HeaderInfo,
};

/// How often a member without a leader is asked again.
const LEADERLESS_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// A write without a reply for this long may be lost with the leader.
const SUSPECT_LOSS_AFTER: Duration = Duration::from_millis(300);
/// How often the member is then asked for the term of its leader.
const TERM_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A call that is dropped after this long was given up because of its member. Before, the caller had other
/// reasons.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(300);

/// Whether a request may be sent a second time, to the next member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeatable {
    /// A read, or a write that has the same effect if it is repeated. The next member is asked soon.
    Yes,
    /// A write: a second one could do something else than the first.
    No,
}

/// How one member is asked.
#[derive(Clone, Copy, Debug)]
struct CallPolicy {
    /// How long the member may take.
    reply_timeout: Duration,
    repeatable: Repeatable,
}

/// A request without a reply so far. The caller may drop the call before our own timeout. If that happens
/// late, the member counts as failed: otherwise renewals would be sent to the same dead member again and
/// again.
struct PendingCall<'a> {
    connections: &'a Connections,
    connection: &'a Connection,
    began: Timestamp,
    finished: bool,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        let pending_for = self.began.until(self.connections.environment.now());
        if !self.finished && pending_for >= GIVEN_UP_AFTER {
            self.connections.report_failure(self.connection, &StoreError::timeout());
        }
    }
}

impl Connections {
    /// Sends a request.
    ///
    /// `send` makes the request with the client of a member. `check` compares the reply with the request and
    /// with what was known before, and returns the header of the reply.
    pub(crate) async fn call<T, F>(
        &self,
        repeatable: Repeatable,
        send: impl Fn(&MemberClient) -> F,
        check: impl Fn(&T, HeaderInfo) -> Result<HeaderInfo, StoreError>,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, DriverError>>,
    {
        let policy = self.call_policy(repeatable);
        let until = self.environment.now().after(self.config.timeout);
        // The first member, and then as many more tries as there are members: so the first one is tried again
        // at the end, over a new connection.
        let (mut members_left, mut leaderless_since) = (self.config.hosts.len(), None);
        loop {
            let connection = self.get().await?;
            // Boxed: without optimisation a request of the driver has 40 kB, and each future around it would have them, too. A thread
            // with a stack of 2 MB was too small for them.
            let request = Box::pin(send(&connection.member));
            let error = match self.call_member(&connection, request, &check, policy).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let may_repeat = policy.repeatable == Repeatable::Yes;
            let now = self.environment.now();
            if now < until && (error.is_leaderless() || (may_repeat && error.is_leader_change())) {
                // This member replies, and another one may not. So leave it only if it seems to be cut off.
                if leaderless_since.get_or_insert(now).until(now) >= REPEATABLE_TIMEOUT {
                    self.report_failure(&connection, &error);
                }
                self.environment.sleep(LEADERLESS_RETRY_INTERVAL).await;
                continue;
            }
            self.report_failure(&connection, &error);
            let try_next = error.was_not_sent() || (may_repeat && error.blames_member());
            if !try_next || members_left == 0 {
                return Err(error);
            }
            members_left -= 1;
        }
    }

    fn call_policy(&self, repeatable: Repeatable) -> CallPolicy {
        let timeout = self.config.timeout;
        if repeatable == Repeatable::Yes && self.config.hosts.len() > 1 {
            CallPolicy { reply_timeout: timeout.min(REPEATABLE_TIMEOUT), repeatable }
        } else {
            // With one member there is no next one to ask.
            CallPolicy { reply_timeout: timeout, repeatable: Repeatable::No }
        }
    }

    /// Sends one request to one member.
    async fn call_member<T>(
        &self,
        connection: &Connection,
        request: impl Future<Output = Result<T, DriverError>>,
        check: impl Fn(&T, HeaderInfo) -> Result<HeaderInfo, StoreError>,
        policy: CallPolicy,
    ) -> Result<T, StoreError> {
        let known = self.known_header();
        let connecting = self.extra_time_to_connect(connection);
        let began = self.environment.now();
        let mut pending = PendingCall { connections: self, connection, began, finished: false };
        let no_reply = first(
            self.environment.sleep(policy.reply_timeout + connecting),
            self.write_lost(connection, known.term, policy.repeatable, connecting),
        );
        let outcome = first(request, no_reply).await;
        // From here on the outcome is known, so the drop must not report the member as failed.
        pending.finished = true;
        drop(pending);
        let reply = match outcome {
            Either::Left(Ok(reply)) => check(&reply, known).map(|header| (reply, header)),
            Either::Left(Err(error)) => Err(StoreError::from(error)),
            Either::Right(Either::Left(())) => Err(StoreError::timeout()),
            Either::Right(Either::Right(error)) => Err(error),
        };
        let (host, port) = self.host_of(connection);
        let (reply, header) = reply.map_err(|error| error.of_member(host, port))?;
        self.remember_header(header);
        self.report_reply(connection);
        Ok(reply)
    }

    /// Resolves when a write without a reply is probably lost.
    ///
    /// A member notices the death of its leader only after an election timeout. Until then it takes writes,
    /// passes them on to the dead leader, and waits for them much longer than we do. Nothing in the protocol
    /// reports that. So the member is asked for the term of its leader: a later term than before the request
    /// means that the write went to the old leader. A member that does not even reply to that question, which
    /// it can answer by itself, hangs.
    async fn write_lost(
        &self,
        connection: &Connection,
        term: u64,
        repeatable: Repeatable,
        connecting: Duration,
    ) -> StoreError {
        if repeatable == Repeatable::Yes || self.config.hosts.len() == 1 {
            return std::future::pending().await;
        }
        self.environment.sleep(SUSPECT_LOSS_AFTER).await;
        let reply_timeout = REPEATABLE_TIMEOUT + connecting;
        // Boxed, because most calls never get here and need not reserve its space.
        Box::pin(self.leader_changed(&connection.member, term, reply_timeout)).await
    }

    /// Resolves when the member has a leader of a later term than `term`, or does not reply. If `term` is not
    /// known (zero), the first reply sets it.
    async fn leader_changed(
        &self,
        member: &MemberClient,
        mut term: u64,
        reply_timeout: Duration,
    ) -> StoreError {
        loop {
            let mut client = member.client.maintenance_client();
            match first(client.status(), self.environment.sleep(reply_timeout)).await {
                Either::Left(Ok(status))
                    if status.leader() != 0 && term != 0 && status.raft_term() > term =>
                {
                    self.term.fetch_max(status.raft_term(), Ordering::Relaxed);
                    // The reply to the write may be on its way.
                    self.environment.sleep(TERM_POLL_INTERVAL).await;
                    return StoreError::LeaderChanged;
                }
                Either::Left(Ok(status)) if term == 0 => term = status.raft_term(),
                Either::Left(_) => {}
                Either::Right(()) => return StoreError::timeout(),
            }
            self.environment.sleep(TERM_POLL_INTERVAL).await;
        }
    }
}
