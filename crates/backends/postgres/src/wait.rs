//! Wake-ups: one connection that listens to one channel, however many wait for however many resources.
//!
//! A verb that lets someone move notifies `owner|resource` on the channel of the client where that one waits (of the
//! owner, what logs show of it); one that changes what others watch notifies `*|resource`. A message may be lost with
//! the connection, so everyone is woken when it is lost, and nobody waits longer than told. Where nothing is heard,
//! because a pool gives the connection away after each transaction, whoever waits asks again now and then.
//!
//! A message is a hint and nothing more: one that is meant for another client, or comes late or twice, costs a request.
//! That we hear is believed only for as long as it is proved: a connection that a pool may share must hear a new greeting
//! every few seconds, sent over another connection.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Backoff, ClaimRef, Environment, OwnerToken, Result};
use leasehold_support::race::{Either, first};
use tokio::sync::{Notify, mpsc, watch};
use tokio_postgres::{Notification, types::Type};

use crate::{
    link::Link,
    wire::{Question, Wire},
};

/// How often a silent connection is asked whether it lives.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long to go on without listening where it turned out to be in vain.
const VAIN: Duration = Duration::from_secs(60);
/// What a greeting begins with: what we say to ourselves to find out whether we hear.
const HELLO: &str = "hello";
/// Sends a greeting.
const GREET: &str = "SELECT pg_notify($1, $2), $3::bigint";
/// Asks whether a connection lives.
const ALIVE: &str = "SELECT $1::bigint";

/// The ear of a client.
#[derive(Debug)]
pub(crate) struct Ear {
    shared: Arc<Shared>,
    started: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    channel: String,
    rooms: Mutex<Rooms>,
    hearing: watch::Sender<Hearing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hearing {
    /// It is not known yet.
    Trying,
    Yes,
    No,
}

#[derive(Debug, Default)]
struct Rooms {
    by_resource: HashMap<String, Vec<Guest>>,
    next_number: u64,
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
pub(crate) struct Waiting<'a> {
    shared: &'a Shared,
    claim: &'a ClaimRef,
    number: u64,
    bell: Arc<Notify>,
}

impl Ear {
    /// The ear of the client with this number.
    pub(crate) fn new(client: u64) -> Ear {
        let (hearing, _) = watch::channel(Hearing::Trying);
        let channel = format!("leasehold_{client:016x}");
        let shared = Arc::new(Shared { channel, rooms: Mutex::default(), hearing });
        Ear { shared, started: AtomicBool::new(false) }
    }

    /// Where to tell it; empty where that would be in vain.
    pub(crate) fn channel(&self) -> &str {
        if *self.shared.hearing.borrow() == Hearing::No { "" } else { &self.shared.channel }
    }

    /// Listens from now on. Costs nothing until the first one waits.
    pub(crate) fn attend(&self, link: &Arc<Link>, environment: &Arc<dyn Environment>) {
        if !self.started.swap(true, Ordering::Relaxed) {
            let (shared, link) = (Arc::downgrade(&self.shared), Arc::downgrade(link));
            environment.spawn(Box::pin(listen(shared, link, Arc::clone(environment))));
        }
    }

    /// Whether it hears, once that is known.
    pub(crate) async fn hears(&self) -> bool {
        let mut hearing = self.shared.hearing.subscribe();
        hearing
            .wait_for(|hearing| *hearing != Hearing::Trying)
            .await
            .is_ok_and(|hearing| *hearing == Hearing::Yes)
    }

    /// Waits from now on: what is told after this is not missed.
    pub(crate) fn begin<'a>(&'a self, claim: &'a ClaimRef) -> Waiting<'a> {
        let bell = Arc::new(Notify::new());
        let mut rooms = self.shared.rooms();
        rooms.next_number += 1;
        let number = rooms.next_number;
        let guest = Guest { number, owner: claim.owner, watches: true, bell: Arc::clone(&bell) };
        rooms.by_resource.entry(claim.resource.key().to_owned()).or_default().push(guest);
        Waiting { shared: &self.shared, claim, number, bell }
    }
}

impl Shared {
    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whom a message concerns.
    fn tell(&self, message: &str) {
        let Some((whom, resource)) = message.split_once('|') else { return };
        let rooms = self.rooms();
        let guests = rooms.by_resource.get(resource).into_iter().flatten();
        let concerns = |guest: &&Guest| match whom {
            "*" => guest.watches,
            "!" => true,
            prefix => guest.owner.prefix() == prefix,
        };
        guests.filter(concerns).for_each(|guest| guest.bell.notify_one());
    }

    fn wake_all(&self) {
        self.rooms().by_resource.values().flatten().for_each(|guest| guest.bell.notify_one());
    }
}

impl Waiting<'_> {
    /// It has a place in the line: changes that do not let it move are none of its business.
    pub(crate) fn has_place(&self) {
        let mut rooms = self.shared.rooms();
        let room = rooms.by_resource.get_mut(self.claim.resource.key());
        let guest = room.and_then(|room| room.iter_mut().find(|guest| guest.number == self.number));
        if let Some(guest) = guest {
            guest.watches = false;
        }
    }

    /// Resolves when it is worth asking again.
    pub(crate) async fn woken(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut rooms = self.shared.rooms();
        let Some(room) = rooms.by_resource.get_mut(self.claim.resource.key()) else { return };
        room.retain(|guest| guest.number != self.number);
        if room.is_empty() {
            rooms.by_resource.remove(self.claim.resource.key());
        }
    }
}

