//! Tests that need real etcd servers: network faults, several members, `etcdctl`, logins, and the number of
//! requests.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "the helpers are test code too")]

mod access;
mod common;
mod etcdctl;
mod failover;
mod faults;
mod guarantees_page;
mod leases;
mod members;
mod misdelivery;
mod nodes;
mod together;
