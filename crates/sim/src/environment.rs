//! The engine's environment on one node: its clocks, its chance, its timers, its tasks.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold::{Clock, Environment, Timestamp, WallTime};
use leasehold_core::clock::Task;

use crate::{
    random::Random,
    world::{NodeId, World},
};

/// One node's share of the world.
pub(crate) struct NodeEnvironment {
    world: Arc<World>,
    node: NodeId,
    random: Mutex<Random>,
}

impl NodeEnvironment {
    pub(crate) fn new(world: &Arc<World>, node: NodeId, seed: u64) -> Arc<NodeEnvironment> {
        let random = Mutex::new(Random::new(seed, 0xe0_0000 + node.0 as u64));
        Arc::new(NodeEnvironment { world: Arc::clone(world), node, random })
    }
}

impl fmt::Debug for NodeEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeEnvironment({:?})", self.node)
    }
}

impl Clock for NodeEnvironment {
    fn now(&self) -> Timestamp {
        self.world.clock(self.node, |clock, now| clock.boot(now))
    }

    fn wall(&self) -> WallTime {
        self.world.clock(self.node, |clock, now| clock.wall(now))
    }
}

impl Environment for NodeEnvironment {
    fn fill(&self, bytes: &mut [u8]) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
        }
    }

    fn sleep(&self, duration: Duration) -> Task {
        let long = self.world.clock(self.node, |clock, _| clock.true_duration(duration));
        Box::pin(self.world.sleep(self.node, long))
    }

    fn spawn(&self, task: Task) {
        self.world.spawn(self.node, task);
    }
}
