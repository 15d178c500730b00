//! A session with the ensemble: how long its leases are safe, the servers' clock, and the claims of this
//! client.
//!
//! A lease ends when the servers end its session. This client must stop before that, by its own clock:
//!
//! 1. Only a *committed write* proves that the leader knew our session. Reads and heartbeats are answered by
//!    the server that we are connected to; while that server is cut off from the others it goes on answering
//!    (ADR 0026).
//! 2. The proof counts from when the write was *sent*, because the leader may have seen it at once and the
//!    reply may be late.
//! 3. From then on, our leases are safe for [`Session::lease_ttl`], which is shorter than the session
//!    timeout.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{Environment, RequestIds, Timestamp};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error as Driver, Stat};

use crate::{
    config::Config,
    error::StoreError,
    local_claims::LocalClaims,
    paths::{AUDIT, LOCKS, MARKERS, TOMBSTONES},
};

/// One session with the ensemble.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) id: i64,
    environment: Arc<dyn Environment>,
    /// How long after the sending of a committed write no other client can be granted what this session
    /// holds.
    pub(crate) lease_ttl: Duration,
    /// How long after our last heartbeat the servers have ended this session at the latest. Other clients are
    /// told this time.
    pub(crate) expiry: Duration,
    /// The same for the longest session that the servers grant.
    pub(crate) longest_expiry: Duration,
    /// Whether nodes are created for the configured user alone.
    is_private: bool,
    pub(crate) request_ids: RequestIds,
    clock: Mutex<SessionClock>,
    pub(crate) claims: LocalClaims,
}

#[derive(Clone, Copy, Debug)]
struct SessionClock {
    /// When the last write was sent that we know to be committed.
    last_commit_sent: Timestamp,
    /// The servers' calendar clock in milliseconds, and the moment of our clock that belongs to it.
    server_time: (i64, Timestamp),
}

/// The longest session timeout that servers grant by default (`maxSessionTimeout`), in ticks.
const SESSION_TICKS_MAX: u32 = 20;
/// The driver sends a heartbeat at the latest a fifth of the session timeout after its last request: it waits
/// for 3/20 of the timeout, and looks at its clock every 1/20.
const HEARTBEATS_PER_TIMEOUT: u32 = 5;
/// A grant sends a write first if more than this fraction of the lease's time has passed since the last one:
/// a third.
const STALE_FRACTION: u32 = 3;

/// How long leases of a session are safe after the sending of a committed write.
///
/// The leader ends a session when it has heard nothing of it for the timeout. A follower reports the
/// heartbeats of its clients to the leader every half tick. If the follower dies before such a report, the
/// leader only knows the heartbeat before, which is up to a fifth of the timeout older. So a tick and a fifth
/// are taken off (ADR 0026).
pub(crate) fn lease_ttl(timeout: Duration, tick: Duration) -> Duration {
    timeout.saturating_sub(timeout / HEARTBEATS_PER_TIMEOUT).saturating_sub(tick)
}

impl Session {
    /// Prepares a new session: creates the parents of our nodes if they are missing, and reads the servers'
    /// clock.
    ///
    /// `sent` is a moment before the driver began to connect.
    pub(crate) async fn begin(
        client: Client,
        config: &Config,
        environment: Arc<dyn Environment>,
        sent: Timestamp,
    ) -> Result<Session, StoreError> {
        let timeout = client.session_timeout();
        let client = change_root(client, config).await?;
        let session = Session {
            id: client.session_id().0,
            client,
            lease_ttl: lease_ttl(timeout, config.tick),
            expiry: timeout + config.tick,
            longest_expiry: config.tick * (SESSION_TICKS_MAX + 1),
            is_private: config.is_private(),
            request_ids: RequestIds::starting_at(environment.random()),
            environment,
            clock: Mutex::new(SessionClock { last_commit_sent: sent, server_time: (0, sent) }),
            claims: LocalClaims::default(),
        };
        // A write, because the reply to a write contains the leader's time.
        let stat = match session.client.set_data(TOMBSTONES, b"", None).await {
            Err(Driver::NoNode) => {
                for parent in [LOCKS, TOMBSTONES, MARKERS, AUDIT] {
                    session.client.mkdir(parent, &session.options(CreateMode::Persistent)).await?;
                }
                session.client.set_data(TOMBSTONES, b"", None).await?
            }
            stat => stat?,
        };
        session.note_commit_with_stat(sent, &stat);
        Ok(session)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.environment.now()
    }

