//! Wake-ups: one connection that listens to one channel, however many wait for however many resources.
//!
//! A script that lets someone move publishes `owner|resource` on the channel of the client where that one waits; one
//! that changes what others watch publishes `*|resource`. A message may be lost with the connection, so everyone is
//! woken when it is lost, nobody relies on it before there is a new one, and nobody waits longer than told.
//! For the same reason nothing that arrives here need prove which request it answers: it can only wake a waiter, which
//! then asks, or leave it asleep until its time is up.
//!
//! On a cluster there is a connection for each shard and a channel for each resource: see `shards`.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Backoff, ClaimRef, Cursor, Environment, ErrorKind, OwnerToken, Resource, Timestamp};
use redis::{Cmd, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::sync::{Notify, mpsc, watch};

use crate::{
    cluster::{self, Cluster},
    config::Config,
    error::Fault,
    keys::CHANNELS,
    route::Route,
    sentinel::Follower,
    shards::Shards,
    site::{self, Address, Role},
    slot::slot_of,
};
use leasehold_support::race::{Either, first};

/// How often a silent subscription is asked whether it lives.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// How long to wait before Sentinels are asked again for a primary to listen to. Until there is one, waiters poll.
const SEARCH_EVERY: Duration = Duration::from_millis(300);

/// The ear of a client.
#[derive(Debug)]
pub(crate) struct Ear {
    shared: Arc<Shared>,
    started: AtomicBool,
    letters: Mutex<Letters>,
    /// On a cluster, who listens where.
    shards: Option<Arc<Shards>>,
}

/// Those who took a place and have not begun to wait: what they are told meanwhile is kept for them, so that they need
/// not ask the server whether they missed something.
#[derive(Debug, Default)]
struct Letters {
    by_owner: HashMap<OwnerToken, Letter>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Letter {
    waiting: Waiting,
    since: Cursor,
    until: Timestamp,
}

/// How many letters are kept before the first look for those that nobody will fetch.
const SWEEP_MIN: usize = 64;

/// What the listeners know.
#[derive(Debug)]
pub(crate) struct Shared {
    client: String,
    rooms: Mutex<Rooms>,
    hears: watch::Sender<bool>,
    /// Where the connection leads, if there is one.
    listens_at: Mutex<Option<Address>>,
    /// Rung when the connection leads to the wrong server.
    moved: Notify,
}

#[derive(Debug, Default)]
struct Rooms {
    by_resource: HashMap<String, Room>,
    next_number: u64,
}

/// Those who wait for one resource.
#[derive(Debug, Default)]
struct Room {
    guests: Vec<Guest>,
    /// On a cluster: the number of the node where someone listens for them.
    heard_at: Option<u32>,
    /// Rung when someone does.
    listened: Arc<Notify>,
}

/// Someone who waits for a resource.
#[derive(Debug)]
struct Guest {
    number: u64,
    owner: OwnerToken,
    /// It has no place: any change is its business.
    watches: bool,
    bell: Arc<Notify>,
}

/// Someone who waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    claim: ClaimRef,
    number: u64,
    bell: Arc<Notify>,
}

impl Ear {
    /// The ear of the client with this id.
    pub(crate) fn new(client: String, sharded: bool) -> Ear {
        let (hears, _) = watch::channel(false);
        let (rooms, listens_at, moved) = (Mutex::default(), Mutex::default(), Notify::new());
        let shared = Arc::new(Shared { client, rooms, hears, listens_at, moved });
        let shards = sharded.then(Arc::default);
        Ear { shared, started: AtomicBool::new(false), letters: Mutex::default(), shards }
    }

    pub(crate) fn client(&self) -> &str {
        &self.shared.client
    }

    /// Listens to what concerns this resource. Costs nothing until the first one waits.
    pub(crate) fn attend(&self, route: &Route, resource: &Resource, environment: &Arc<dyn Environment>) {
        let config = route.config();
        if let (Some(shards), Some(cluster)) = (&self.shards, route.cluster()) {
            if self.is_deaf(resource) {
                shards.attend(&self.shared, cluster, resource.key());
            }
        } else if !self.started.swap(true, Ordering::Relaxed) {
            let (shared, config) = (Arc::downgrade(&self.shared), config.clone());
            environment.spawn(Box::pin(listen(shared, config, Arc::clone(environment))));
        }
    }

    /// For whoever tells it that the primary is another one.
    pub(crate) fn follower(&self) -> Weak<impl Follower + cluster::Follower> {
        Arc::downgrade(&self.shared)
    }

    /// Resolves once it hears what concerns this resource, for someone who waits for it.
    pub(crate) async fn hears(&self, resource: &Resource) {
        if self.shards.is_none() {
            let mut hears = self.shared.hears.subscribe();
            let _ = hears.wait_for(|hears| *hears).await;
            return;
        }
        loop {
            let listened = self.shared.rooms().room(resource.key()).map(|room| Arc::clone(&room.listened));
            let Some(listened) = listened else { return };
            let rung = listened.notified();
            if !self.is_deaf(resource) {
                return;
            }
            rung.await;
        }
    }

    pub(crate) fn is_deaf(&self, resource: &Resource) -> bool {
        match self.shards {
            None => !*self.shared.hears.borrow(),
            Some(_) => {
                let rooms = self.shared.rooms();
                rooms.by_resource.get(resource.key()).is_none_or(|room| room.heard_at.is_none())
            }
        }
    }

    /// Waits from now on: what is told after this is not missed.
    pub(crate) fn begin(&self, claim: ClaimRef) -> Waiting {
        let bell = Arc::new(Notify::new());
        let mut rooms = self.shared.rooms();
        rooms.next_number += 1;
        let number = rooms.next_number;
        let guest = Guest { number, owner: claim.owner, watches: true, bell: Arc::clone(&bell) };
        match rooms.room(claim.resource.key()) {
            Some(room) => room.guests.push(guest),
            None => {
                let room = Room { guests: vec![guest], ..Room::default() };
                rooms.by_resource.insert(claim.resource.key().to_owned(), room);
            }
        }
        drop(rooms);
        Waiting { shared: Arc::clone(&self.shared), claim, number, bell }
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has a place since this cursor: keeps what it is told until it waits, or the place is surely gone.
    pub(crate) fn keep_letters(&self, waiting: Waiting, since: Cursor, now: Timestamp, place_ttl: Duration) {
        waiting.has_place();
        let (owner, until) = (waiting.claim.owner, now.after(place_ttl));
        let mut letters = self.letters();
        letters.by_owner.insert(owner, Letter { waiting, since, until });
        if letters.by_owner.len() > letters.sweep_at.max(SWEEP_MIN) {
            letters.by_owner.retain(|_, letter| letter.until > now);
            letters.sweep_at = letters.by_owner.len() * 2;
        }
    }

    /// What was kept for a claim, if that goes back to the cursor.
    pub(crate) fn take_letters(&self, claim: &ClaimRef, since: Cursor) -> Option<Waiting> {
        let letter = self.letters().by_owner.remove(&claim.owner)?;
        (letter.since == since && letter.waiting.claim == *claim && !self.is_deaf(&claim.resource))
            .then_some(letter.waiting)
    }
}

impl Follower for Shared {
    fn primary_is(&self, address: &Address) {
        let ours = self.listens_at.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if ours.is_some_and(|ours| address.supersedes(&ours)) {
            self.moved.notify_one();
        }
    }
}

impl cluster::Follower for Shared {
    /// Whoever is listened for at a node that has the slot no longer is woken.
    fn slots_moved(&self, cluster: &Cluster) {
        let has = |resource: &str, node: u32| {
            cluster.owner(slot_of(resource)).is_ok_and(|owner| owner.number == node)
        };
        self.deafen(|resource, heard_at| !has(resource, heard_at));
    }
}

impl Rooms {
    fn room(&mut self, resource: &str) -> Option<&mut Room> {
        self.by_resource.get_mut(resource)
    }
}

impl Room {
    fn deafen(&mut self) {
        self.heard_at = None;
        self.wake();
    }

    fn wake(&self) {
        self.guests.iter().for_each(|guest| guest.bell.notify_one());
    }
}

impl Shared {
    pub(crate) fn client(&self) -> &str {
        &self.client
    }

    /// From now on someone at this node listens for the resource. If nobody waits any more, that is noticed later.
    pub(crate) fn hears_of(&self, resource: &str, node: u32) {
        let mut rooms = self.rooms();
        let room = rooms.by_resource.entry(resource.to_owned()).or_default();
        room.heard_at = Some(node);
        room.listened.notify_waiters();
    }

    /// Nobody listens at this node any more for the resource: wakes whoever waits for it. Whether someone had listened.
    pub(crate) fn unheard(&self, resource: &str, node: u32) -> bool {
        let mut rooms = self.rooms();
        let Some(room) = rooms.room(resource).filter(|room| room.heard_at == Some(node)) else {
            return false;
        };
        room.deafen();
        if room.guests.is_empty() {
            rooms.by_resource.remove(resource);
        }
        true
    }

    /// Nobody listens any more for those resources of which `lost` says so: wakes whoever waits there.
    pub(crate) fn deafen(&self, lost: impl Fn(&str, u32) -> bool) {
        self.rooms().by_resource.retain(|resource, room| {
            let deaf = room.heard_at.is_some_and(|heard_at| lost(resource, heard_at));
            if deaf {
                room.deafen();
            }
            !deaf || !room.guests.is_empty()
        });
    }

    /// The resources for which someone listens at this node though nobody waits: they are forgotten.
    pub(crate) fn idle(&self, node: u32) -> Vec<String> {
        let mut rooms = self.rooms();
        let idle = |(resource, room): (&String, &Room)| {
            (room.guests.is_empty() && room.heard_at == Some(node)).then(|| resource.clone())
        };
        let idle: Vec<String> = rooms.by_resource.iter().filter_map(idle).collect();
        idle.iter().for_each(|resource| drop(rooms.by_resource.remove(resource)));
        idle
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whom a message concerns.
    fn tell(&self, message: &str) {
        let Some((whom, resource)) = message.split_once('|') else { return };
        let rooms = self.rooms();
        let guests = rooms.by_resource.get(resource).into_iter().flat_map(|room| &room.guests);
        let owner = whom.parse::<OwnerToken>().ok();
        let concerns = |guest: &&Guest| owner.map_or(guest.watches, |owner| guest.owner == owner);
        guests.filter(concerns).for_each(|guest| guest.bell.notify_one());
    }

    fn listens_at(&self, address: Option<Address>) {
        *self.listens_at.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    fn wake_all(&self) {
        self.rooms().by_resource.values().for_each(Room::wake);
    }
}

impl Waiting {
    /// It has a place: changes that do not let it move are none of its business.
    pub(crate) fn has_place(&self) {
        let mut rooms = self.shared.rooms();
        let room = rooms.room(self.claim.resource.key());
        let guest = room.and_then(|room| room.guests.iter_mut().find(|guest| guest.number == self.number));
        if let Some(guest) = guest {
            guest.watches = false;
        }
    }

    /// Resolves when it is worth asking again.
    pub(crate) async fn woken(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut rooms = self.shared.rooms();
        let Some(room) = rooms.room(self.claim.resource.key()) else { return };
        room.guests.retain(|guest| guest.number != self.number);
        // On a cluster the next one finds the channel open; the listener closes it in a while.
        if room.guests.is_empty() && room.heard_at.is_none() {
            rooms.by_resource.remove(self.claim.resource.key());
        }
    }
}

/// Subscribes, and subscribes again, until the client is gone.
async fn listen(shared: Weak<Shared>, config: Config, environment: Arc<dyn Environment>) {
    let fresh = if config.service.is_some() { Backoff::at_most(SEARCH_EVERY) } else { Backoff::new() };
    let mut backoff = fresh;
    loop {
        let Some(channel) = shared.upgrade().map(|shared| format!("{CHANNELS}{}", shared.client)) else {
            return;
        };
        match subscribe(&config, &channel).await {
            Ok((connection, messages, address)) => {
                backoff = fresh;
                shared.upgrade().inspect(|shared| shared.listens_at(Some(address)));
                if hear(&shared, connection, messages, &environment).await.is_none() {
                    return;
                }
            }
            Err(fault) if fault.clone().into_error().kind() == ErrorKind::Denied => {
                let error = fault.into_error();
                tracing::warn!(%error, "may not listen for wake-ups: who waits asks twice a second");
            }
            Err(fault) => tracing::debug!(?fault, "cannot listen for wake-ups"),
        }
        let pause = backoff.next(environment.random());
        environment.sleep(pause).await;
    }
}

type Subscription = (MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>, Address);

async fn subscribe(config: &Config, channel: &str) -> Result<Subscription, Fault> {
    let (sender, messages) = mpsc::unbounded_channel();
    let address = site::find_primary(config).await?;
    let mut connection = site::open(config, &address.host, address.port, Role::Server, Some(sender)).await?;
    connection.subscribe(channel).await.map_err(Fault::Command)?;
    Ok((connection, messages, address))
}

/// Passes on messages until the connection is dead; `None` if the client is gone.
async fn hear(
    shared: &Weak<Shared>,
    mut connection: MultiplexedConnection,
    mut messages: mpsc::UnboundedReceiver<PushInfo>,
    environment: &Arc<dyn Environment>,
) -> Option<()> {
    // Who began to wait meanwhile looks after this, or looks again soon; who waited before was woken by the loss.
    shared.upgrade()?.hears.send_replace(true);
    loop {
        let moved = {
            let shared = shared.upgrade()?;
            async move { shared.moved.notified().await }
        };
        let news = first(messages.recv(), first(environment.sleep(HEARTBEAT), moved)).await;
        let alive = match news {
            Either::Left(Some(push)) if push.kind != PushKind::Disconnection => {
                pass_on(&*shared.upgrade()?, &push);
                true
            }
            Either::Left(_) | Either::Right(Either::Right(())) => false,
            Either::Right(Either::Left(())) => {
                shared.upgrade()?;
                let ping = Cmd::new().arg("PING").to_owned();
                connection.send_packed_command(&ping).await.is_ok()
            }
        };
        if !alive {
            let shared = shared.upgrade()?;
            shared.listens_at(None);
            shared.hears.send_replace(false);
            shared.wake_all();
            return Some(());
        }
    }
}

/// Wakes whom a message concerns.
pub(crate) fn pass_on(shared: &Shared, push: &PushInfo) {
    if !matches!(push.kind, PushKind::Message | PushKind::SMessage) {
        return;
    }
    if let Some(Value::BulkString(message)) = push.data.get(1) {
        shared.tell(&String::from_utf8_lossy(message));
    }
}
