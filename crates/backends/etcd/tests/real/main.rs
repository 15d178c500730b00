//! What only a real etcd can show: faults, several members, `etcdctl`, logins, and what it costs.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod access;
mod common;
mod etcdctl;
mod failover;
mod faults;
mod leases;
mod members;
mod misdelivery;
mod readme;
