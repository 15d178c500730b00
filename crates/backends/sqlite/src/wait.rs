//! Waiting: who waits in this process, and the thread that hears of changes made by others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use leasehold_core::{ClaimRef, OwnerToken, Resource};
use rusqlite::{Connection, OptionalExtension as _};
use tokio::sync::Notify;

use crate::{
    bell::{Caller, Ear},
    ledger::{self, News, Step},
    site::{FileIdentity, Site},
    sql, store,
};

/// Who waits in this process.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    rooms: HashMap<Resource, Room>,
    next_number: u64,
}

/// Who waits for one resource.
#[derive(Debug, Default)]
struct Room {
    owners: HashMap<OwnerToken, Vec<(u64, Arc<Notify>)>>,
    /// Those without a place: the cursor that they know, and their bell.
    watchers: HashMap<u64, (u64, Arc<Notify>)>,
}

/// Someone who waits, until this is dropped.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    claim: &'a ClaimRef,
    number: u64,
    bell: Arc<Notify>,
}

impl Waiters {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits from now on: what happens after this is not missed.
    pub(crate) fn begin<'a>(&'a self, claim: &'a ClaimRef, since: u64) -> Waiting<'a> {
        let bell = Arc::new(Notify::new());
        let mut registry = self.registry();
        registry.next_number += 1;
        let number = registry.next_number;
        let room = registry.rooms.entry(claim.resource.clone()).or_default();
        room.owners.entry(claim.owner).or_default().push((number, Arc::clone(&bell)));
        room.watchers.insert(number, (since, Arc::clone(&bell)));
        Waiting { waiters: self, claim, number, bell }
    }

    pub(crate) fn is_waiting(&self, resource: &Resource, owner: OwnerToken) -> bool {
        self.registry().rooms.get(resource).is_some_and(|room| room.owners.contains_key(&owner))
    }

    fn is_empty(&self) -> bool {
        self.registry().rooms.is_empty()
    }

    /// Wakes those whom a transaction of this process concerns.
    pub(crate) fn tell(&self, news: &News) {
        if news.owners.is_empty() && news.watchers.is_empty() {
            return;
        }
        let registry = self.registry();
        for (resource, owner) in &news.owners {
            registry.rooms.get(resource).into_iter().for_each(|room| room.wake(*owner));
        }
        for resource in &news.watchers {
            registry.rooms.get(resource).into_iter().for_each(|room| room.wake_watchers(None));
        }
    }

    fn resources(&self) -> Vec<Resource> {
        self.registry().rooms.keys().cloned().collect()
    }

    /// Those who wait for it and have a place.
    fn placed(&self, resource: &Resource) -> Vec<OwnerToken> {
        let registry = self.registry();
        let Some(room) = registry.rooms.get(resource) else { return Vec::new() };
        let has_place =
            |same: &[(u64, Arc<Notify>)]| same.iter().any(|(number, _)| !room.watchers.contains_key(number));
        room.owners.iter().filter(|(_, same)| has_place(same)).map(|(owner, _)| *owner).collect()
    }

    fn is_awaited(&self, resource: &Resource) -> bool {
        self.registry().rooms.contains_key(resource)
    }

    fn on_room(&self, resource: &Resource, wake: impl FnOnce(&Room)) {
        if let Some(room) = self.registry().rooms.get(resource) {
            wake(room);
        }
    }
}

impl Room {
    fn wake(&self, owner: OwnerToken) {
        self.owners.get(&owner).into_iter().flatten().for_each(|(_, bell)| bell.notify_one());
    }

    /// Those without a place who know another version than this one; all of them if it is not known.
    fn wake_watchers(&self, version: Option<u64>) {
        let unaware = self.watchers.values().filter(|(since, _)| version != Some(*since));
        unaware.for_each(|(_, bell)| bell.notify_one());
    }

    fn wake_all(&self) {
        self.owners.values().flatten().for_each(|(_, bell)| bell.notify_one());
    }
}

impl Waiting<'_> {
    /// It has a place in the line: changes that do not let it move are none of its business.
    pub(crate) fn has_place(&self) {
        let mut registry = self.waiters.registry();
        if let Some(room) = registry.rooms.get_mut(&self.claim.resource) {
            room.watchers.remove(&self.number);
        }
    }

    /// It has no place: it waits for another version than this one.
    pub(crate) fn knows(&self, version: u64) {
        let mut registry = self.waiters.registry();
        if let Some(room) = registry.rooms.get_mut(&self.claim.resource)
            && let Some((since, _)) = room.watchers.get_mut(&self.number)
        {
            *since = version;
        }
    }

    /// Resolves when it is worth asking again.
    pub(crate) async fn woken(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut registry = self.waiters.registry();
        let Some(room) = registry.rooms.get_mut(&self.claim.resource) else { return };
        room.watchers.remove(&self.number);
        if let Some(same) = room.owners.get_mut(&self.claim.owner) {
            same.retain(|(number, _)| *number != self.number);
            if same.is_empty() {
                room.owners.remove(&self.claim.owner);
            }
        }
        if room.owners.is_empty() {
            registry.rooms.remove(&self.claim.resource);
        }
    }
}

/// The thread that hears of changes made by other processes. One, however many wait; none until someone does.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    thread: Mutex<Option<Arc<Line>>>,
}

#[derive(Debug)]
struct Line {
    caller: Caller,
    /// Nobody waits, so nobody listens.
    asleep: AtomicBool,
}

