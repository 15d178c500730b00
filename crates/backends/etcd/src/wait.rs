//! Wake-ups: one stream of watches, however many wait for however many resources.
//!
//! Whoever has a place watches only those of whom one must go before it can move; in a line of mutexes that is the one
//! ahead. A watch begins at the revision that was read, so nothing falls between. When the stream is lost everyone is
//! woken and asks again.
//!
//! Watches have ids of ours, by which an event finds its waiter. `etcd grpc-proxy` ignores them and chooses its own, without
//! telling whose is whose. Then an event finds its waiters by its key, and no watch is cancelled, because that would be
//! somebody else's: after some time the whole stream is given up instead.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use etcd_client::{Event, EventType, WatchOptions, WatchResponse, WatchStream};
use leasehold_core::{Backoff, ClaimRef, Cursor};
use leasehold_support::race::{Either, first};
use tokio::sync::{Mutex, Notify, mpsc};

use crate::{
    backend::Etcd,
    entry::{Entry, Value},
    error::Fault,
    keys::{mark, range_end},
    line::Line,
    link::Link,
};

/// How many watches are left to themselves on a stream whose ids are not ours, before it is given up.
const ABANDONED_MAX: usize = 256;
/// The watch that every stream begins with.
const FIRST_ID: i64 = 1;
/// More keys than this are not watched one by one.
const SINGLY_MAX: usize = 8;

/// What wakes someone.
#[derive(Debug)]
enum Filter {
    /// Anything that becomes of the contenders or of the pause.
    Anything { lock: String, pause: String },
    /// One of these goes, or takes another share than it did (key, capacity and weight); or anything becomes of the
    /// pause.
    Way { shares: HashMap<String, (u32, u32)>, pause: String },
}

impl Filter {
    fn concerns(&self, event: &Event) -> bool {
        let Some(kv) = event.kv() else { return true };
        let key = String::from_utf8_lossy(kv.key());
        let (shares, pause) = match self {
            Filter::Anything { lock, pause } => return key.starts_with(lock) || *key == *pause,
            Filter::Way { shares, pause } => (shares, pause),
        };
        if *key == *pause {
            return true;
        }
        let Some(share) = shares.get(&*key) else { return false };
        if event.event_type() == EventType::Delete {
            return true;
        }
        // Of a place that becomes a seat, of a renewal or a note, nothing moves.
        let Value::Ours(entry) = Entry::read(kv.value()) else { return false };
        (entry.capacity, entry.weight) != *share
    }
}

/// Someone who waits.
#[derive(Debug)]
struct Guest {
    bell: Notify,
    filter: Filter,
}

enum Word {
    Watch { id: i64, key: String, end: Option<Vec<u8>>, from: i64, guest: Arc<Guest> },
    Stop(Vec<i64>),
}

/// The ear of a client.
#[derive(Debug)]
pub(crate) struct Ear {
    link: Arc<Link>,
    words: mpsc::UnboundedSender<Word>,
    heard: Mutex<Option<mpsc::UnboundedReceiver<Word>>>,
    started: AtomicBool,
    next_id: AtomicI64,
}

/// A wait under way; its watches end with it.
struct Waiting<'a> {
    ear: &'a Ear,
    ids: Vec<i64>,
    guest: Arc<Guest>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let _ = self.ear.words.send(Word::Stop(std::mem::take(&mut self.ids)));
    }
}

impl Ear {
    pub(crate) fn new(link: Arc<Link>) -> Ear {
        let (words, heard) = mpsc::unbounded_channel();
        let heard = Mutex::new(Some(heard));
        // The first watch of every stream is its own.
        Ear { link, words, heard, started: AtomicBool::new(false), next_id: AtomicI64::new(FIRST_ID + 1) }
    }

    async fn attend(&self) {
        if self.started.load(Ordering::Relaxed) {
            return;
        }
        if let Some(words) = self.heard.lock().await.take() {
            self.started.store(true, Ordering::Relaxed);
            let listener = Listener::new(Arc::clone(&self.link));
            self.link.environment.spawn(Box::pin(listener.listen(words)));
        }
    }

