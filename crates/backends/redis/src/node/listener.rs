//! Wake-ups when a lock of a quorum node is given back: one connection that subscribes to the channels of its
//! waiters.
//!
//! The connection is made for the first waiter. A wake-up may be missed; every waiter asks again by itself
//! after `at_most`.

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
    connect::{self, Peer},
    error::StoreError,
};

/// How often unused channels are unsubscribed and the connection is checked with a `PING`.
const CLEAN_UP_EVERY: Duration = Duration::from_secs(5);

/// Receives wake-ups for all waiters at one node.
pub(super) struct NodeListener {
    config: Config,
    environment: Arc<dyn Environment>,
    channels: Arc<Channels>,
    /// Held by the caller that connects. A failure is not shared with the callers that wait: each of them
    /// tries itself.
    connecting: tokio::sync::Mutex<()>,
}

/// The channels that waiters of this process wait for, and the connection where they are subscribed.
#[derive(Default)]
struct Channels(Mutex<ChannelState>);

#[derive(Default)]
struct ChannelState {
    connection: Option<Subscriber>,
    /// How many connections were made so far.
    connections_made: u64,
    by_name: HashMap<String, Channel>,
}

/// A connection that subscribes. Its number tells it from earlier ones.
#[derive(Clone)]
struct Subscriber {
    number: u64,
    driver: MultiplexedConnection,
}

#[derive(Default)]
struct Channel {
    wakeup: Arc<Notify>,
    waiters: usize,
    subscribed: bool,
}

/// A waiter at a channel, until this is dropped.
struct ChannelWaiter<'a> {
    channels: &'a Channels,
    name: &'a str,
}

impl Drop for ChannelWaiter<'_> {
    fn drop(&mut self) {
        if let Some(channel) = self.channels.state().by_name.get_mut(self.name) {
            channel.waiters -= 1;
        }
    }
}

impl ChannelState {
    fn is_current(&self, number: u64) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.number == number)
    }
}

impl Channels {
    fn state(&self) -> MutexGuard<'_, ChannelState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, name: &str) {
        if let Some(channel) = self.state().by_name.get(name) {
            channel.wakeup.notify_waiters();
        }
    }

    /// Whether the connection with this number is the one in use.
    fn is_current(&self, number: u64) -> bool {
        self.state().is_current(number)
    }

    /// The channel is subscribed, unless that connection was lost meanwhile.
    fn subscribed(&self, name: &str, number: u64) {
        let mut state = self.state();
        let is_current = state.is_current(number);
        if let Some(channel) = state.by_name.get_mut(name).filter(|_| is_current) {
            channel.subscribed = true;
        }
    }

    /// The connection is lost: all waiters are woken, ask again, and subscribe again. Does nothing if that
    /// connection is no longer in use.
    fn connection_lost(&self, number: u64) {
        let mut state = self.state();
        if !state.is_current(number) {
            return;
        }
        state.connection = None;
        for channel in state.by_name.values_mut() {
            channel.subscribed = false;
            channel.wakeup.notify_waiters();
        }
    }

    /// The channel was unsubscribed. A waiter that came after `take_unused` is woken and subscribes again.
    fn unsubscribed(&self, name: &str) {
        if let Some(channel) = self.state().by_name.get_mut(name) {
            channel.subscribed = false;
            channel.wakeup.notify_waiters();
        }
    }

    /// The channels without waiters. They are forgotten.
    fn take_unused(&self) -> Vec<String> {
        let mut state = self.state();
        let unused = state.by_name.iter().filter(|(_, channel)| channel.waiters == 0);
        let unused: Vec<String> = unused.map(|(name, _)| name.clone()).collect();
        unused.iter().for_each(|name| drop(state.by_name.remove(name)));
        unused
    }
}

impl NodeListener {
    pub(super) fn new(config: Config, environment: Arc<dyn Environment>) -> NodeListener {
        NodeListener {
            config,
            environment,
            channels: Arc::default(),
            connecting: tokio::sync::Mutex::new(()),
        }
    }

    /// Returns when a message arrives on the channel, or after `at_most`.
    pub(super) async fn wait(&self, channel: &str, at_most: Duration) -> Result<(), StoreError> {
        let (woken, _waiter) = {
            let mut state = self.channels.state();
            let entry = state.by_name.entry(channel.to_owned()).or_default();
            entry.waiters += 1;
            let waiter = ChannelWaiter { channels: &self.channels, name: channel };
            (Arc::clone(&entry.wakeup).notified_owned(), waiter)
        };
        self.subscribe(channel).await?;
        first(woken, self.environment.sleep(at_most)).await;
        Ok(())
    }

    async fn subscribe(&self, channel: &str) -> Result<(), StoreError> {
        let Subscriber { number, mut driver } = self.connection().await?;
        // Another waiter may have subscribed to it before.
        if self.channels.state().by_name.get(channel).is_some_and(|channel| channel.subscribed) {
            return Ok(());
        }
        if let Err(error) = driver.subscribe(channel).await.map_err(StoreError::Command) {
            // If the server refuses, the connection is still good.
            if error.is_unanswered() || error.breaks_connection() {
                self.channels.connection_lost(number);
            }
            return Err(error);
        }
        self.channels.subscribed(channel, number);
        Ok(())
    }

    async fn connection(&self) -> Result<Subscriber, StoreError> {
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = &self.channels.state().connection {
            return Ok(connection.clone());
        }
        let (sender, messages) = mpsc::unbounded_channel();
        let (host, port) = &self.config.hosts[0];
        let driver = connect::open(&self.config, Peer::server(host, *port), Some(sender)).await?;
        let connection = {
            let mut state = self.channels.state();
            state.connections_made += 1;
            let connection = Subscriber { number: state.connections_made, driver };
            state.connection = Some(connection.clone());
            connection
        };
        let channels = Arc::downgrade(&self.channels);
        let task = receive(channels, connection.clone(), messages, Arc::clone(&self.environment));
        self.environment.spawn(Box::pin(task));
        Ok(connection)
    }
}

/// Wakes waiters until the connection is lost or replaced, or the node is dropped.
async fn receive(
    channels: Weak<Channels>,
    Subscriber { number, mut driver }: Subscriber,
    mut messages: mpsc::UnboundedReceiver<PushInfo>,
    environment: Arc<dyn Environment>,
) {
    loop {
        let event = first(messages.recv(), environment.sleep(CLEAN_UP_EVERY)).await;
        let channels = channels.upgrade().filter(|channels| channels.is_current(number));
        let Some(channels) = channels else { return };
        match event {
            Either::Left(Some(push)) if push.kind == PushKind::Message => {
                if let Some(Value::BulkString(channel)) = push.data.first() {
                    channels.wake(&String::from_utf8_lossy(channel));
                }
            }
            Either::Left(Some(push)) if push.kind != PushKind::Disconnection => {}
            Either::Left(_) => return channels.connection_lost(number),
            Either::Right(()) => {
                for channel in channels.take_unused() {
                    if driver.unsubscribe(&channel).await.is_err() {
                        return channels.connection_lost(number);
                    }
                    channels.unsubscribed(&channel);
                }
                let ping = redis::cmd("PING");
                if driver.send_packed_command(&ping).await.is_err() {
                    return channels.connection_lost(number);
                }
            }
        }
    }
}
