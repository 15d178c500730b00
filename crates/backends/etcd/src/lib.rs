//! Leases in etcd, in the layout of its own `concurrency` package: `etcdctl lock` and Go programs stand in the same
//! line.
//!
//! A claim is a key under an etcd lease of its own; the creation revision of that key is the fencing token. One
//! transaction grants what is free. The guarantee comes from [consensus](leasehold_core::Guarantee::Consensus): what
//! was granted survives the loss of a minority of the members.

mod acquire;
mod backend;
mod call;
mod claims;
mod config;
mod crowds;
mod entry;
mod error;
mod inspect;
mod keeping;
mod keys;
mod line;
mod link;
mod order;
mod plan;
mod pool;
mod proof;
mod read;
mod release;
mod renew;
mod txn;
mod wait;

pub use backend::Etcd;
pub use config::Config;

/// The backend's name in errors and metrics.
const NAME: &str = "etcd";
