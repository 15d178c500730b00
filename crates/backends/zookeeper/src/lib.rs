//! Leases in ZooKeeper, in one line with Curator's `InterProcessMutex`.
//!
//! A claim is an ephemeral sequential node, named as Curator names its contenders, and whoever stands first holds. Its
//! token is the `czxid` of that node. A lease lives as long as the session that took it, so no claim has a ttl of its
//! own; what is vouched for is counted by our own clock, and ends before the session can.

mod acquire;
mod backend;
mod claims;
mod config;
mod control;
mod error;
mod evaluate;
mod grave;
mod inspect;
mod line;
mod link;
mod marker;
mod names;
mod order;
mod record;
mod release;
mod renew;
mod session;
mod succeed;
mod transaction;
mod view;
mod wait;

pub use backend::ZooKeeper;
pub use config::Config;

/// The backend's name in errors and metrics.
const NAME: &str = "zookeeper";
