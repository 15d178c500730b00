//! A seeded simulation of leasehold: the real engine over the memory backend, on virtual time, in one thread.
//!
//! A seed draws a plan (hosts, primitives, weather, faults), and the plan is played: a storm in which everything goes
//! wrong, a calm in which nothing may, a drain in which everyone who waits must get a turn, and a look at what is
//! left. The same seed is the same run, poll by poll.
//!
//! | module | what it does |
//! |---|---|
//! | `world` | virtual time, tasks, nodes that pause, suspend, freeze and crash |
//! | `network`, `server` | requests and replies that are late, lost, repeated, cut off |
//! | `workload`, `holding` | every primitive, in every way that it can be asked for and given back |
//! | `nemesis` | faults, and an operator |
//! | `referee`, `shadow` | judges what the server does: seating, order, turns, tokens, tombstones |
//! | `ledger` | judges what holders believe, in true time |
//! | `register` | the fenced effect |
//! | `quorum` | the same for leases over a majority of nodes, with runs of their own |

mod clock;
mod environment;
mod holding;
mod ledger;
mod nemesis;
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
mod shadow;
mod stage;
mod workload;
mod world;

pub use quorum::run_quorum_seed;
pub use report::{Report, Summary, Violation};
pub use run::run_seed;
