//! Wake-ups on a cluster: one connection to each node that has a resource which a waiter of this client waits
//! for.
//!
//! A message that is published in a shard stays there (ADR 0014). So a client subscribes to one channel for
//! each resource, in the slot of that resource, however many of its waiters wait for it.
//!
//! A subscription ends when
//! - its slot moves: the old node sends `SUNSUBSCRIBE` by itself;
//! - the connection is lost;
//! - the slot map says that another node has the slot.
//!
//! In each case the waiters of the resource are woken, ask again, and subscribe at the node that has the slot
//! by then.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use leasehold_core::{Environment, Timestamp};
use leasehold_support::race::{Either, first};
use redis::{Cmd, Pipeline, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::mpsc;

use crate::{
    cluster::{Cluster, PrimaryNode},
    connect::{self, Peer},
    error::{Redirect, StoreError},
    keys::{Keys, resource_of},
    listener::{HEARTBEAT, ListenerState, wake_for_push},
    slot::slot_of_tag,
};

/// How long a subscription may stay unconfirmed before it is requested again.
const REQUEST_AGAIN: Duration = Duration::from_secs(1);
/// The pause after a lost connection before the next one to the same node.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How many channels are subscribed in one pipeline.
const CHANNELS_AT_ONCE: usize = 200;

/// The listeners by node number: a resource that is sent there is subscribed.
#[derive(Debug, Default)]
pub(crate) struct ShardListeners(Mutex<HashMap<u32, mpsc::UnboundedSender<String>>>);

impl ShardListeners {
    fn by_node(&self) -> MutexGuard<'_, HashMap<u32, mpsc::UnboundedSender<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to the channel of this resource, soon. Starts the listener of its node if there is none.
    pub(crate) fn subscribe(
        self: &Arc<ShardListeners>,
        state: &Arc<ListenerState>,
        cluster: &Arc<Cluster>,
        resource: &str,
    ) {
        let Ok(node) = cluster.owner(slot_of_tag(resource)) else { return };
        let mut by_node = self.by_node();
        let sender = match by_node.entry(node.number) {
            Entry::Occupied(listener) => listener.into_mut(),
            Entry::Vacant(vacant) => {
                let (sender, wanted) = mpsc::unbounded_channel();
                let listener = ShardListener {
                    environment: Arc::clone(&cluster.environment),
                    state: Arc::downgrade(state),
                    listeners: Arc::downgrade(self),
                    cluster: Arc::downgrade(cluster),
                    node,
                    wanted,
                    requested: HashMap::new(),
                };
                cluster.environment.spawn(Box::pin(listener.listen()));
                vacant.insert(sender)
            }
        };
        // A listener that is about to end ignores it. Then the waiter polls, and subscribes with its next
        // `wait`.
        let _ = sender.send(resource.to_owned());
    }
}

/// The subscriptions at one node, on one connection, until that connection is lost.
struct ShardListener {
    environment: Arc<dyn Environment>,
    state: Weak<ListenerState>,
    listeners: Weak<ShardListeners>,
    cluster: Weak<Cluster>,
    node: Arc<PrimaryNode>,
    /// The resources to subscribe to.
    wanted: mpsc::UnboundedReceiver<String>,
    /// When the subscription of each resource was last requested.
    requested: HashMap<String, Timestamp>,
}

impl ShardListener {
    async fn listen(mut self) {
        match self.connect().await {
            Ok((driver, messages)) => drop(self.receive(driver, messages).await),
            Err(error) => tracing::debug!(?error, node = %self.node, "cannot subscribe to wake-ups"),
        }
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.suspect_map();
        }
        if let Some(state) = self.state.upgrade() {
            state.end_subscriptions(|_, node| node == self.node.number);
        }
        self.environment.sleep(RECONNECT_PAUSE).await;
        // From here on the next waiter starts a new listener.
        if let Some(listeners) = self.listeners.upgrade() {
            listeners.by_node().remove(&self.node.number);
        }
    }

    async fn connect(
        &self,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), StoreError> {
        let (sender, messages) = mpsc::unbounded_channel();
        let (host, port) = &self.node.address;
        let config = &self.node.connections.config;
        Ok((connect::open(config, Peer::server(host, *port), Some(sender)).await?, messages))
    }

    /// Wakes waiters until the connection is lost or the client is dropped.
    async fn receive(
        &mut self,
        mut driver: MultiplexedConnection,
        mut messages: mpsc::UnboundedReceiver<PushInfo>,
    ) -> Option<()> {
        let mut heartbeat_at = self.environment.now().after(HEARTBEAT);
        loop {
            let heartbeat = self.environment.sleep(self.environment.now().until(heartbeat_at));
            match first(messages.recv(), first(self.wanted.recv(), heartbeat)).await {
                Either::Left(Some(push)) if push.kind != PushKind::Disconnection => self.handle(&push)?,
                Either::Left(_) | Either::Right(Either::Left(None)) => return None,
                Either::Right(Either::Left(Some(resource))) => {
                    self.request(&mut driver, resource).await?;
                }
                Either::Right(Either::Right(())) => {
                    heartbeat_at = self.environment.now().after(HEARTBEAT);
                    self.check_and_clean_up(&mut driver).await?;
                }
            }
        }
    }

    fn handle(&mut self, push: &PushInfo) -> Option<()> {
        let state = self.state.upgrade()?;
        let channel = match push.data.first() {
            Some(Value::BulkString(channel)) => String::from_utf8_lossy(channel).into_owned(),
            _ => String::new(),
        };
        let Some(resource) = resource_of(&channel) else { return Some(()) };
        match push.kind {
            PushKind::SMessage => wake_for_push(&state, push),
            PushKind::SSubscribe => state.subscription_confirmed(resource, self.node.number),
            PushKind::SUnsubscribe => {
                self.requested.remove(resource);
                // Before this client unsubscribes it forgets the subscription, so this one was ended by the
                // node: the slot has moved.
                if state.subscription_ended(resource, self.node.number) {
                    self.cluster.upgrade()?.suspect_map();
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Requests the subscription of a resource, and of the other resources that are wanted by now.
    ///
    /// The pushed message `ssubscribe` confirms a subscription, not the reply to the command: a node may send
    /// `sunsubscribe` at any time, and the driver can take that for the reply.
    async fn request(&mut self, driver: &mut MultiplexedConnection, resource: String) -> Option<()> {
        let (now, mut new, mut next) = (self.environment.now(), Vec::new(), Some(resource));
        while let Some(resource) = next {
            let is_requested = self.requested.get(&resource).is_some_and(|&at| now < at.after(REQUEST_AGAIN));
            if !is_requested {
                self.requested.insert(resource.clone(), now);
                new.push(resource);
            }
            next = if new.len() < CHANNELS_AT_ONCE { self.wanted.try_recv().ok() } else { None };
        }
        let replies = self.send(driver, "SSUBSCRIBE", &new).await?;
        for (reply, resource) in replies.into_iter().zip(new) {
            let error = reply.extract_error().err().map(StoreError::Command);
            if let Some(Redirect::Moved(host, port)) = error.as_ref().and_then(StoreError::redirect) {
                let cluster = self.cluster.upgrade()?;
                cluster.slot_moved(slot_of_tag(&resource), &cluster.node_at(&host, port, &self.node));
                self.listeners.upgrade()?.subscribe(&self.state.upgrade()?, &cluster, &resource);
            }
        }
        Some(())
    }

    /// Checks that the connection is alive, and unsubscribes from channels without waiters.
    async fn check_and_clean_up(&mut self, driver: &mut MultiplexedConnection) -> Option<()> {
        let (now, unused) = (self.environment.now(), self.state.upgrade()?.take_unused(self.node.number));
        // An old request may be repeated, so it need not be remembered.
        self.requested.retain(|resource, at| now < at.after(REQUEST_AGAIN) && !unused.contains(resource));
        let ping = Cmd::new().arg("PING").to_owned();
        driver.send_packed_command(&ping).await.ok()?;
        self.send(driver, "SUNSUBSCRIBE", &unused).await.map(drop)
    }

    async fn send(
        &self,
        driver: &mut MultiplexedConnection,
        verb: &str,
        resources: &[String],
    ) -> Option<Vec<Value>> {
        if resources.is_empty() {
            return Some(Vec::new());
        }
        let client_id = self.state.upgrade()?.client_id().to_owned();
        let mut pipeline = Pipeline::with_capacity(resources.len());
        for resource in resources {
            pipeline.cmd(verb).arg(format!("{}{client_id}", Keys::of_key(resource).wakeup_channel_prefix()));
        }
        driver.send_packed_commands(&pipeline, 0, resources.len()).await.ok()
    }
}
