//! Wake-ups from PostgreSQL.
//!
//! Each client has one connection that listens on one channel, `leasehold_<client id>`, for all waiters and resources. The
//! SQL functions notify on it:
//!
//! | payload | sent when | who is woken |
//! |---|---|---|
//! | `<owner prefix>\|<resource>` | a claim in the queue can be granted, or its place is gone | the waiters of that owner |
//! | `*\|<resource>` | the resource changed | watchers, which have no place in the queue |
//! | `!\|<resource>` | places of the queue have expired | all waiters for the resource |
//!
//! A wake-up is a hint: one that is late, repeated or for another client costs one request. It can be lost. Therefore:
//!
//! 1. When the connection breaks, every waiter is woken and asks again.
//! 2. While no notifications arrive, because the connection broke or a pool gives the server connection away after each
//!    transaction, `is_connected` is false, waiters poll, and the functions get no channel to notify.
//! 3. That notifications arrive is tested with a *probe*: a notification to the own channel, sent over another connection.
//!    A session receives its own notifications even if a pool is about to give it to another client, so sending the probe
//!    over the listening connection would prove nothing. Behind a pool the probe is repeated with every heartbeat.
//!
//! The listening session also holds an advisory lock, with a random number of its own. The server frees it when the client is
//! killed, so a verb that wants to notify a claim sees that nobody listens any more (`leasehold.call` in `sql/resource.sql`).
//! A claim carries the number only while the session holds the lock. Behind a pool there is no such lock: the session of a
//! pool outlives its client.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Backoff, ClaimRef, Environment, Result};
use leasehold_support::{
    WaiterHandle, WaiterRegistry,
    race::{Either, first},
};
use tokio::sync::{mpsc, watch};
use tokio_postgres::{Notification, types::Type};

use crate::{
    connection::{Connection, Parameter, Statement},
    connections::Connections,
    reply::{Columns as _, first_row},
    schema::{Functions, in_schema},
};

/// How often a connection without notifications is tested.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long to wait before the next attempt if a probe did not arrive.
const RETRY_AFTER_LOST_PROBE: Duration = Duration::from_secs(60);
/// What the payload of a probe begins with.
const PROBE: &str = "hello";
/// Sends a probe.
const SEND_PROBE: &str = "SELECT pg_notify($1, $2), $3::bigint";
/// Tests whether the connection works.
const PING: &str = "SELECT $1::bigint";
/// Takes the advisory lock of a listener.
const TAKE_LOCK: &str = "SELECT pg_try_advisory_lock(leasehold.listener_class(), $1), $2::bigint";
/// How many numbers are tried for the lock. That the first one is in use is one chance in four thousand million for each client.
const LOCK_ATTEMPTS: usize = 3;

/// Receives wake-ups for all waiters of one client.
#[derive(Debug)]
pub(crate) struct WakeupListener {
    shared: Arc<SharedListener>,
    is_started: AtomicBool,
}

/// What the listener shares with its task.
#[derive(Debug)]
struct SharedListener {
    channel: String,
    /// The statement that takes the advisory lock; `None` if the functions in the database do not use it.
    take_lock: Option<String>,
    waiters: Arc<WaiterRegistry>,
    state: watch::Sender<ListenerState>,
}

/// Whether notifications arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerState {
    Unknown,
    Connected {
        /// The number of the advisory lock that the session holds.
        lock: Option<i32>,
    },
    Disconnected,
}

impl WakeupListener {
    /// The listener of the client with this id. It does nothing until [`WakeupListener::start`].
    pub(crate) fn new(client: u64, schema: &str, functions: Functions) -> WakeupListener {
        let (state, _) = watch::channel(ListenerState::Unknown);
        let channel = format!("leasehold_{client:016x}");
        let take_lock = (functions == Functions::Current).then(|| in_schema(TAKE_LOCK, schema));
        let shared = SharedListener { channel, take_lock, waiters: Arc::default(), state };
        WakeupListener { shared: Arc::new(shared), is_started: AtomicBool::new(false) }
    }

    /// The channel on which to notify this client; empty if notifications do not arrive.
    pub(crate) fn channel(&self) -> &str {
        // While it is unknown, the channel is stored: a notification that does not arrive costs nothing but its sending.
        if *self.shared.state.borrow() == ListenerState::Disconnected { "" } else { &self.shared.channel }
    }

