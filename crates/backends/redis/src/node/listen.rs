//! Hints that a lock was given back: one connection that subscribes to the channels of those who wait.
//!
//! Made when the first one waits. A hint may be missed; whoever waits asks again by itself soon enough.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use leasehold_core::{
    Environment,
    race::{Either, first},
};
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
    connection: Option<MultiplexedConnection>,
    rooms: HashMap<String, Room>,
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

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, channel: &str) {
        if let Some(room) = self.state().rooms.get(channel) {
            room.bell.notify_waiters();
        }
    }

    /// The connection is lost: whoever listens asks again, and subscribes anew.
    fn lost(&self) {
        let mut state = self.state();
        state.connection = None;
        for room in state.rooms.values_mut() {
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
        let mut connection = self.connection().await?;
        if self.shared.state().rooms.get(channel).is_some_and(|room| room.subscribed) {
            return Ok(());
        }
        if let Err(error) = connection.subscribe(channel).await {
            self.shared.lost();
            return Err(Fault::Command(error));
        }
        if let Some(room) = self.shared.state().rooms.get_mut(channel) {
            room.subscribed = true;
        }
        Ok(())
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Fault> {
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = &self.shared.state().connection {
            return Ok(connection.clone());
        }
        let (sender, messages) = mpsc::unbounded_channel();
        let (host, port) = &self.config.hosts[0];
        let connection = site::open(&self.config, host, *port, Role::Server, Some(sender)).await?;
        self.shared.state().connection = Some(connection.clone());
        let hear =
            hear(Arc::downgrade(&self.shared), connection.clone(), messages, Arc::clone(&self.environment));
        self.environment.spawn(Box::pin(hear));
        Ok(connection)
    }
}

/// Passes on what is said until the connection is lost or the node is gone.
async fn hear(
    shared: Weak<Shared>,
    mut connection: MultiplexedConnection,
    mut messages: mpsc::UnboundedReceiver<PushInfo>,
    environment: Arc<dyn Environment>,
) {
    loop {
        let news = first(messages.recv(), environment.sleep(TIDY_EVERY)).await;
        let Some(shared) = shared.upgrade() else { return };
        match news {
            Either::Left(Some(push)) if push.kind == PushKind::Message => {
                if let Some(Value::BulkString(channel)) = push.data.first() {
                    shared.ring(&String::from_utf8_lossy(channel));
                }
            }
            Either::Left(Some(push)) if push.kind != PushKind::Disconnection => {}
            Either::Left(_) => return shared.lost(),
            Either::Right(()) => {
                for channel in shared.empty() {
                    if connection.unsubscribe(&channel).await.is_err() {
                        return shared.lost();
                    }
                }
                let ping = redis::cmd("PING");
                if connection.send_packed_command(&ping).await.is_err() {
                    return shared.lost();
                }
            }
        }
    }
}