impl Listener {
    /// Makes sure that someone listens. Called after [`Waiters::begin`].
    pub(crate) fn attend(&self, site: &Arc<Site>) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = &*thread {
            if line.asleep.load(Ordering::SeqCst) {
                line.caller.call();
            }
            return Ok(());
        }
        let (ear, caller) = Ear::new(site.beside(store::BELL))?;
        let line = Arc::new(Line { caller, asleep: AtomicBool::new(false) });
        let (site, weak) = (Arc::clone(site), Arc::downgrade(&line));
        let name = "leasehold-wait".to_owned();
        std::thread::Builder::new().name(name).spawn(move || listen(&site, &weak, ear))?;
        *thread = Some(line);
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.caller.call();
    }
}

fn listen(site: &Site, line: &Weak<Line>, mut ear: Ear) {
    let mut news = Newspaper::default();
    ear.prick_up();
    loop {
        {
            let Some(line) = line.upgrade() else { return };
            line.asleep.store(true, Ordering::SeqCst);
            // Asked after that was stored: who came before has not called, who comes after will.
            if site.waiters.is_empty() {
                drop(line);
                ear.sleep();
                news.forget();
                continue;
            }
            line.asleep.store(false, Ordering::SeqCst);
        }
        // A connection that fails is opened again at the next look.
        if news.read(site).is_err() {
            news = Newspaper::default();
        }
        ear.listen();
    }
}

/// What has been read of the table `ring`.
#[derive(Debug, Default)]
struct Newspaper {
    reader: Option<(Connection, FileIdentity)>,
    /// The last ring that was read; none: everything must be looked at.
    last: Option<i64>,
}

const READ_AT_ONCE: i64 = 256;

impl Newspaper {
    fn forget(&mut self) {
        self.last = None;
    }

    /// Reads what is new and wakes those whom it concerns.
    fn read(&mut self, site: &Site) -> Step<()> {
        let here = FileIdentity::at(&site.path).ok();
        if self.reader.as_ref().map(|(_, file)| *file) != here {
            *self = Newspaper::default();
            if let Some(file) = here {
                self.reader = Some((store::open_reader(&site.path)?, file));
            }
        }
        let Some((reader, _)) = &self.reader else { return Ok(()) };
        let Some(mut last) = self.last else {
            self.last = Some(newest(reader)?);
            return look_at_all(reader, site);
        };
        loop {
            let rings = rings_after(reader, last)?;
            let Some((newest, ..)) = rings.last() else { break };
            let newest = *newest;
            if rings.first().is_some_and(|(first, ..)| *first > last + 1) {
                look_at_all(reader, site)?;
            } else {
                rings
                    .iter()
                    .try_for_each(|(_, resource, whom)| look(reader, site, resource.as_ref(), *whom))?;
            }
            last = newest;
            self.last = Some(last);
        }
        Ok(())
    }
}

/// Whom a ring concerns.
#[derive(Clone, Copy)]
enum Whom {
    Movers,
    Owner(OwnerToken),
    Everyone,
}

type Ring = (i64, Option<Resource>, Whom);

fn newest(reader: &Connection) -> Step<i64> {
    let mut statement = reader.prepare_cached(sql::ring::newest)?;
    Ok(statement.query_row([], |row| row.get::<_, Option<i64>>(0))?.unwrap_or(0))
}

fn rings_after(reader: &Connection, last: i64) -> Step<Vec<Ring>> {
    let mut statement = reader.prepare_cached(sql::ring::after)?;
    let mut rows = statement.query((last, READ_AT_ONCE))?;
    let mut rings = Vec::new();
    while let Some(row) = rows.next()? {
        let key: Option<String> = row.get(1)?;
        let whom = match row.get::<_, Option<Vec<u8>>>(2)? {
            None => Whom::Movers,
            Some(owner) => {
                owner.try_into().map_or(Whom::Everyone, |owner| Whom::Owner(OwnerToken::from_bytes(owner)))
            }
        };
        rings.push((row.get(0)?, key.and_then(|key| Resource::from_key(&key).ok()), whom));
    }
    Ok(rings)
}

fn look(reader: &Connection, site: &Site, resource: Option<&Resource>, whom: Whom) -> Step<()> {
    let Some(resource) = resource else { return Ok(()) };
    match whom {
        Whom::Owner(owner) => site.waiters.on_room(resource, |room| room.wake(owner)),
        Whom::Everyone => site.waiters.on_room(resource, Room::wake_all),
        Whom::Movers => {
            if site.waiters.is_awaited(resource) {
                wake_movers(reader, site, resource)?;
            }
        }
    }
    Ok(())
}

/// Wakes those who can move, and those without a place if something changed.
fn wake_movers(reader: &Connection, site: &Site, resource: &Resource) -> Step<()> {
    let Some(entry) = ledger::find(reader, resource)? else {
        site.waiters.on_room(resource, Room::wake_all);
        return Ok(());
    };
    let movers = ledger::movers(reader, &entry)?;
    site.waiters.on_room(resource, |room| {
        movers.into_iter().for_each(|owner| room.wake(owner));
        room.wake_watchers(Some(entry.version.unsigned_abs()));
    });
    Ok(())
}

/// Rings were missed: looks at every resource that someone waits for here.
fn look_at_all(reader: &Connection, site: &Site) -> Step<()> {
    for resource in site.waiters.resources() {
        wake_movers(reader, site, &resource)?;
        let Some(entry) = ledger::find(reader, &resource)? else { continue };
        for owner in site.waiters.placed(&resource) {
            let mut statement = reader.prepare_cached(sql::place::find)?;
            let place = statement.query_row((entry.id, owner.to_bytes()), |_| Ok(())).optional()?;
            if place.is_none() {
                site.waiters.on_room(&resource, |room| room.wake(owner));
            }
        }
    }
    Ok(())
}