    fn watch(&self, watches: Vec<(String, Option<Vec<u8>>)>, from: i64, filter: Filter) -> Waiting<'_> {
        let guest = Arc::new(Guest { bell: Notify::new(), filter });
        let mut ids = Vec::new();
        for (key, end) in watches {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            ids.push(id);
            let word = Word::Watch { id, key, end, from, guest: Arc::clone(&guest) };
            if self.words.send(word).is_err() {
                guest.bell.notify_one();
            }
        }
        Waiting { ear: self, ids, guest }
    }
}

struct Listener {
    link: Arc<Link>,
    guests: HashMap<i64, Arc<Guest>>,
    ids: Ids,
    /// How many watches of the stream nobody needs any more.
    abandoned: usize,
}

/// Who chooses the ids of the watches on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    /// Not known before the first answer.
    Unknown,
    Ours,
    Theirs,
}

impl Listener {
    fn new(link: Arc<Link>) -> Listener {
        Listener { link, guests: HashMap::new(), ids: Ids::Unknown, abandoned: 0 }
    }

    /// Until the client is gone.
    async fn listen(mut self, mut words: mpsc::UnboundedReceiver<Word>) {
        let mut backoff = Backoff::new();
        while let Some(word) = words.recv().await {
            let Word::Watch { guest, .. } = &word else { continue };
            let guest = Arc::clone(guest);
            match self.open().await {
                Ok(mut stream) => {
                    backoff = Backoff::new();
                    (self.ids, self.abandoned) = (Ids::Unknown, 0);
                    let mut moves = self.link.moves();
                    moves.mark_unchanged();
                    if self.hear(word, &mut stream, &mut moves, &mut words).await.is_none() {
                        return;
                    }
                }
                Err(fault) => {
                    tracing::debug!(?fault, "cannot watch");
                    guest.bell.notify_one();
                    let pause = backoff.next(self.link.environment.random());
                    self.link.environment.sleep(pause).await;
                }
            }
            self.guests.drain().for_each(|(_, guest)| guest.bell.notify_one());
        }
    }

    async fn open(&self) -> Result<WatchStream, Fault> {
        let wire = self.link.wire().await?;
        let mut client = wire.member.client.clone();
        // Nobody writes this key: a stream begins with a watch, and this one stays.
        let key = format!("{}ear", self.link.config.root.all());
        let opening = client.watch(key, Some(WatchOptions::new().with_watch_id(FIRST_ID)));
        let patience = self.link.config.timeout + self.link.config.connect_timeout;
        let opened = match first(opening, self.link.environment.sleep(patience)).await {
            Either::Left(opened) => opened.map_err(Fault::from),
            Either::Right(()) => Err(Fault::Silent),
        };
        opened.inspect_err(|fault| self.link.judge(&wire, fault))
    }

    /// Passes on what is heard until the stream is lost; `None` if the client is gone.
    async fn hear(
        &mut self,
        word: Word,
        stream: &mut WatchStream,
        moves: &mut tokio::sync::watch::Receiver<usize>,
        words: &mut mpsc::UnboundedReceiver<Word>,
    ) -> Option<()> {
        let mut next = Some(word);
        loop {
            if let Some(word) = next.take() {
                let patience = self.link.environment.sleep(Duration::from_secs(1));
                match first(self.say(word, stream), patience).await {
                    Either::Left(Ok(())) if self.abandoned <= ABANDONED_MAX => {}
                    Either::Left(_) | Either::Right(()) => return Some(()),
                }
                continue;
            }
            match first(words.recv(), first(stream.message(), moves.changed())).await {
                Either::Left(None) => return None,
                Either::Left(word) => next = word,
                // A watch was refused, and the answer need not say whose: the login of a stream is the one that it
                // was opened with, and may have expired. Whoever asks again gets a stream with another one.
                Either::Right(Either::Left(Ok(Some(response))))
                    if response.created() && response.canceled() =>
                {
                    return Some(());
                }
                Either::Right(Either::Left(Ok(Some(response)))) => self.pass_on(&response),
                // The stream has ended, or calls go to another member now: this one may hang.
                Either::Right(_) => return Some(()),
            }
        }
    }

