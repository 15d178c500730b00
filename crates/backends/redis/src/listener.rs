//! Receives wake-ups from Redis.
//!
//! Each client has one subscription, to the channel `lock:v1:wake:<client id>`. A script that lets a waiter
//! move publishes `<owner>|<resource>` there; a script that changes what other clients watch publishes
//! `*|<resource>`.
//!
//! A message can be lost with the connection. Therefore:
//! 1. When the subscription breaks, every waiter is woken and asks again.
//! 2. Until the next subscription is confirmed, `is_connected` is false and waiters poll twice a second.
//! 3. No waiter sleeps longer than its `at_most`, whatever happens here.
//! 4. Every request of a waiter says whether the subscription is confirmed. If it was, and nobody receives the wake-up, the
//!    script takes this client for dead and passes over its waiters until they are heard: see
//!    `resource_variables.lua` and ADR 0045.
//!
//! For the same reason the messages need no request id (ADR 0033): a wrong one wakes a waiter, which then
//! asks, and a missing one leaves a waiter asleep until its time is up.
//!
//! On a cluster there is one subscription for each shard and one channel for each resource: see
//! `shard_listener.rs`.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Backoff, ClaimRef, Cursor, Environment, ErrorKind, OwnerToken, Resource, Timestamp};
use leasehold_support::{
    WaiterHandle, WaiterRegistry,
    race::{Either, first},
    waiters::ResourceState,
};
use redis::{Cmd, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::{Notify, mpsc, watch};

use crate::{
    cluster::{Cluster, SlotObserver},
    config::Config,
    connect::{self, Peer, ServerAddress},
    error::StoreError,
    keys::WAKEUP_CHANNEL_PREFIX,
    pending_wakeups::PendingWakeups,
    router::Router,
    sentinel::PrimaryObserver,
    shard_listener::ShardListeners,
    slot::slot_of_tag,
};

/// How often a subscription that receives nothing is checked with a `PING`.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// The longest pause before the Sentinels are asked again for a primary to subscribe at. Meanwhile waiters
/// poll.
const FIND_PRIMARY_EVERY: Duration = Duration::from_millis(300);

/// A waiter of this client. Dropping it removes it from the registry.
pub(crate) type Waiter = WaiterHandle<ShardSubscription>;

/// Receives wake-ups for all waiters of one client.
#[derive(Debug)]
pub(crate) struct WakeupListener {
    state: Arc<ListenerState>,
    /// Whether the task that subscribes has been started.
    started: AtomicBool,
    pending: Mutex<PendingWakeups>,
    /// On a cluster, the listeners of the shards.
    shards: Option<Arc<ShardListeners>>,
}

/// What the listener shares with its tasks.
#[derive(Debug)]
pub(crate) struct ListenerState {
    client_id: String,
    waiters: Arc<WaiterRegistry<ShardSubscription>>,
    /// Whether the subscription is confirmed. Not used on a cluster.
    connected: watch::Sender<bool>,
    /// Where the subscription is, if there is one.
    subscribed_at: Mutex<Option<ServerAddress>>,
    /// Notified when the subscription is at a server that is no longer the primary.
    primary_changed: Notify,
}

/// On a cluster: where the channel of a resource is subscribed.
#[derive(Debug, Default)]
pub(crate) struct ShardSubscription {
    /// The number of the node, if the subscription is confirmed.
    node: Option<u32>,
    /// Notified when a subscription is confirmed.
    confirmed: Arc<Notify>,
}

impl ResourceState for ShardSubscription {
    /// A subscription outlives its waiters: the next waiter finds it open. The shard listener ends it when it
    /// stays unused.
    fn is_needed(&self) -> bool {
        self.node.is_some()
    }
}

impl WakeupListener {
    pub(crate) fn new(client_id: String, is_cluster: bool) -> WakeupListener {
        let (connected, _) = watch::channel(false);
        let state = Arc::new(ListenerState {
            client_id,
            waiters: Arc::default(),
            connected,
            subscribed_at: Mutex::default(),
            primary_changed: Notify::new(),
        });
        let shards = is_cluster.then(Arc::default);
        WakeupListener { state, started: AtomicBool::new(false), pending: Mutex::default(), shards }
    }

    pub(crate) fn client_id(&self) -> &str {
        &self.state.client_id
    }

    /// Makes sure that wake-ups for this resource are subscribed to, or soon will be. Nothing is subscribed
    /// to before the first waiter.
    pub(crate) fn start(&self, router: &Router, resource: &Resource, environment: &Arc<dyn Environment>) {
        if let (Some(shards), Some(cluster)) = (&self.shards, router.cluster()) {
            if !self.is_connected(resource) {
                shards.subscribe(&self.state, cluster, resource.key());
            }
        } else if !self.started.swap(true, Ordering::Relaxed) {
            let (state, config) = (Arc::downgrade(&self.state), router.config().clone());
            environment.spawn(Box::pin(listen(state, config, Arc::clone(environment))));
        }
    }

    /// The observer of changes of the primary and of slots.
    pub(crate) fn observer(&self) -> Weak<impl PrimaryObserver + SlotObserver> {
        Arc::downgrade(&self.state)
    }

    /// Resolves when wake-ups for this resource are received. The caller must have registered a waiter for
    /// it.
    pub(crate) async fn connected(&self, resource: &Resource) {
        if self.shards.is_none() {
            let mut connected = self.state.connected.subscribe();
            let _ = connected.wait_for(|connected| *connected).await;
            return;
        }
        loop {
            let confirmed =
                self.state.waiters.read(resource.key(), |waiters| Arc::clone(&waiters.state.confirmed));
            let Some(confirmed) = confirmed else { return };
            // Created before the check, so that a confirmation in between is not missed.
            let confirmed = confirmed.notified();
            if self.is_connected(resource) {
                return;
            }
            confirmed.await;
        }
    }

    /// Whether wake-ups for this resource are received now.
    pub(crate) fn is_connected(&self, resource: &Resource) -> bool {
        match self.shards {
            None => *self.state.connected.borrow(),
            Some(_) => {
                let subscribed =
                    self.state.waiters.read(resource.key(), |waiters| waiters.state.node.is_some());
                subscribed == Some(true)
            }
        }
    }

    /// Registers a waiter. A wake-up that arrives after this is not missed.
    pub(crate) fn register(&self, claim: ClaimRef) -> Waiter {
        self.state.waiters.register(claim)
    }

    fn pending(&self) -> MutexGuard<'_, PendingWakeups> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the waiter of a claim that has a place in the queue, until
    /// [`take_pending`](WakeupListener::take_pending).
    pub(crate) fn keep_pending(&self, waiter: Waiter, since: Cursor, now: Timestamp, place_ttl: Duration) {
        waiter.has_place();
        self.pending().keep(waiter, since, now, place_ttl);
    }

    /// The waiter that was kept for a claim, if it has missed no wake-up since this cursor.
    pub(crate) fn take_pending(&self, claim: &ClaimRef, since: Cursor) -> Option<Waiter> {
        let waiter = self.pending().take(claim, since)?;
        self.is_connected(&claim.resource).then_some(waiter)
    }
}

impl PrimaryObserver for ListenerState {
    fn primary_is(&self, address: &ServerAddress) {
        let ours = self.subscribed_at.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if ours.is_some_and(|ours| address.supersedes(&ours)) {
            self.primary_changed.notify_one();
        }
    }
}

impl SlotObserver for ListenerState {
    /// Wakes the waiters whose channel is subscribed at a node that no longer has the slot.
    fn slots_moved(&self, cluster: &Cluster) {
        let has_slot = |resource: &str, node: u32| {
            cluster.owner(slot_of_tag(resource)).is_ok_and(|owner| owner.number == node)
        };
        self.end_subscriptions(|resource, node| !has_slot(resource, node));
    }
}

impl ListenerState {
    pub(crate) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The channel of this resource is subscribed at this node. If no claim waits any more, `take_unused` finds
    /// it later.
    pub(crate) fn subscription_confirmed(&self, resource: &str, node: u32) {
        self.waiters.update_or_insert(resource, |waiters| {
            waiters.state.node = Some(node);
            waiters.state.confirmed.notify_waiters();
        });
    }

    /// The subscription of this resource at this node has ended: wakes its waiters. Returns false if there
    /// was none.
    pub(crate) fn subscription_ended(&self, resource: &str, node: u32) -> bool {
        let ended = self.waiters.update(resource, |waiters| {
            let was_here = waiters.state.node == Some(node);
            if was_here {
                waiters.state.node = None;
                waiters.wake_all();
            }
            was_here
        });
        ended == Some(true)
    }

    /// Ends the subscriptions for which `is_lost(resource, node)` holds, and wakes their waiters.
    pub(crate) fn end_subscriptions(&self, is_lost: impl Fn(&str, u32) -> bool) {
        self.waiters.update_all(|resource, waiters| {
            if waiters.state.node.is_some_and(|node| is_lost(resource, node)) {
                waiters.state.node = None;
                waiters.wake_all();
            }
        });
    }

    /// The resources that are subscribed at this node although no claim waits. They are removed.
    pub(crate) fn take_unused(&self, node: u32) -> Vec<String> {
        let mut unused = Vec::new();
        self.waiters.update_all(|resource, waiters| {
            if waiters.is_empty() && waiters.state.node == Some(node) {
                waiters.state.node = None;
                unused.push(resource.to_owned());
            }
        });
        unused
    }

    /// Wakes the waiters that a message is for: `<owner>|<resource>` or `*|<resource>`.
    fn wake(&self, message: &str) {
        let Some((owner, resource)) = message.split_once('|') else { return };
        match owner.parse::<OwnerToken>() {
            Ok(owner) => self.waiters.wake_owner(resource, |waiting| waiting == owner),
            Err(_) => self.waiters.wake_watchers(resource),
        }
    }

    fn set_subscribed_at(&self, address: Option<ServerAddress>) {
        *self.subscribed_at.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}

/// Subscribes, and subscribes again when the connection is lost, until the client is dropped.
async fn listen(state: Weak<ListenerState>, config: Config, environment: Arc<dyn Environment>) {
    let initial =
        if config.service.is_some() { Backoff::at_most(FIND_PRIMARY_EVERY) } else { Backoff::new() };
    let mut backoff = initial;
    loop {
        let channel = state.upgrade().map(|state| format!("{WAKEUP_CHANNEL_PREFIX}{}", state.client_id));
        let Some(channel) = channel else { return };
        match subscribe(&config, &channel).await {
            Ok((driver, messages, address)) => {
                backoff = initial;
                state.upgrade().inspect(|state| state.set_subscribed_at(Some(address)));
                if receive(&state, driver, messages, &environment).await.is_none() {
                    return;
                }
            }
            Err(error) if error.clone().into_error().kind() == ErrorKind::Denied => {
                let error = error.into_error();
                tracing::warn!(%error, "may not subscribe to wake-ups: waiters ask twice a second instead");
            }
            Err(error) => tracing::debug!(?error, "cannot subscribe to wake-ups"),
        }
        let pause = backoff.next(environment.random());
        environment.sleep(pause).await;
    }
}

type Subscription = (MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>, ServerAddress);

async fn subscribe(config: &Config, channel: &str) -> Result<Subscription, StoreError> {
    let (sender, messages) = mpsc::unbounded_channel();
    let address = connect::find_primary(config).await?;
    let peer = Peer::server(&address.host, address.port);
    let mut driver = connect::open(config, peer, Some(sender)).await?;
    driver.subscribe(channel).await.map_err(StoreError::Command)?;
    Ok((driver, messages, address))
}

/// Wakes waiters until the connection is lost; returns `None` if the client was dropped.
async fn receive(
    state: &Weak<ListenerState>,
    mut driver: MultiplexedConnection,
    mut messages: mpsc::UnboundedReceiver<PushInfo>,
    environment: &Arc<dyn Environment>,
) -> Option<()> {
    // No waiter misses anything here: one that registered before was woken when the last subscription was
    // lost, and one that registered since asks the server after this, or polls.
    state.upgrade()?.connected.send_replace(true);
    loop {
        // This future keeps the state alive for one heartbeat at the most. Then a dropped client is noticed.
        let primary_changed = {
            let state = state.upgrade()?;
            async move { state.primary_changed.notified().await }
        };
        let event = first(messages.recv(), first(environment.sleep(HEARTBEAT), primary_changed)).await;
        let is_alive = match event {
            Either::Left(Some(push)) if push.kind != PushKind::Disconnection => {
                wake_for_push(&*state.upgrade()?, &push);
                true
            }
            Either::Left(_) | Either::Right(Either::Right(())) => false,
            Either::Right(Either::Left(())) => {
                state.upgrade()?;
                let ping = Cmd::new().arg("PING").to_owned();
                driver.send_packed_command(&ping).await.is_ok()
            }
        };
        if !is_alive {
            let state = state.upgrade()?;
            state.set_subscribed_at(None);
            state.connected.send_replace(false);
            state.waiters.wake_all();
            return Some(());
        }
    }
}

/// Wakes the waiters that a pushed message is for.
pub(crate) fn wake_for_push(state: &ListenerState, push: &PushInfo) {
    if !matches!(push.kind, PushKind::Message | PushKind::SMessage) {
        return;
    }
    if let Some(Value::BulkString(message)) = push.data.get(1) {
        state.wake(&String::from_utf8_lossy(message));
    }
}
