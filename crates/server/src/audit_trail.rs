//! The operators' commands about one resource, for its timeline: read at most once in two seconds for any number of pages.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_api::timeline::ENTRIES_MAX;
use leasehold_core::{AuditRecord, Listing, Page, Query, Resource, Result};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::store::Store;

/// An answer is this old at most, unless this server has carried out a command since.
const FRESH: Duration = Duration::from_secs(2);
/// How many resources are remembered.
const RESOURCES_MAX: usize = 100;
/// How many pages of the audit trail are read. Records of other resources whose keys begin with the same text are in them, too.
const PAGES_MAX: usize = 20;

/// The newest commands about a resource.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    /// Newest first.
    pub(crate) records: Vec<AuditRecord>,
    /// There are no others.
    pub(crate) is_whole: bool,
}

/// The commands about one resource. The lock is held while they are read, so that one reading is enough for all who ask.
type Known = Arc<AsyncMutex<Option<(Instant, Arc<Commands>)>>>;

/// Reads the audit trail of resources.
#[derive(Debug)]
pub(crate) struct AuditTrail {
    store: Store,
    known: Mutex<HashMap<Resource, Known>>,
}

impl AuditTrail {
    pub(crate) fn new(store: Store) -> AuditTrail {
        AuditTrail { store, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Resource, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest commands about this resource.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn of(&self, resource: &Resource) -> Result<Arc<Commands>> {
        let entry = self.entry(resource);
        let mut entry = entry.lock().await;
        if let Some((_, commands)) = entry.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(Arc::clone(commands));
        }
        let at = Instant::now();
        let commands = Arc::new(self.read(resource).await?);
        *entry = Some((at, Arc::clone(&commands)));
        Ok(commands)
    }

    /// A command about this resource was carried out: the next answer has it.
    pub(crate) fn forget(&self, resource: &Resource) {
        self.known().remove(resource);
    }

    fn entry(&self, resource: &Resource) -> Known {
        let mut known = self.known();
        if known.len() >= RESOURCES_MAX && !known.contains_key(resource) {
            // What is being read now, or was read just now, stays.
            known.retain(|_, entry| match entry.try_lock() {
                Ok(entry) => entry.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH),
                Err(_) => true,
            });
        }
        if known.len() >= RESOURCES_MAX && !known.contains_key(resource) {
            return Known::default();
        }
        Arc::clone(known.entry(resource.clone()).or_default())
    }

    async fn read(&self, resource: &Resource) -> Result<Commands> {
        let mut records: Vec<AuditRecord> = Vec::new();
        let mut listing = Listing::of(resource.key());
        for _ in 0..PAGES_MAX {
            let page = self.store.inspect(&Query::Audit(listing.clone())).await?;
            let Page::Audit { records: found, next } = page else { break };
            records.extend(found.into_iter().filter(|record| record.resource == *resource));
            let Some(next) = next else { return Ok(Commands { records, is_whole: true }) };
            if records.len() >= ENTRIES_MAX {
                break;
            }
            listing = listing.after(next);
        }
        Ok(Commands { records, is_whole: false })
    }
}
