//! Real servers that the tests start themselves: on free ports of 127.0.0.1, each in a folder of its own.
//!
//! A server that is not installed fails the test; the test is never skipped. The servers end with the process
//! of the test, also if that is killed.

mod clock;
mod cluster;
mod daemon;
mod etcd;
mod mariadb;
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
pub use mariadb::MariaDbServer;
pub use nodes::RedisNodes;
pub use pools::{PgBouncer, Pgpool};
pub use postgres::PostgresServer;
pub use redis::{RedisServer, TlsFiles};
pub use replication::{Replication, ReplicationSecurity, Sentinel};
pub use zookeeper::{Ensemble, ZooKeeperServer};
