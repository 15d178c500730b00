//! Nodes: hosts and servers that pause, suspend, freeze and crash.

use super::{Core, World};
use crate::clock::{HostClock, Time};

/// A process: a host that restarts is another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) usize);

/// The controller of the run: never paused, on true time.
pub(crate) const DIRECTOR: NodeId = NodeId(0);
/// Where the backend lives.
pub(crate) const SERVER: NodeId = NodeId(1);

/// How a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Running,
    /// Stopped by a signal: clocks and timers go on, nothing is polled.
    Paused,
    /// The machine sleeps: clocks go on, timers do not.
    Suspended,
    /// The virtual machine is frozen: only the wall clock will show it.
    Frozen,
    Crashed,
}

pub(super) struct SimulatedProcess {
    pub(super) clock: HostClock,
    pub(super) health: Health,
    pub(super) parked: Vec<(usize, u64)>,
    stopped_at: Time,
    resumed_at: Time,
    /// How often its timers or clocks were disturbed.
    disturbances: u32,
}

impl World {
    pub(crate) fn add_node(&self, clock: HostClock) -> NodeId {
        let mut core = self.core();
        let (health, resumed_at) = (Health::Running, core.now);
        core.nodes.push(SimulatedProcess {
            clock,
            health,
            parked: Vec::new(),
            stopped_at: 0,
            resumed_at,
            disturbances: 0,
        });
        NodeId(core.nodes.len() - 1)
    }
    pub(crate) fn clock<T>(&self, node: NodeId, look: impl FnOnce(&mut HostClock, Time) -> T) -> T {
        let mut core = self.core();
        let now = core.now;
        look(&mut core.nodes[node.0].clock, now)
    }

    pub(crate) fn health(&self, node: NodeId) -> Health {
        self.core().nodes[node.0].health
    }

    /// When it last began to run, and how often its timers or clocks were disturbed.
    pub(crate) fn past(&self, node: NodeId) -> (Time, u32) {
        let core = self.core();
        let node = &core.nodes[node.0];
        (node.resumed_at, node.disturbances)
    }

    /// Its clocks or timers are not to be trusted from here on.
    pub(crate) fn disturb(&self, node: NodeId) {
        self.core().nodes[node.0].disturbances += 1;
    }
    /// How many tasks live on this node.
    pub(crate) fn tasks_on(&self, node: NodeId) -> usize {
        self.core().tasks.iter().filter(|(_, task)| task.node == node).count()
    }

    /// Stops polling a node.
    pub(crate) fn stop(&self, node: NodeId, how: Health) {
        let mut core = self.core();
        let now = core.now;
        if core.nodes[node.0].health != Health::Running {
            return;
        }
        core.nodes[node.0].health = how;
        core.nodes[node.0].stopped_at = now;
        if matches!(how, Health::Suspended | Health::Frozen) {
            core.nodes[node.0].disturbances += 1;
            for timer in core.timers_of(node) {
                core.timers.remove(&timer);
            }
        }
    }

    /// Goes on with a node that was stopped.
    pub(crate) fn resume(&self, node: NodeId) {
        let mut core = self.core();
        let now = core.now;
        let SimulatedProcess { health, stopped_at, .. } = core.nodes[node.0];
        if matches!(health, Health::Running | Health::Crashed) {
            return;
        }
        if matches!(health, Health::Suspended | Health::Frozen) {
            core.shift_timers(node, now - stopped_at);
        }
        let node = &mut core.nodes[node.0];
        if health == Health::Frozen {
            node.clock.forget_since(stopped_at, now);
        }
        node.health = Health::Running;
        node.resumed_at = now;
        let parked = std::mem::take(&mut node.parked);
        self.ready.queue().extend(parked);
    }

    /// Ends a node: its tasks are dropped, and nothing that they say on the way out leaves it.
    pub(crate) fn crash(&self, node: NodeId) {
        let gone: Vec<_> = {
            let mut core = self.core();
            core.nodes[node.0].health = Health::Crashed;
            let slots: Vec<_> =
                core.tasks.iter().filter(|(_, task)| task.node == node).map(|(slot, _)| slot).collect();
            slots.into_iter().map(|slot| core.tasks.remove(slot)).collect()
        };
        drop(gone); // outside of the lock: destructors read clocks
    }
}

impl Core {
    fn timers_of(&self, node: NodeId) -> Vec<(Time, u64, usize)> {
        let theirs = |&&(_, _, key): &&(Time, u64, usize)| self.sleepers[key].node == node;
        self.timers.iter().filter(theirs).copied().collect()
    }

    /// Timers that did not go on while their node was asleep are late by that much.
    fn shift_timers(&mut self, node: NodeId, by: u64) {
        for (key, sleeper) in &mut self.sleepers {
            if sleeper.node == node && !sleeper.fired {
                sleeper.due += by;
                self.timers.insert((sleeper.due, sleeper.serial, key));
            }
        }
    }
}
