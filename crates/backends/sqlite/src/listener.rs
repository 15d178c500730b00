//! The thread that hears of changes made by other processes, and wakes those here whom they concern.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use leasehold_core::{OwnerToken, Resource};
use rusqlite::{Connection, OptionalExtension as _};

use crate::{
    bell::{Caller, Ear},
    ledger::{self, Step},
    site::{FileIdentity, Site},
    sql, store,
};

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
        Whom::Everyone => site.waiters.on_room(resource, |room| room.wake_all()),
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
    let entry = ledger::find(reader, resource)?;
    let movers = entry.as_ref().map_or(Ok(Vec::new()), |entry| ledger::movers(reader, entry))?;
    let version = entry.map_or(0, |entry| entry.version.unsigned_abs());
    site.waiters.on_room(resource, |room| {
        movers.into_iter().for_each(|owner| room.wake(owner));
        room.wake_watchers(version);
    });
    Ok(())
}

/// Rings were missed: looks at every resource that someone waits for here.
fn look_at_all(reader: &Connection, site: &Site) -> Step<()> {
    for resource in site.waiters.resources() {
        wake_movers(reader, site, &resource)?;
        let resource_id = ledger::find(reader, &resource)?.map(|entry| entry.id);
        for owner in site.waiters.placed(&resource) {
            let mut statement = reader.prepare_cached(sql::place::find)?;
            let place = statement.query_row((resource_id, owner.to_bytes()), |_| Ok(())).optional()?;
            if place.is_none() {
                site.waiters.on_room(&resource, |room| room.wake(owner));
            }
        }
    }
    Ok(())
}