    /// The number of the advisory lock that the listening session holds; `None` if it holds none.
    pub(crate) fn lock(&self) -> Option<i32> {
        match *self.shared.state.borrow() {
            ListenerState::Connected { lock } => lock,
            ListenerState::Unknown | ListenerState::Disconnected => None,
        }
    }

    /// Starts to listen, if it does not yet. Called by the first waiter: a client that never waits needs no connection.
    pub(crate) fn start(&self, connections: &Arc<Connections>, environment: &Arc<dyn Environment>) {
        if !self.is_started.swap(true, Ordering::Relaxed) {
            let (shared, connections) = (Arc::downgrade(&self.shared), Arc::downgrade(connections));
            environment.spawn(Box::pin(listen(shared, connections, Arc::clone(environment))));
        }
    }

    /// Waits until it is known whether notifications arrive, and returns it.
    pub(crate) async fn is_connected(&self) -> bool {
        let mut state = self.shared.state.subscribe();
        state
            .wait_for(|state| *state != ListenerState::Unknown)
            .await
            .is_ok_and(|state| matches!(*state, ListenerState::Connected { .. }))
    }

    /// Registers a waiter. A wake-up after this is not missed.
    pub(crate) fn register(&self, claim: &ClaimRef) -> WaiterHandle {
        self.shared.waiters.register(claim.clone())
    }
}

impl SharedListener {
    /// Wakes the waiters that a notification is for.
    fn wake(&self, payload: &str) {
        let Some((addressee, resource)) = payload.split_once('|') else { return };
        match addressee {
            "*" => self.waiters.wake_watchers(resource),
            "!" => self.waiters.wake_resource(resource),
            prefix => self.waiters.wake_owner(resource, |owner| owner.prefix() == prefix),
        }
    }
}

/// Listens, and connects again after a failure, until the client is dropped.
async fn listen(
    shared: Weak<SharedListener>,
    connections: Weak<Connections>,
    environment: Arc<dyn Environment>,
) {
    let mut backoff = Backoff::new();
    loop {
        // Only weak references are kept while it sleeps: the task must not keep a dropped client alive.
        let (Some(listener), Some(opened)) = (shared.upgrade(), connections.upgrade()) else { return };
        let pause = match subscribe(&listener, &opened, &environment).await {
            Ok(Some(subscription)) => {
                backoff = Backoff::new();
                // Also while it receives: only weak references.
                drop((listener, opened));
                if receive(&shared, &connections, subscription, &environment).await.is_none() {
                    return;
                }
                backoff.next(environment.random())
            }
            Ok(None) => {
                tracing::info!(
                    "notifications of PostgreSQL do not arrive, as behind a pool of transactions: waiters poll"
                );
                listener.state.send_replace(ListenerState::Disconnected);
                RETRY_AFTER_LOST_PROBE
            }
            Err(error) => {
                tracing::debug!(%error, "cannot listen for wake-ups: waiters poll");
                listener.state.send_replace(ListenerState::Disconnected);
                backoff.next(environment.random())
            }
        };
        environment.sleep(pause).await;
    }
}

/// A connection that listens, and the notifications that it receives.
struct Subscription {
    connection: Connection,
    /// The number of its advisory lock.
    lock: Option<i32>,
    notifications: mpsc::UnboundedReceiver<Notification>,
}

/// Opens a connection and listens on it; `None` if the probe does not arrive.
async fn subscribe(
    listener: &SharedListener,
    connections: &Arc<Connections>,
    environment: &Arc<dyn Environment>,
) -> Result<Option<Subscription>> {
    let (sender, notifications) = mpsc::unbounded_channel();
    let config = &connections.config;
    let connection = Connection::open(config, environment, &connections.ids, Some(sender)).await?;
    // Behind a pool the session may be another client's next. It must not keep our lock.
    let lock =
        if connections.is_pooled() { None } else { take_lock(listener, &connection, connections).await? };
    let mut subscription = Subscription { connection, lock, notifications };
    let listen = format!("LISTEN {}", listener.channel);
    subscription.connection.execute_unchecked(&listen, config.timeout).await?;
    let arrives = probe_arrives(listener, connections, &mut subscription, environment).await?;
    Ok(arrives.then_some(subscription))
}

