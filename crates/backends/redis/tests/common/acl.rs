//! The user that the documentation describes.

use leasehold_testkit::servers::RedisServer;

const DOCUMENT: &str = include_str!("../../../../../docs/backends/redis.md");

/// A server that knows the user `app`, with exactly the permissions that are documented; and its URL as that user.
pub(crate) fn start() -> (RedisServer, String) {
    let server = RedisServer::start();
    let from = DOCUMENT.find("ACL SETUSER app").expect("the permissions are documented");
    let command = DOCUMENT[from..].split("```").next().expect("in a block");
    let words: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(server.command(&words), "OK");
    let url = format!("redis://app:PASSWORD@127.0.0.1:{}/", server.port());
    (server, url)
}
