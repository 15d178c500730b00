//! A seeded simulation of leasehold: the real engine over the memory backend, on virtual time, in one thread.
//!
//! A run has these steps. The same seed is the same run, poll by poll.
//!
//! 1. The seed chooses a plan: hosts, primitives, network conditions, faults.
//! 2. Storm: the hosts work while faults are injected.
//! 3. Calm: no new faults; old ones may still have effects. Then strict: nothing may go wrong any more.
//! 4. Drain: no new work begins, and every waiter must be granted.
//! 5. The server must have nothing left.
//!
//! | module | what it does |
//! |---|---|
//! | `world` | virtual time, tasks, nodes that pause, suspend, freeze and crash |
//! | `network`, `server` | requests and replies that are delayed, lost, repeated, cut off |
//! | `workload`, `holding` | uses every primitive, in every way to acquire and release it |
//! | `faults` | injects faults, and acts as an operator |
//! | `referee`, `expected_state` | checks what the server does: admission, order, handovers, tokens, tombstones |
//! | `beliefs` | checks what holders believe, in true time |
//! | `register` | the effect, which checks fencing tokens |
//! | `quorum` | the same for leases over a majority of nodes, with runs of their own |
//! | `planted` | builds the simulator with known bugs, and expects each of them to be found |

mod beliefs;
mod clock;
mod environment;
mod expected_state;
mod faults;
mod holding;
mod network;
mod plan;
pub mod planted;
mod progress;
mod quorum;
mod random;
mod referee;
mod register;
mod report;
mod run;
mod server;
mod simulation;
mod workload;
mod world;

pub use quorum::run_quorum_seed;
pub use report::{Report, Summary, Violation};
pub use run::run_seed;
