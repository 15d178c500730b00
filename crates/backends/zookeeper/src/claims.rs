//! What this process knows of its own claims. The truth is in the nodes; this saves looking for them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use leasehold_core::{Environment, FencingToken, Timestamp};
use leasehold_support::race::first;
use tokio::sync::{Notify, oneshot};
use zookeeper_client::{OneshotWatcher, Stat};

use crate::record::Record;

/// A claim whose node belongs to our session.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The node's name in the folder of its line.
    pub(crate) node: String,
    pub(crate) token: FencingToken,
    /// We have said yes, or it held when we first looked.
    pub(crate) granted: bool,
    /// As we last wrote or read it.
    pub(crate) record: Record,
    pub(crate) version: i32,
    pub(crate) weight: u32,
    /// It took over a node that bears another owner's name.
    pub(crate) is_heir: bool,
    /// Up to when it was vouched for: an eviction lets it run out then.
    pub(crate) ends: Timestamp,
    pub(crate) bell: Arc<Bell>,
    watches: HashMap<String, Watch>,
}

/// Rings when it is worth asking again.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    notify: Notify,
}

impl Bell {
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    fn reset(&self) {
        self.rung.store(false, Ordering::Release);
    }

    pub(crate) async fn rings(&self) {
        loop {
            let notified = self.notify.notified();
            if self.rung.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }
}

/// A node that stands in the way. Dropped, it is not watched any more.
#[derive(Debug)]
struct Watch {
    fired: Arc<AtomicBool>,
    seen: Option<(Record, Stat)>,
    _stop: oneshot::Sender<()>,
}

impl Entry {
    pub(crate) fn new(node: String, token: FencingToken, record: Record, weight: u32) -> Entry {
        Entry {
            node,
            token,
            granted: false,
            record,
            version: 0,
            weight,
            is_heir: false,
            ends: Timestamp::default(),
            bell: Arc::default(),
            watches: HashMap::new(),
        }
    }

    /// Before looking at the line: what happens from now on rings again. Watches that are over are forgotten.
    pub(crate) fn look_again(&mut self) {
        self.bell.reset();
        self.watches.retain(|_, watch| !watch.fired.load(Ordering::Acquire));
    }

    /// Watches these and no others; which of them are not watched yet.
    pub(crate) fn watch_only(&mut self, names: &[String]) -> Vec<String> {
        self.watches.retain(|name, _| names.contains(name));
        names.iter().filter(|name| !self.watches.contains_key(*name)).cloned().collect()
    }

    /// What the watched node says, if that has not changed.
    pub(crate) fn seen(&self, name: &str) -> Option<&(Record, Stat)> {
        self.watches.get(name)?.seen.as_ref()
    }

    pub(crate) fn watch(
        &mut self,
        name: String,
        watcher: OneshotWatcher,
        seen: Option<(Record, Stat)>,
        environment: &dyn Environment,
    ) {
        let fired = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = oneshot::channel::<()>();
        let (flag, bell) = (Arc::clone(&fired), Arc::clone(&self.bell));
        environment.spawn(Box::pin(async move {
            // A session that ends ends its watches too, and that is worth asking about.
            first(watcher.changed(), stopped).await;
            flag.store(true, Ordering::Release);
            bell.ring();
        }));
        self.watches.insert(name, Watch { fired, seen, _stop: stop });
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Whoever waits for it has no place any more.
        self.bell.ring();
    }
}
