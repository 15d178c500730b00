//! Leases in Redis: on one server, behind Sentinel, or on a cluster.
//!
//! Every verb is one script, run by the server in one step ([`scripts/`](https://github.com/leasehold/leasehold)).
//! Redis acknowledges before its replicas know, so this is [best effort](leasehold_core::Guarantee::BestEffort):
//! a failover can grant twice. Tokens go on growing through it; check them where the effect happens.
//!
//! [`RedisNode`] is one server of several that know nothing of each other: a node of a quorum, for `redlock://`.

mod backend;
mod cluster;
mod config;
mod error;
mod inspect;
mod keys;
mod link;
mod moving;
mod node;
mod proof;
mod renew;
mod replicas;
mod reply;
mod route;
mod script;
mod send;
mod sentinel;
mod shards;
mod site;
mod slot;
mod together;
mod visit;
mod wait;

pub use backend::Redis;
pub use config::{Config, Replicas};
pub use node::{Nodes, RedisNode};
#[doc(hidden)]
pub use visit::Visit;

/// The backend's name in errors and metrics.
const NAME: &str = "redis";
