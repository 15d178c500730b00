//! Wake-ups on a cluster: one connection to each node that has something someone waits for.
//!
//! A message that is published in a shard stays there, so a client has a channel for each resource that it waits for, in
//! the slot of that resource, however many wait for it. When a slot moves, its old node ends the subscription and says so;
//! when a connection or a node is lost, or the map says that another node has the slot, nobody hears any more. In each
//! case whoever waits is woken, asks again, and listens where the slot is by then.

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
    cluster::{Cluster, Node},
    error::{Fault, Redirect},
    keys::{Keys, resource_of},
    site::{self, Role},
    slot::slot_of,
    wait::{HEARTBEAT, Shared, pass_on},
};

/// How long a channel that was asked for may stay unconfirmed before it is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How soon after a connection was lost there may be the next one.
const REST: Duration = Duration::from_millis(100);
/// How many channels are asked for in one go.
const TOGETHER: usize = 200;

/// Who listens at which node: what is sent there is to be listened to.
#[derive(Debug, Default)]
pub(crate) struct Shards(Mutex<HashMap<u32, mpsc::UnboundedSender<String>>>);

impl Shards {
    fn listeners(&self) -> MutexGuard<'_, HashMap<u32, mpsc::UnboundedSender<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to what concerns this resource, from soon on.
    pub(crate) fn attend(self: &Arc<Shards>, shared: &Arc<Shared>, cluster: &Arc<Cluster>, resource: &str) {
        let Ok(node) = cluster.owner(slot_of(resource)) else { return };
        let mut listeners = self.listeners();
        let sender = match listeners.entry(node.number) {
            Entry::Occupied(listener) => listener.into_mut(),
            Entry::Vacant(nobody) => {
                let (sender, wanted) = mpsc::unbounded_channel();
                let listener = Listener {
                    environment: Arc::clone(&cluster.environment),
                    shared: Arc::downgrade(shared),
                    shards: Arc::downgrade(self),
                    cluster: Arc::downgrade(cluster),
                    node,
                    wanted,
                    asked: HashMap::new(),
                };
                cluster.environment.spawn(Box::pin(listener.listen()));
                nobody.insert(sender)
            }
        };
        let _ = sender.send(resource.to_owned());
    }
}

/// Listens at one node, on one connection, until that is lost.
struct Listener {
    environment: Arc<dyn Environment>,
    shared: Weak<Shared>,
    shards: Weak<Shards>,
    cluster: Weak<Cluster>,
    node: Arc<Node>,
    wanted: mpsc::UnboundedReceiver<String>,
    /// What was asked for, and when.
    asked: HashMap<String, Timestamp>,
}

