//! Leases in Redis: on one server, behind Sentinel, or on a cluster.
//!
//! Every verb is one script, which the server runs in one step
//! ([`scripts/`](https://github.com/leasehold/leasehold)). Redis acknowledges a write before its replicas
//! have it, so this is [best effort](leasehold_core::Guarantee::BestEffort): a failover can grant a resource
//! twice. Tokens keep growing through a failover; check them where the effect happens.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use std::sync::Arc;
//! use leasehold_redis::{Config, Redis};
//!
//! let environment = Arc::new(leasehold::System::current());
//! let backend = Redis::connect(Config::parse("redis://127.0.0.1")?, environment).await?;
//! let leases = leasehold::Client::new(Arc::new(backend)); // in short: leasehold::connect("redis://127.0.0.1")
//! leases.lease("report", "42").run(async |lease| println!("holding {:?}", lease.token())).await
//! # }
//! ```
//!
//! [`RedisNode`] is one server of several that know nothing of each other: a node of a quorum, for
//! `redlock://`.
//!
//! | module | what it holds |
//! |---|---|
//! | `backend` | [`Redis`], and the trait `Backend` over the verbs |
//! | `acquire`, `renew`, `release`, `wait`, `inspect`, `order` | one verb each |
//! | `list`, `audit` | `inspect` of many resources, and of the audit trail |
//! | `nodes` | `inspect` of the servers themselves |
//! | `batch` | `acquire` and `release` of several claims at once |
//! | `contended` | which resources were contended a moment ago |
//! | `slot_migration` | `acquire`, `renew` and `release` while a cluster moves the slot of the resource |
//! | `replicas` | grants and renewals that replicas acknowledge (`replicas=`) |
//! | `config` | [`Config`]: the URL and its options |
//! | `connect`, `server_info` | opens a connection; what the server says about itself |
//! | `connection` | the shared connection to a primary |
//! | `request`, `request_id` | sends scripts and commands; proves which request a reply belongs to |
//! | `script`, `keys`, `reply` | the Lua scripts; the names of keys; the fields of replies |
//! | `error` | `StoreError`, and how it becomes a `leasehold_core::Error` |
//! | `router` | sends a call to the server that has its resource |
//! | `cluster`, `cluster_router`, `slot_map`, `slot` | the nodes of a cluster; redirects; the slot map; slots of keys |
//! | `sentinel` | finds the primary, and watches for failovers |
//! | `listener`, `shard_listener`, `pending_wakeups` | wake-ups: on one server, on a cluster, and before `wait` is called |
//! | `join` | polls several futures at once |
//! | `key_connection` | a connection to the server of one key, for `leasehold fence` |
//! | `node` | [`RedisNode`] and [`Nodes`], for `redlock://` |

mod acquire;
mod audit;
mod backend;
mod batch;
mod cluster;
mod cluster_router;
mod config;
mod connect;
mod connection;
mod contended;
mod error;
mod inspect;
mod join;
mod key_connection;
mod keys;
mod list;
mod listener;
mod node;
mod nodes;
mod order;
mod pending_wakeups;
mod release;
mod renew;
mod replicas;
mod reply;
mod request;
mod request_id;
mod router;
mod script;
mod sentinel;
mod server_info;
mod shard_listener;
mod slot;
mod slot_map;
mod slot_migration;
mod wait;

pub use backend::Redis;
pub use config::{Config, Replicas};
#[doc(hidden)]
pub use key_connection::KeyConnection;
pub use node::{Nodes, RedisNode};

/// The backend's name in errors and metrics.
const NAME: &str = "redis";
