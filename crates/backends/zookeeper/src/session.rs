//! A session with the ensemble: what it may vouch for, and what it holds.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{ClaimRef, RequestIds, Timestamp};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error as Driver, Stat};

use crate::{
    claims::Entry,
    config::Config,
    error::Fault,
    names::{AUDIT, GRAVES, HEIRS, LOCKS},
};

/// A session.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) id: i64,
    /// How long after the *sending* of a write that the ensemble committed nobody else can have what we hold.
    pub(crate) lease: Duration,
    /// How long after we fall silent everyone else has it at the latest.
    pub(crate) silence: Duration,
    /// The same for any session that the servers grant.
    pub(crate) silence_max: Duration,
    private: bool,
    pub(crate) request_ids: RequestIds,
    clock: Mutex<Clock>,
    entries: Mutex<HashMap<ClaimRef, Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    /// When the last write was sent of which we know that the ensemble committed it.
    wrote: Timestamp,
    /// The servers' calendar clock, in milliseconds, and when it was so.
    server: (i64, Timestamp),
}

/// The longest session that servers grant unless they are told otherwise, in ticks.
const SESSION_TICKS_MAX: u32 = 20;

/// How long a session of this timeout may be vouched for, counted from the sending of a write.
///
/// The leader ends a session when it has heard nothing for the timeout, rounded up to a tick. But what a follower hears
/// reaches the leader with a delay of half a tick; and if the follower dies with that, the leader knows only of the
/// driver's heartbeat before, up to a fifth of the timeout earlier. So both are taken off.
pub(crate) fn lease_of(timeout: Duration, tick: Duration) -> Duration {
    timeout.saturating_sub(timeout / 5).saturating_sub(tick)
}

impl Session {
    /// Makes the session usable: its folders are there, and the servers' clock is known.
    pub(crate) async fn begin(
        client: Client,
        config: &Config,
        sent: Timestamp,
        random: u64,
    ) -> Result<Session, Fault> {
        let timeout = client.session_timeout();
        let lease = lease_of(timeout, config.tick);
        let client = root(client, config).await?;
        let clock = Mutex::new(Clock { wrote: sent, server: (0, sent) });
        let session = Session {
            id: client.session_id().0,
            client,
            lease,
            silence: timeout + config.tick,
            silence_max: config.tick * (SESSION_TICKS_MAX + 1),
            private: config.is_private(),
            request_ids: RequestIds::starting_at(random),
            clock,
            entries: Mutex::new(HashMap::new()),
        };
        let stat = match session.client.set_data(GRAVES, b"", None).await {
            Err(Driver::NoNode) => {
                for folder in [LOCKS, GRAVES, HEIRS, AUDIT] {
                    let made = session.client.mkdir(folder, &session.mode(CreateMode::Persistent)).await;
                    made.map_err(Fault::of)?;
                }
                session.client.set_data(GRAVES, b"", None).await
            }
            answer => answer,
        };
        session.committed(sent, &stat.map_err(Fault::of)?);
        Ok(session)
    }

    pub(crate) fn mode(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(if self.private { Acls::creator_all() } else { Acls::anyone_all() })
    }

    pub(crate) fn ephemeral(&self) -> CreateOptions<'static> {
        self.mode(CreateMode::Ephemeral)
    }

    /// The data of a node, if it is there.
    pub(crate) async fn data(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>, Fault> {
        match self.client.get_data(path).await {
            Ok(found) => Ok(Some(found)),
            Err(Driver::NoNode) => Ok(None),
            Err(error) => Err(Fault::of(error)),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn entries(&self) -> MutexGuard<'_, HashMap<ClaimRef, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write that was sent at this moment has been committed; the stat is of a node that it changed.
    pub(crate) fn committed(&self, sent: Timestamp, stat: &Stat) {
        self.vouch(sent);
        if stat.mtime > 0 {
            let mut clock = self.clock();
            if clock.server.1 <= sent {
                clock.server = (stat.mtime, sent);
            }
        }
    }

    /// A write that was sent at this moment has been committed.
    pub(crate) fn vouch(&self, sent: Timestamp) {
        let mut clock = self.clock();
        clock.wrote = clock.wrote.max(sent);
    }

    /// How much is vouched for of what a request finds that began at this moment.
    pub(crate) fn remaining(&self, began: Timestamp) -> Duration {
        let wrote = self.clock().wrote;
        began.until(wrote.after(self.lease)).min(self.lease)
    }

    /// Whether so much of it has passed that a write should come before a grant.
    pub(crate) fn is_stale(&self, now: Timestamp) -> bool {
        self.clock().wrote.until(now) > self.lease / 3
    }

    /// The servers' calendar clock, as far as we know it.
    pub(crate) fn server_millis(&self, now: Timestamp) -> i64 {
        let (millis, at) = self.clock().server;
        millis.saturating_add(i64::try_from(at.until(now).as_millis()).unwrap_or(i64::MAX))
    }
}

/// Changes to the chroot, which is made if it is not there.
async fn root(client: Client, config: &Config) -> Result<Client, Fault> {
    if config.chroot.is_empty() {
        return Ok(client);
    }
    // Someone else may have made it, and may not let us: whether it will do shows with the first node in it.
    let acls = if config.is_private() { Acls::creator_all() } else { Acls::anyone_all() };
    match client.mkdir(&config.chroot, &CreateMode::Persistent.with_acls(acls)).await {
        Ok(()) | Err(Driver::NoAuth) => {}
        Err(error) => return Err(Fault::of(error)),
    }
    client.chroot(config.chroot.clone()).map_err(|_| Fault::of(Driver::BadArguments(&"chroot")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_vouched_for_ends_before_the_session_can() {
        let (timeout, tick) = (Duration::from_secs(10), Duration::from_secs(2));
        assert_eq!(lease_of(timeout, tick), Duration::from_secs(6));
        assert_eq!(lease_of(tick, tick), Duration::ZERO, "too short a session vouches for nothing");
    }
}