/// Listens, and listens again, until the client is gone.
async fn listen(shared: Weak<Shared>, link: Weak<Link>, environment: Arc<dyn Environment>) {
    let mut backoff = Backoff::new();
    loop {
        let (Some(ear), Some(way)) = (shared.upgrade(), link.upgrade()) else { return };
        let pause = match subscribe(&ear, &way, &environment).await {
            Ok(Some(listening)) => {
                backoff = Backoff::new();
                drop((ear, way));
                if hear(&shared, &link, listening, &environment).await.is_none() {
                    return;
                }
                backoff.next(environment.random())
            }
            Ok(None) => {
                tracing::info!(
                    "notifications do not arrive, as behind a pool: waiters ask again now and then"
                );
                ear.hearing.send_replace(Hearing::No);
                VAIN
            }
            Err(error) => {
                tracing::debug!(%error, "cannot listen for wake-ups");
                ear.hearing.send_replace(Hearing::No);
                backoff.next(environment.random())
            }
        };
        environment.sleep(pause).await;
    }
}

/// A connection that listens, and what it hears.
struct Listening {
    wire: Wire,
    messages: mpsc::UnboundedReceiver<Notification>,
}

/// Listens, and makes sure that it hears: a pool that gives the connection to somebody else after each transaction
/// says nothing about it. Nothing, if it does not.
async fn subscribe(
    ear: &Shared,
    link: &Arc<Link>,
    environment: &Arc<dyn Environment>,
) -> Result<Option<Listening>> {
    let (sender, messages) = mpsc::unbounded_channel();
    let wire = Wire::open(&link.config, environment, &link.ids, Some(sender)).await?;
    let mut listening = Listening { wire, messages };
    listening.wire.tell(&format!("LISTEN {}", ear.channel), link.config.timeout).await?;
    let hears = hears_greeting(ear, link, &mut listening, environment).await?;
    Ok(hears.then_some(listening))
}

/// Whether a greeting arrives that is sent over another connection: a session hears itself even where it will not be ours
/// a moment later.
async fn hears_greeting(
    ear: &Shared,
    link: &Arc<Link>,
    listening: &mut Listening,
    environment: &Arc<dyn Environment>,
) -> Result<bool> {
    // Each is another one: an old one proves nothing.
    let greeting = format!("{HELLO} {}", link.ids.next());
    link.run(GREET, &[(&ear.channel, Type::TEXT), (&greeting, Type::TEXT)]).await?;
    let heard = async {
        while let Some(message) = listening.messages.recv().await {
            if message.payload() == greeting {
                return true;
            }
            ear.tell(message.payload());
        }
        false
    };
    let heard = first(heard, environment.sleep(link.config.timeout)).await;
    Ok(matches!(heard, Either::Left(true)))
}

/// Passes on messages until the connection is dead; `None` if the client is gone.
async fn hear(
    shared: &Weak<Shared>,
    link: &Weak<Link>,
    mut listening: Listening,
    environment: &Arc<dyn Environment>,
) -> Option<()> {
    shared.upgrade()?.hearing.send_replace(Hearing::Yes);
    loop {
        let alive = match first(listening.messages.recv(), environment.sleep(HEARTBEAT)).await {
            Either::Left(Some(message)) => {
                shared.upgrade()?.tell(message.payload());
                true
            }
            Either::Left(None) => false,
            Either::Right(()) => {
                let (ear, link) = (shared.upgrade()?, link.upgrade()?);
                if link.is_shared() {
                    hears_greeting(&ear, &link, &mut listening, environment).await.unwrap_or(false)
                } else {
                    listening.wire.ask(&Question::new(ALIVE, &[]), HEARTBEAT).await.is_ok()
                }
            }
        };
        if !alive {
            let shared = shared.upgrade()?;
            shared.hearing.send_replace(Hearing::No);
            shared.wake_all();
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(owner: u8) -> ClaimRef {
        ClaimRef { resource: "report/42".parse().unwrap(), owner: OwnerToken::from_bytes([owner; 16]) }
    }

    fn rings(bell: &Notify) -> bool {
        let mut waiting = std::pin::pin!(bell.notified());
        waiting.as_mut().enable()
    }

    #[test]
    fn a_message_wakes_whom_it_concerns() {
        let ear = Ear::new(7);
        let (ann, bob) = (claim(0xaa), claim(0xbb));
        let (placed, watching) = (ear.begin(&ann), ear.begin(&bob));
        placed.has_place();
        ear.shared.tell("*|report/42");
        assert_eq!((rings(&placed.bell), rings(&watching.bell)), (false, true));
        ear.shared.tell("aaaaaaaa|report/42");
        assert_eq!((rings(&placed.bell), rings(&watching.bell)), (true, false));
        ear.shared.tell("!|report/42");
        assert_eq!((rings(&placed.bell), rings(&watching.bell)), (true, true));
        for other in ["*|report/43", "cccccccc|report/42", "nonsense", ""] {
            ear.shared.tell(other);
            assert!(!rings(&placed.bell) && !rings(&watching.bell), "{other}");
        }
        drop((placed, watching));
        assert!(ear.shared.rooms().by_resource.is_empty(), "nothing is left of who waits no more");
    }
}
