//! Timers, each on a node whose sleep may hold it up.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{DIRECTOR, NodeId, World};
use crate::{clock::Time, random::nanos};

pub(super) struct Sleeper {
    pub(super) due: Time,
    pub(super) serial: u64,
    pub(super) node: NodeId,
    pub(super) fired: bool,
    pub(super) waker: Option<Waker>,
}

impl World {
    /// Resolves after this much true time, seen by this node's timers.
    pub(crate) fn sleep(self: &Arc<World>, node: NodeId, true_nanos: u64) -> Sleep {
        let mut core = self.core();
        core.serial += 1;
        let (due, serial) = (core.now.saturating_add(true_nanos), core.serial);
        let key = core.sleepers.insert(Sleeper { due, serial, node, fired: false, waker: None });
        core.timers.insert((due, serial, key));
        drop(core);
        Sleep { world: Arc::clone(self), key }
    }

    /// Resolves after this much true time, whatever happens to any node.
    pub(crate) fn pause(self: &Arc<World>, duration: Duration) -> Sleep {
        self.sleep(DIRECTOR, nanos(duration))
    }
}

/// A timer.
#[derive(Debug)]
pub(crate) struct Sleep {
    world: Arc<World>,
    key: usize,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        let mut core = self.world.core();
        let sleeper = &mut core.sleepers[self.key];
        if sleeper.fired {
            return Poll::Ready(());
        }
        sleeper.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let mut core = self.world.core();
        let sleeper = core.sleepers.remove(self.key);
        core.timers.remove(&(sleeper.due, sleeper.serial, self.key));
        drop(core);
        drop(sleeper.waker);
    }
}