    pub(crate) fn random(&self) -> u64 {
        self.environment.random()
    }

    pub(crate) fn environment(&self) -> &dyn Environment {
        &*self.environment
    }

    /// The create mode with the ACL of our nodes.
    pub(crate) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(acls(self.is_private))
    }

    pub(crate) fn ephemeral(&self) -> CreateOptions<'static> {
        self.options(CreateMode::Ephemeral)
    }

    /// The data of a node. `None` if it does not exist.
    pub(crate) async fn read_node(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>, StoreError> {
        match self.client.get_data(path).await {
            Ok(found) => Ok(Some(found)),
            Err(Driver::NoNode) => Ok(None),
            Err(error) => Err(StoreError::from(error)),
        }
    }

    /// Waits until the server that we are connected to has caught up with the leader.
    pub(crate) async fn sync(&self, path: &str) -> Result<(), StoreError> {
        match self.client.sync(path).await {
            // The path only selects the folder; whether it exists does not matter.
            Ok(()) | Err(Driver::NoNode) => Ok(()),
            Err(error) => Err(StoreError::from(error)),
        }
    }

    /// Creates the folder of a resource, if it does not exist, as a container: the servers delete it when it
    /// is empty.
    pub(crate) async fn create_folder(&self, folder: &str) -> Result<(), StoreError> {
        self.client.mkdir(folder, &self.options(CreateMode::Container)).await?;
        Ok(())
    }

    /// Whether the session has ended for good. A session whose connection is broken has not.
    pub(crate) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    fn clock(&self) -> MutexGuard<'_, SessionClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the ensemble committed a write that was sent at this moment, and learns the servers' clock
    /// from the stat of a node that the write changed.
    pub(crate) fn note_commit_with_stat(&self, sent: Timestamp, stat: &Stat) {
        self.note_commit(sent);
        if stat.mtime > 0 {
            let mut clock = self.clock();
            if clock.server_time.1 <= sent {
                clock.server_time = (stat.mtime, sent);
            }
        }
    }

    /// Notes that the ensemble committed a write that was sent at this moment.
    pub(crate) fn note_commit(&self, sent: Timestamp) {
        let mut clock = self.clock();
        clock.last_commit_sent = clock.last_commit_sent.max(sent);
    }

    /// How long a lease of this session is safe, counted from `began`, the start of the caller's request.
    pub(crate) fn remaining(&self, began: Timestamp) -> Duration {
        let last_commit_sent = self.clock().last_commit_sent;
        began.until(last_commit_sent.after(self.lease_ttl)).min(self.lease_ttl)
    }

    /// Whether the last committed write is so old that a grant should be preceded by a new one.
    pub(crate) fn needs_write(&self) -> bool {
        self.clock().last_commit_sent.until(self.now()) > self.lease_ttl / STALE_FRACTION
    }

    /// The servers' calendar clock in milliseconds since 1970, as far as this client knows it.
    pub(crate) fn server_now_ms(&self) -> i64 {
        let now = self.now();
        let (millis, at) = self.clock().server_time;
        millis.saturating_add(i64::try_from(at.until(now).as_millis()).unwrap_or(i64::MAX))
    }
}

fn acls(is_private: bool) -> Acls<'static> {
    if is_private { Acls::creator_all() } else { Acls::anyone_all() }
}

/// Makes all paths of the client relative to the chroot, and creates the chroot if it does not exist.
async fn change_root(client: Client, config: &Config) -> Result<Client, StoreError> {
    if config.chroot.is_empty() {
        return Ok(client);
    }
    let options = CreateMode::Persistent.with_acls(acls(config.is_private()));
    match client.mkdir(&config.chroot, &options).await {
        // `NoAuth`: we may not create nodes in a parent of the chroot, but the chroot may exist already. If it
        // does not, or we may not use it either, creating our first node in it fails.
        Ok(()) | Err(Driver::NoAuth) => {}
        Err(error) => return Err(StoreError::from(error)),
    }
    client.chroot(config.chroot.clone()).map_err(|_| StoreError::from(Driver::BadArguments(&"chroot")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_before_its_session_can() {
        let (timeout, tick) = (Duration::from_secs(10), Duration::from_secs(2));
        assert_eq!(lease_ttl(timeout, tick), Duration::from_secs(6));
        assert_eq!(lease_ttl(tick, tick), Duration::ZERO, "too short a session guarantees nothing");
    }
}