/// Takes an advisory lock for this session, and returns its number.
async fn take_lock(
    listener: &SharedListener,
    connection: &Connection,
    connections: &Connections,
) -> Result<Option<i32>> {
    let Some(sql) = &listener.take_lock else { return Ok(None) };
    for _ in 0..LOCK_ATTEMPTS {
        // Not the number of the session before: its lock may still be held, if the server has not noticed that it is over.
        #[expect(clippy::cast_possible_truncation, reason = "any 32 bits will do")]
        let number = connections.environment.random() as i32;
        let parameters: [Parameter<'_>; 1] = [(&number, Type::INT4)];
        let reply = connection.query(&Statement::new(sql, &parameters), connections.config.timeout).await;
        if first_row(&reply.map_err(|failed| failed.error)?)?.read(0)? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Sends a probe over another connection, and returns whether it arrives in time.
async fn probe_arrives(
    listener: &SharedListener,
    connections: &Arc<Connections>,
    subscription: &mut Subscription,
    environment: &Arc<dyn Environment>,
) -> Result<bool> {
    // Every probe is different: the arrival of an old one proves nothing.
    let probe = format!("{PROBE} {}", connections.ids.next());
    connections.query(SEND_PROBE, &[(&listener.channel, Type::TEXT), (&probe, Type::TEXT)]).await?;
    let arrival = async {
        while let Some(notification) = subscription.notifications.recv().await {
            if notification.payload() == probe {
                return true;
            }
            // Wake-ups that arrive before the probe must not be lost.
            listener.wake(notification.payload());
        }
        false
    };
    let arrival = first(arrival, environment.sleep(connections.config.timeout)).await;
    Ok(matches!(arrival, Either::Left(true)))
}

/// Passes notifications on until the connection breaks; `None` if the client was dropped.
async fn receive(
    shared: &Weak<SharedListener>,
    connections: &Weak<Connections>,
    mut subscription: Subscription,
    environment: &Arc<dyn Environment>,
) -> Option<()> {
    shared.upgrade()?.state.send_replace(ListenerState::Connected { lock: subscription.lock });
    loop {
        let works = match first(subscription.notifications.recv(), environment.sleep(HEARTBEAT)).await {
            Either::Left(Some(notification)) => {
                shared.upgrade()?.wake(notification.payload());
                true
            }
            Either::Left(None) => false,
            Either::Right(()) => {
                let (listener, connections) = (shared.upgrade()?, connections.upgrade()?);
                // A ping over the listening connection proves nothing behind a pool: another session may answer it.
                if connections.is_pooled() {
                    probe_arrives(&listener, &connections, &mut subscription, environment)
                        .await
                        .unwrap_or(false)
                } else {
                    subscription.connection.query(&Statement::new(PING, &[]), HEARTBEAT).await.is_ok()
                }
            }
        };
        if !works {
            let listener = shared.upgrade()?;
            listener.state.send_replace(ListenerState::Disconnected);
            // Nobody knows which notifications were lost.
            listener.waiters.wake_all();
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::OwnerToken;

    fn claim(owner: u8) -> ClaimRef {
        ClaimRef { resource: "report/42".parse().unwrap(), owner: OwnerToken::from_bytes([owner; 16]) }
    }

    fn is_woken(waiter: &WaiterHandle) -> bool {
        let woken = std::pin::pin!(waiter.woken());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        woken.poll(&mut context).is_ready()
    }

    #[test]
    fn a_notification_wakes_the_waiters_that_it_is_for() {
        let listener = WakeupListener::new(7, "leasehold", Functions::Current);
        let (queued, watcher) = (listener.register(&claim(0xaa)), listener.register(&claim(0xbb)));
        queued.has_place();
        listener.shared.wake("*|report/42");
        assert_eq!((is_woken(&queued), is_woken(&watcher)), (false, true));
        listener.shared.wake("aaaaaaaa|report/42");
        assert_eq!((is_woken(&queued), is_woken(&watcher)), (true, false));
        listener.shared.wake("!|report/42");
        assert_eq!((is_woken(&queued), is_woken(&watcher)), (true, true));
        for other in ["*|report/43", "cccccccc|report/42", "nonsense", ""] {
            listener.shared.wake(other);
            assert!(!is_woken(&queued) && !is_woken(&watcher), "{other}");
        }
        drop((queued, watcher));
        assert!(listener.shared.waiters.is_empty(), "a dropped waiter leaves nothing behind");
    }
}
