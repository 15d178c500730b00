//! The users that the documentation describes.
#![allow(dead_code, reason = "every test program uses some of it")]

use leasehold_testkit::servers::{RedisCluster, RedisNodes, RedisServer, Replication};

const REDIS: &str = include_str!("../../../../../docs/backends/redis.md");
const REDLOCK: &str = include_str!("../../../../../docs/backends/redlock.md");

/// The command that creates the user `app`, with exactly the documented permissions.
fn command(document: &'static str) -> Vec<&'static str> {
    let from = document.find("ACL SETUSER app").expect("the permissions are documented");
    document[from..].split("```").next().expect("in a block").split_whitespace().collect()
}

fn create_user(server: &RedisServer, command: &[&str]) {
    assert_eq!(server.command(command), "OK");
}

fn as_app(url: &str) -> String {
    url.replace("://", "://app:PASSWORD@")
}

/// Starts a server with that user; returns it with the URL of that user.
pub(crate) fn start() -> (RedisServer, String) {
    let server = RedisServer::start();
    create_user(&server, &command(REDIS));
    let url = as_app(&server.url());
    (server, url)
}

/// Starts a cluster with that user and these additional permissions; returns it with the URL of that user.
pub(crate) fn start_cluster(extra: &[&str]) -> (RedisCluster, String) {
    let cluster = RedisCluster::start();
    let (_, added) =
        REDIS.split_once("On a cluster add `").expect("the additional permissions are documented");
    let mut command = command(REDIS);
    command.extend(added.split('`').next().expect("it ends").split_whitespace());
    command.extend(extra);
    cluster.nodes.iter().for_each(|node| create_user(node, &command));
    let url = as_app(&cluster.url());
    (cluster, url)
}

/// Creates the user `app` on the servers, and the user `finder` on their Sentinels.
pub(crate) fn create_users_behind_sentinels(servers: &Replication) {
    servers.servers.iter().for_each(|server| create_user(server, &command(REDIS)));
    let from = REDIS.find("ACL SETUSER finder").expect("the permissions for Sentinels are documented");
    let finder: Vec<&str> =
        REDIS[from..].split("```").next().expect("in a block").split_whitespace().collect();
    servers.sentinels.iter().for_each(|sentinel| assert_eq!(sentinel.command(&finder), "OK"));
}

/// Creates the user on the nodes of a quorum; returns their URL for that user.
pub(crate) fn create_user_on_nodes(nodes: &RedisNodes) -> String {
    nodes.servers.iter().for_each(|node| create_user(node, &command(REDLOCK)));
    as_app(&nodes.url())
}