    async fn say(&mut self, word: Word, stream: &mut WatchStream) -> Result<(), etcd_client::Error> {
        match word {
            Word::Watch { id, key, end, from, guest } => {
                let mut options = WatchOptions::new().with_watch_id(id).with_start_revision(from);
                if let Some(end) = end {
                    options = options.with_range(end);
                }
                self.guests.insert(id, guest);
                stream.watch(key, Some(options)).await
            }
            Word::Stop(ids) => {
                for id in ids {
                    match self.guests.remove(&id) {
                        Some(_) if self.ids == Ids::Ours => stream.cancel(id).await?,
                        Some(_) => self.abandoned += 1,
                        None => {}
                    }
                }
                Ok(())
            }
        }
    }

    fn pass_on(&mut self, response: &WatchResponse) {
        if self.ids == Ids::Unknown && response.created() {
            self.ids = if response.watch_id() == FIRST_ID { Ids::Ours } else { Ids::Theirs };
        }
        if self.ids == Ids::Theirs {
            let concerns = |guest: &Guest| response.events().iter().any(|event| guest.filter.concerns(event));
            let woken = self.guests.values().filter(|guest| response.canceled() || concerns(guest));
            return woken.for_each(|guest| guest.bell.notify_one());
        }
        let Some(guest) = self.guests.get(&response.watch_id()) else { return };
        // Cancelled: the history that was asked for is compacted, or the member has no leader.
        if response.canceled() || response.events().iter().any(|event| guest.filter.concerns(event)) {
            guest.bell.notify_one();
        }
    }
}

impl Etcd {
    pub(crate) async fn wait_for_news(&self, claim: &ClaimRef, since: Cursor) -> Result<(), Fault> {
        let (keys, me) = (self.link.config.root.of(&claim.resource), mark(claim.owner));
        let mut line = self.link.read(&keys, &[&me], Line::HEAD).await?.line;
        if line.capacity().is_some_and(|capacity| capacity > 1) && line.total > line.contenders.len() {
            line = self.link.read(&keys, &[&me], 0).await?.line;
        }
        let since = i64::try_from(since.0).unwrap_or(i64::MAX);
        let Some(place) = line.find(&me) else {
            if since <= 0 || since > line.revision {
                return Ok(());
            }
            let watches = vec![(keys.lock.clone(), Some(range_end(&keys.lock))), (keys.pause.clone(), None)];
            let filter = Filter::Anything { lock: keys.lock.clone(), pause: keys.pause.clone() };
            return self.wait_until(watches, since + 1, filter).await;
        };
        let Some((capacity, weight)) = share_of(&line, place) else { return Ok(()) };
        let open = line.pause.is_none();
        if line.is_held(place) || (open && line.fits(Some(place), weight, capacity)) {
            return Ok(());
        }
        let mut watched = if open { line.in_the_way(place, capacity) } else { Vec::new() };
        watched.push(place);
        let shares: HashMap<_, _> = watched
            .iter()
            .map(|index| (keys.contender(&line.contenders[*index].name), (capacity, line.weight(*index))))
            .collect();
        let mut watches = vec![(keys.pause.clone(), None)];
        if open {
            watches.clear();
        }
        if shares.len() <= SINGLY_MAX {
            watches.extend(shares.keys().map(|key| (key.clone(), None)));
        } else {
            watches.push((keys.lock.clone(), Some(range_end(&keys.lock))));
        }
        let filter = Filter::Way { shares, pause: keys.pause.clone() };
        self.wait_until(watches, line.revision + 1, filter).await
    }

    async fn wait_until(
        &self,
        watches: Vec<(String, Option<Vec<u8>>)>,
        from: i64,
        filter: Filter,
    ) -> Result<(), Fault> {
        self.ear.attend().await;
        let waiting = self.ear.watch(watches, from, filter);
        waiting.guest.bell.notified().await;
        Ok(())
    }
}

fn share_of(line: &Line, place: usize) -> Option<(u32, u32)> {
    line.contenders[place].entry.as_ref().map(|entry| (entry.capacity, entry.weight))
}
