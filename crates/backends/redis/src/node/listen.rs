//! Hints that a lock was given back: one connection that subscribes to the channels of those who wait.
//!
//! Made when the first one waits. A hint may be missed; whoever waits asks again by itself soon enough.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use leasehold_core::Environment;
use leasehold_support::race::{Either, first};
use redis::{PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::{Notify, mpsc};

use crate::{
    config::Config,
    error::Fault,
    site::{self, Role},
};

/// How often channels that nobody listens to any more are left, and a silent connection is tried.
const TIDY_EVERY: Duration = Duration::from_secs(5);

pub(super) struct Listener {
    config: Config,
    environment: Arc<dyn Environment>,
    shared: Arc<Shared>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// How many there have been.
    connections: u64,
    rooms: HashMap<String, Room>,
}

#[derive(Clone)]
struct Connection {
    number: u64,
    wire: MultiplexedConnection,
}

#[derive(Default)]
struct Room {
    bell: Arc<Notify>,
    guests: usize,
    subscribed: bool,
}

/// Someone who listens, until this is dropped.
struct Guest<'a> {
    shared: &'a Shared,
    channel: &'a str,
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if let Some(room) = self.shared.state().rooms.get_mut(self.channel) {
            room.guests -= 1;
        }
    }
}

impl State {
    fn uses(&self, number: u64) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.number == number)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, channel: &str) {
        if let Some(room) = self.state().rooms.get(channel) {
            room.bell.notify_waiters();
        }
    }

    /// Whether this connection is the one that is used.
    fn uses(&self, number: u64) -> bool {
        self.state().uses(number)
    }

    /// What is said on the channel is heard; if the connection has not been lost since.
    fn subscribed(&self, channel: &str, number: u64) {
        let mut state = self.state();
        let current = state.uses(number);
        if let Some(room) = state.rooms.get_mut(channel).filter(|_| current) {
            room.subscribed = true;
        }
    }

    /// The connection is lost: whoever listens asks again, and subscribes anew. One that was lost before changes nothing.
    fn lost(&self, number: u64) {
        let mut state = self.state();
        if !state.uses(number) {
            return;
        }
        state.connection = None;
        for room in state.rooms.values_mut() {
            room.subscribed = false;
            room.bell.notify_waiters();
        }
    }

    /// Nothing is said on this channel any more: whoever has come since it was empty subscribes anew.
    fn left(&self, channel: &str) {
        if let Some(room) = self.state().rooms.get_mut(channel) {
            room.subscribed = false;
            room.bell.notify_waiters();
        }
    }

    /// The rooms that are empty, which are forgotten.
    fn empty(&self) -> Vec<String> {
        let mut state = self.state();
        let empty = state.rooms.iter().filter(|(_, room)| room.guests == 0).map(|(name, _)| name.clone());
        let empty: Vec<String> = empty.collect();
        empty.iter().for_each(|name| drop(state.rooms.remove(name)));
        empty
    }
}

impl Listener {
    pub(super) fn new(config: Config, environment: Arc<dyn Environment>) -> Listener {
        Listener { config, environment, shared: Arc::default(), connecting: tokio::sync::Mutex::new(()) }
    }

    /// Returns when something is said on the channel, or after `at_most`.
    pub(super) async fn listen(&self, channel: &str, at_most: Duration) -> Result<(), Fault> {
        let (bell, _guest) = {
            let mut state = self.shared.state();
            let room = state.rooms.entry(channel.to_owned()).or_default();
            room.guests += 1;
            (Arc::clone(&room.bell).notified_owned(), Guest { shared: &self.shared, channel })
        };
        self.subscribe(channel).await?;
        first(bell, self.environment.sleep(at_most)).await;
        Ok(())
    }

    async fn subscribe(&self, channel: &str) -> Result<(), Fault> {
        let Connection { number, mut wire } = self.connection().await?;
        if self.shared.state().rooms.get(channel).is_some_and(|room| room.subscribed) {
            return Ok(());
        }
        if let Err(fault) = wire.subscribe(channel).await.map_err(Fault::Command) {
            // A server that refuses is still there.
            if fault.is_unanswered() || fault.breaks_connection() {
                self.shared.lost(number);
            }
            return Err(fault);
        }
        self.shared.subscribed(channel, number);
        Ok(())
    }

    async fn connection(&self) -> Result<Connection, Fault> {
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = &self.shared.state().connection {
            return Ok(connection.clone());
        }
        let (sender, messages) = mpsc::unbounded_channel();
        let (host, port) = &self.config.hosts[0];
        let wire = site::open(&self.config, host, *port, Role::Server, Some(sender)).await?;
        let connection = {
            let mut state = self.shared.state();
            state.connections += 1;
            let connection = Connection { number: state.connections, wire };
            state.connection = Some(connection.clone());
            connection
        };
        let hear =
            hear(Arc::downgrade(&self.shared), connection.clone(), messages, Arc::clone(&self.environment));
        self.environment.spawn(Box::pin(hear));
        Ok(connection)
    }
}

/// Passes on what is said until the connection is lost or given up, or the node is gone.
async fn hear(
    shared: Weak<Shared>,
    Connection { number, mut wire }: Connection,
    mut messages: mpsc::UnboundedReceiver<PushInfo>,
    environment: Arc<dyn Environment>,
) {
    loop {
        let news = first(messages.recv(), environment.sleep(TIDY_EVERY)).await;
        let Some(shared) = shared.upgrade().filter(|shared| shared.uses(number)) else { return };
        match news {
            Either::Left(Some(push)) if push.kind == PushKind::Message => {
                if let Some(Value::BulkString(channel)) = push.data.first() {
                    shared.ring(&String::from_utf8_lossy(channel));
                }
            }
            Either::Left(Some(push)) if push.kind != PushKind::Disconnection => {}
            Either::Left(_) => return shared.lost(number),
            Either::Right(()) => {
                for channel in shared.empty() {
                    if wire.unsubscribe(&channel).await.is_err() {
                        return shared.lost(number);
                    }
                    shared.left(&channel);
                }
                let ping = redis::cmd("PING");
                if wire.send_packed_command(&ping).await.is_err() {
                    return shared.lost(number);
                }
            }
        }
    }
}
