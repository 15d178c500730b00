//! Real servers, started by the tests themselves: on free ports of the loopback, in folders of their own.
//!
//! A server that is not installed is a failure of the test, never a reason to skip it. Whatever ends the test, a kill
//! included, ends its servers too.

mod clock;
mod cluster;
mod daemon;
mod etcd;
mod nodes;
mod pools;
mod postgres;
mod redis;
mod replication;
mod zookeeper;

pub use clock::ServerClock;
pub use cluster::RedisCluster;
pub use daemon::Daemon;
pub use etcd::{EtcdCluster, GrpcProxy};
pub use nodes::RedisNodes;
pub use pools::{PgBouncer, Pgpool};
pub use postgres::PostgresServer;
pub use redis::{RedisServer, TlsFiles};
pub use replication::{Guard, Replication, Sentinel};
pub use zookeeper::{Ensemble, ZooKeeperServer};