impl Listener {
    async fn listen(mut self) {
        match self.connect().await {
            Ok((connection, messages)) => drop(self.hear(connection, messages).await),
            Err(fault) => tracing::debug!(?fault, "cannot listen for wake-ups"),
        }
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.suspect();
        }
        if let Some(shared) = self.shared.upgrade() {
            shared.deafen(|_, heard_at| heard_at == self.node.number);
        }
        self.environment.sleep(REST).await;
        // Whoever still waits asks for it again, and finds someone else to ask.
        if let Some(shards) = self.shards.upgrade() {
            shards.listeners().remove(&self.node.number);
        }
    }

    async fn connect(&self) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), Fault> {
        let (sender, messages) = mpsc::unbounded_channel();
        let (host, port) = &self.node.address;
        let config = &self.node.link.config;
        Ok((site::open(config, host, *port, Role::Server, Some(sender)).await?, messages))
    }

    /// Passes on messages until the connection is dead, or the client is gone.
    async fn hear(
        &mut self,
        mut connection: MultiplexedConnection,
        mut messages: mpsc::UnboundedReceiver<PushInfo>,
    ) -> Option<()> {
        let mut beat = self.environment.now().after(HEARTBEAT);
        loop {
            let nap = self.environment.sleep(self.environment.now().until(beat));
            match first(messages.recv(), first(self.wanted.recv(), nap)).await {
                Either::Left(Some(push)) if push.kind != PushKind::Disconnection => self.heard(&push)?,
                Either::Left(_) | Either::Right(Either::Left(None)) => return None,
                Either::Right(Either::Left(Some(resource))) => self.ask(&mut connection, resource).await?,
                Either::Right(Either::Right(())) => {
                    beat = self.environment.now().after(HEARTBEAT);
                    self.tidy(&mut connection).await?;
                }
            }
        }
    }

    fn heard(&mut self, push: &PushInfo) -> Option<()> {
        let shared = self.shared.upgrade()?;
        let channel = match push.data.first() {
            Some(Value::BulkString(channel)) => String::from_utf8_lossy(channel).into_owned(),
            _ => String::new(),
        };
        let Some(resource) = resource_of(&channel) else { return Some(()) };
        match push.kind {
            PushKind::SMessage => pass_on(&shared, push),
            PushKind::SSubscribe => shared.hears_of(resource, self.node.number),
            PushKind::SUnsubscribe => {
                self.asked.remove(resource);
                // Not at our wish: the slot has moved.
                if shared.unheard(resource, self.node.number) {
                    self.cluster.upgrade()?.suspect();
                }
            }
            _ => {}
        }
        Some(())
    }

    /// Asks for a channel, and for what else is wanted by now. What confirms it is the message that says so: an answer
    /// may belong to another question, since a node may say unasked that a subscription has ended.
    async fn ask(&mut self, connection: &mut MultiplexedConnection, resource: String) -> Option<()> {
        let (now, mut fresh, mut next) = (self.environment.now(), Vec::new(), Some(resource));
        while let Some(resource) = next {
            let asked = self.asked.get(&resource).is_some_and(|&at| now < at.after(ASK_AGAIN));
            if !asked {
                self.asked.insert(resource.clone(), now);
                fresh.push(resource);
            }
            next = if fresh.len() < TOGETHER { self.wanted.try_recv().ok() } else { None };
        }
        let answers = self.send(connection, "SSUBSCRIBE", &fresh).await?;
        for (answer, resource) in answers.into_iter().zip(fresh) {
            let fault = answer.extract_error().err().map(Fault::Command);
            if let Some(Redirect::Moved(host, port)) = fault.as_ref().and_then(Fault::redirect) {
                let cluster = self.cluster.upgrade()?;
                cluster.moved(slot_of(&resource), &cluster.node_at(&host, port, &self.node));
                self.shards.upgrade()?.attend(&self.shared.upgrade()?, &cluster, &resource);
            }
        }
        Some(())
    }

    /// Whether the connection lives; and gives up the channels that nobody waits for any more.
    async fn tidy(&mut self, connection: &mut MultiplexedConnection) -> Option<()> {
        let (now, idle) = (self.environment.now(), self.shared.upgrade()?.idle(self.node.number));
        // What was asked for long ago may be asked for again: no need to remember it.
        self.asked.retain(|resource, at| now < at.after(ASK_AGAIN) && !idle.contains(resource));
        let ping = Cmd::new().arg("PING").to_owned();
        connection.send_packed_command(&ping).await.ok()?;
        self.send(connection, "SUNSUBSCRIBE", &idle).await.map(drop)
    }

    async fn send(
        &self,
        connection: &mut MultiplexedConnection,
        verb: &str,
        resources: &[String],
    ) -> Option<Vec<Value>> {
        if resources.is_empty() {
            return Some(Vec::new());
        }
        let client = self.shared.upgrade()?.client().to_owned();
        let mut pipeline = Pipeline::with_capacity(resources.len());
        for resource in resources {
            pipeline.cmd(verb).arg(format!("{}{client}", Keys::of_key(resource).channels()));
        }
        connection.send_packed_commands(&pipeline, 0, resources.len()).await.ok()
    }
}
