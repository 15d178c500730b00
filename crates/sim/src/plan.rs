//! The plan of a run, chosen by its seed: hosts, primitives, network conditions, faults.

use std::time::Duration;

use crate::{
    clock::{HostClock, PAR},
    random::Random,
};

/// A primitive in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lease,
    Fair,
    Semaphore,
    ReadWrite,
    Election,
    Scope,
    All,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::Lease, Kind::Fair, Kind::Semaphore, Kind::ReadWrite, Kind::Election, Kind::Scope, Kind::All];
}

/// What can happen to a host or to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Pause,
    Suspend,
    Freeze,
    Crash,
    PartitionBoth,
    PartitionRequests,
    PartitionReplies,
    ServerPause,
    WallForward,
    WallBack,
    Drift,
}

/// How often something happens to a message, in a thousand, and how long messages take.
#[derive(Clone, Debug)]
pub(crate) struct NetworkConditions {
    pub(crate) lose_request: u32,
    pub(crate) lose_reply: u32,
    pub(crate) late_request: u32,
    pub(crate) late_reply: u32,
    pub(crate) refuse: u32,
    pub(crate) reset: u32,
    pub(crate) twice: u32,
    pub(crate) latency_max: Duration,
    pub(crate) late_max: Duration,
}

impl NetworkConditions {
    /// No faults.
    pub(crate) fn without_faults() -> NetworkConditions {
        NetworkConditions {
            lose_request: 0,
            lose_reply: 0,
            late_request: 0,
            late_reply: 0,
            refuse: 0,
            reset: 0,
            twice: 0,
            latency_max: Duration::from_millis(5),
            late_max: Duration::ZERO,
        }
    }

    pub(crate) fn drawn(random: &mut Random) -> NetworkConditions {
        let worst = *random.pick(&[0, 5, 30, 120]);
        let mut rate = || u32::try_from(random.below(worst + 1)).unwrap_or(0);
        let (lose_request, lose_reply, late_request, late_reply) = (rate(), rate(), rate(), rate());
        let (refuse, reset, twice) = (rate(), rate(), rate());
        let latency_max = *random.pick(&[2, 10, 50, 150]);
        NetworkConditions {
            lose_request,
            lose_reply,
            late_request,
            late_reply,
            refuse,
            reset,
            twice,
            latency_max: Duration::from_millis(latency_max),
            late_max: Duration::from_secs(*random.pick(&[1, 5, 40])),
        }
    }
}

/// The plan of one run.
#[derive(Clone, Debug)]
pub(crate) struct RunPlan {
    pub(crate) seed: u64,
    /// The run stays within what the guarantees assume: clocks within 1 % of each other, no eviction at once.
    pub(crate) inside: bool,
    pub(crate) hosts: u64,
    pub(crate) tasks: u64,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) ids: u64,
    pub(crate) ttl: (Duration, Duration),
    pub(crate) storm: Duration,
    pub(crate) conditions: NetworkConditions,
    pub(crate) faults: Vec<Fault>,
    pub(crate) fault_every: Duration,
    pub(crate) cancel: u32,
    pub(crate) orders: bool,
    pub(crate) shuffle: bool,
    /// How many claims, or releases, the engine sends in one call at the most.
    pub(crate) gather: usize,
    /// How many calls of a verb are under way before it gathers.
    pub(crate) calls_in_flight: usize,
}

impl RunPlan {
    pub(crate) const PLACE_TTL: Duration = Duration::from_secs(6);

    pub(crate) fn draw(seed: u64) -> RunPlan {
        let mut random = Random::new(seed, 0x91a7);
        let inside = !random.chance(125);
        let kinds = if random.chance(300) {
            Kind::ALL.to_vec()
        } else {
            (0..random.between(1, 3)).map(|_| *random.pick(&Kind::ALL)).collect()
        };
        let (low, high) = *random.pick(&[(300, 900), (400, 3_000), (2_000, 12_000)]);
        RunPlan {
            seed,
            inside,
            hosts: random.between(2, 4),
            tasks: random.between(1, 4),
            kinds,
            ids: random.between(1, 2),
            ttl: (Duration::from_millis(low), Duration::from_millis(high)),
            storm: Duration::from_secs(random.between(8, 30)),
            conditions: NetworkConditions::drawn(&mut random),
            faults: draw_faults(&mut random, inside),
            fault_every: Duration::from_millis(*random.pick(&[800, 2_500, 8_000])),
            cancel: *random.pick(&[0, 50, 250]),
            orders: random.chance(300),
            shuffle: random.chance(500),
            gather: *random.pick(&[1, 2, 16, 16]),
            calls_in_flight: *random.pick(&[1, 1, 2]),
        }
    }

    /// How long old leases and places may block a resource once the faults are over.
    pub(crate) fn settling(&self) -> Duration {
        self.ttl.1 + RunPlan::PLACE_TTL + Duration::from_secs(8)
    }

    pub(crate) fn clock(&self, random: &mut Random) -> HostClock {
        let rate = self.rate(random);
        HostClock::new(rate, random.spread(Duration::from_millis(1), Duration::from_secs(3600)))
    }

    /// Within 0.4 % of true time, so that two clocks are within 1 % of each other; outside, a fifth off.
    pub(crate) fn rate(&self, random: &mut Random) -> u64 {
        let most = if self.inside { 4_000_000 } else { 200_000_000 };
        PAR - most + random.below(2 * most + 1)
    }
}

fn draw_faults(random: &mut Random, inside: bool) -> Vec<Fault> {
    let all = [
        Fault::Pause,
        Fault::Suspend,
        Fault::Crash,
        Fault::PartitionBoth,
        Fault::PartitionRequests,
        Fault::PartitionReplies,
        Fault::ServerPause,
        Fault::WallForward,
        Fault::Drift,
    ];
    let mut faults: Vec<Fault> = all.into_iter().filter(|_| random.chance(500)).collect();
    // Only the wall clock shows that a machine was frozen. A wall clock set back at the same time would hide it.
    let (freeze, back) = (random.chance(400), random.chance(400));
    if freeze {
        faults.push(Fault::Freeze);
    }
    if back && !(inside && freeze) {
        faults.push(Fault::WallBack);
    }
    faults
}
