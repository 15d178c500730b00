//! The users that the documentation describes.
#![allow(dead_code, reason = "every test program uses some of it")]

use leasehold_testkit::servers::{RedisCluster, RedisNodes, RedisServer, Replication};

const REDIS: &str = include_str!("../../../../../docs/backends/redis.md");
const REDLOCK: &str = include_str!("../../../../../docs/backends/redlock.md");

/// The command that makes the user `app`, with exactly the permissions that are documented.
fn command(document: &'static str) -> Vec<&'static str> {
    let from = document.find("ACL SETUSER app").expect("the permissions are documented");
    document[from..].split("```").next().expect("in a block").split_whitespace().collect()
}

fn make(server: &RedisServer, command: &[&str]) {
    assert_eq!(server.command(command), "OK");
}

fn as_app(url: &str) -> String {
    url.replace("://", "://app:PASSWORD@")
}

/// A server that knows the user; and its URL as that user.
pub(crate) fn start() -> (RedisServer, String) {
    let server = RedisServer::start();
    make(&server, &command(REDIS));
    let url = as_app(&server.url());
    (server, url)
}

/// A cluster whose nodes know the user; and its URL as that user. With permissions more.
pub(crate) fn start_cluster(more: &[&str]) -> (RedisCluster, String) {
    let cluster = RedisCluster::start();
    let (_, added) = REDIS.split_once("On a cluster add `").expect("what is to be added is documented");
    let mut command = command(REDIS);
    command.extend(added.split('`').next().expect("it ends").split_whitespace());
    command.extend(more);
    cluster.nodes.iter().for_each(|node| make(node, &command));
    let url = as_app(&cluster.url());
    (cluster, url)
}

/// Lets the user use servers behind Sentinels, and a user of another name ask the Sentinels.
pub(crate) fn let_in_behind_sentinels(servers: &Replication) {
    servers.servers.iter().for_each(|server| make(server, &command(REDIS)));
    let from = REDIS.find("ACL SETUSER finder").expect("what a user of the Sentinels needs is documented");
    let finder: Vec<&str> =
        REDIS[from..].split("```").next().expect("in a block").split_whitespace().collect();
    servers.sentinels.iter().for_each(|sentinel| assert_eq!(sentinel.command(&finder), "OK"));
}

/// Lets the user use the nodes of a quorum; and their URL as that user.
pub(crate) fn let_in(nodes: &RedisNodes) -> String {
    nodes.servers.iter().for_each(|node| make(node, &command(REDLOCK)));
    as_app(&nodes.url())
}
