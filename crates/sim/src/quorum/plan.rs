//! What a seed means for a quorum.

use std::time::Duration;

use crate::{
    clock::{HostClock, PAR},
    plan::NetworkConditions,
    random::Random,
};

/// What can happen to a host or to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuorumFault {
    HostPause,
    HostSuspend,
    HostCrash,
    /// A host does not reach some of the nodes, in one direction or in both.
    Partition,
    NodePause,
    /// A node restarts, and has lost everything, or everything but its mark; or someone flushes it.
    NodeForgets,
    /// The wall clock of a node is set.
    NodeClock,
    /// The wall clock of a host is set.
    HostClock,
}

impl QuorumFault {
    const ALL: [QuorumFault; 8] = [
        QuorumFault::HostPause,
        QuorumFault::HostSuspend,
        QuorumFault::HostCrash,
        QuorumFault::Partition,
        QuorumFault::NodePause,
        QuorumFault::NodeForgets,
        QuorumFault::NodeClock,
        QuorumFault::HostClock,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            QuorumFault::HostPause => "fault: pause",
            QuorumFault::HostSuspend => "fault: suspend",
            QuorumFault::HostCrash => "fault: crash",
            QuorumFault::Partition => "fault: partition",
            QuorumFault::NodePause => "fault: node pause",
            QuorumFault::NodeForgets => "fault: node forgets",
            QuorumFault::NodeClock => "fault: node's calendar set",
            QuorumFault::HostClock => "fault: host's calendar set",
        }
    }
}

/// A run, drawn from its seed.
#[derive(Clone, Debug)]
pub(crate) struct QuorumRunPlan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) hosts: u64,
    pub(crate) tasks: u64,
    pub(crate) durable: bool,
    pub(crate) storm: Duration,
    pub(crate) conditions: NetworkConditions,
    pub(crate) faults: Vec<QuorumFault>,
    pub(crate) fault_every: Duration,
    pub(crate) cancel: u32,
    /// During the storm the first two hosts share a bare majority's overlap: each misses other nodes. The others reach
    /// all nodes, and are busy elsewhere: they only see to the nodes.
    pub(crate) lopsided: bool,
}

impl QuorumRunPlan {
    /// No ttl is longer, and a node that forgot is out for so long.
    pub(crate) const GATE: Duration = Duration::from_secs(4);
    pub(crate) const TTL: (Duration, Duration) = (Duration::from_millis(800), Duration::from_millis(3500));
    /// How far calendars may be apart: half of what a node takes for too far.
    const APART: Duration = Duration::from_secs(150);

    pub(crate) fn draw(seed: u64) -> QuorumRunPlan {
        let mut random = Random::new(seed, 0x90_0207);
        let mut faults: Vec<QuorumFault> =
            QuorumFault::ALL.into_iter().filter(|_| random.chance(450)).collect();
        // A clock that is set while its node waits out the gate cuts the gate short: that is two faults at once.
        if faults.contains(&QuorumFault::NodeForgets) {
            faults.retain(|fault| *fault != QuorumFault::NodeClock);
        }
        let lopsided = random.chance(150);
        if lopsided {
            faults = vec![QuorumFault::NodeForgets];
        }
        QuorumRunPlan {
            seed,
            nodes: *random.pick(&[3, 3, 5]),
            hosts: if lopsided { 3 } else { random.between(2, 3) },
            tasks: random.between(1, 2),
            durable: random.chance(150),
            storm: Duration::from_secs(random.between(12, 30)),
            conditions: NetworkConditions::drawn(&mut random),
            faults,
            fault_every: Duration::from_millis(*random.pick(&[700, 2_000, 5_000])),
            cancel: *random.pick(&[0, 50, 250]),
            lopsided,
        }
    }

    /// A node whose clock was set forward may let a rival in: the fence holds, exclusion does not.
    pub(crate) fn excludes(&self) -> bool {
        !self.faults.contains(&QuorumFault::NodeClock)
    }

    /// Whether this host misses this node while the storm lasts, because the run is lopsided.
    pub(crate) fn misses(&self, host: u64, node: usize) -> bool {
        let minority = (self.nodes - 1) / 2;
        let missed = match host {
            0 => 1..=minority,
            1 => minority + 1..=2 * minority,
            _ => return false,
        };
        self.lopsided && missed.contains(&node)
    }

    pub(crate) fn clock(&self, random: &mut Random) -> HostClock {
        let rate = PAR - 4_000_000 + random.below(8_000_001);
        HostClock::new(rate, random.duration(Duration::ZERO, QuorumRunPlan::APART))
    }

    /// By how much a wall clock is set: the sum stays within what nodes accept.
    pub(crate) fn step(&self, random: &mut Random) -> Duration {
        random.spread(Duration::from_secs(1), Duration::from_secs(12))
    }
}
