//! The servers of the URL as they are now, for people. The driver does not say which of them it is connected to, so each is
//! asked on a connection of its own, which the server closes after its answer.
//!
//! The question is the four-letter word `srvr`. ZooKeeper always allows it, whatever `4lw.commands.whitelist` says, because its
//! own start script needs it. A server or a proxy that does not allow it says so, which is an answer, too: then it counts, and
//! whether it reaches a majority is not known. No server tells its time.

use leasehold_core::{Environment, Error, ErrorKind, NodeStatus, Page};
use leasehold_support::ask_nodes::{NodeQuestion, ask_all, not_counting, standing_by, timed};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{backend::ZooKeeper, config::address, error::explain_io};

const QUESTION: &[u8] = b"srvr";
/// The answer has some hundred bytes.
const ANSWER_BYTES_MAX: u64 = 4096;
/// What the line of an answer begins with that names the role of the server.
const MODE: &str = "Mode: ";
/// How a server without a majority answers.
const NOT_SERVING: &str = "not currently serving requests";
/// How a server answers that does not allow the question.
const NOT_ALLOWED: &str = "is not executed because";

impl ZooKeeper {
    pub(crate) async fn nodes(&self) -> Page {
        let environment = self.environment();
        let question = |server| NodeQuestion::new(address(server), ask(environment, server));
        let questions = self.config().servers().iter().map(question).collect();
        Page::Nodes(ask_all(environment, questions).await)
    }
}

async fn ask(environment: &dyn Environment, server: &(String, u16)) -> Result<NodeStatus, Error> {
    let name = address(server);
    let failed = |what: &str, error: std::io::Error| {
        Error::new(ErrorKind::Unavailable, format!("{what} {name}: {}", explain_io(&error)))
    };
    let opening = TcpStream::connect((server.0.as_str(), server.1));
    let mut stream = opening.await.map_err(|error| failed("cannot connect to", error))?;
    let (answer, trip) = timed(environment, exchange(&mut stream)).await;
    let answer = answer.map_err(|error| failed("no answer from", error))?;
    let status = trip.answered(name, None);
    Ok(match why_it_does_not_count(&answer) {
        Some(why) => not_counting(status, why),
        None if mode(&answer) == Some("observer") => {
            standing_by(status, "it is an observer: it serves requests, and has no vote")
        }
        None => status,
    })
}

async fn exchange(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.write_all(QUESTION).await?;
    let mut answer = Vec::new();
    match stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await {
        // Some servers reset the connection after their answer.
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// The role of the server.
fn mode(answer: &str) -> Option<&str> {
    answer.lines().find_map(|line| line.strip_prefix(MODE)).map(str::trim)
}

fn why_it_does_not_count(answer: &str) -> Option<String> {
    match mode(answer) {
        Some("leader" | "follower" | "standalone" | "observer") => None,
        Some("read-only") => {
            Some("it serves reads alone: it does not reach a majority of the servers".to_owned())
        }
        Some(other) => Some(format!("its mode is {other:.40}")),
        None if answer.contains(NOT_ALLOWED) => None,
        None if answer.contains(NOT_SERVING) => {
            Some("it serves no requests: it does not reach a majority of the servers".to_owned())
        }
        None if answer.is_empty() => {
            Some("it closed the connection without an answer: check maxClientCnxns and the port".to_owned())
        }
        None => Some(format!("it does not answer as ZooKeeper does: {answer:.40?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_no_fault_if_it_serves_or_may_not_say() {
        for mode in ["leader", "follower", "standalone", "observer"] {
            let answer = format!("Zookeeper version: 3.8.0\nZxid: 0x0\nMode: {mode}\nNode count: 9\n");
            assert_eq!(super::mode(&answer), Some(mode));
            assert_eq!(why_it_does_not_count(&answer), None, "{mode}");
        }
        let not_allowed = "srvr is not executed because it is not in the whitelist.\n";
        assert_eq!(why_it_does_not_count(not_allowed), None);
    }

    #[test]
    fn a_server_that_does_not_count_says_why() {
        let table = [
            ("Mode: read-only\n", "majority"),
            ("Mode: resting\n", "resting"),
            ("This ZooKeeper instance is not currently serving requests\n", "majority"),
            ("", "without an answer"),
            ("HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        ];
        for (answer, words) in table {
            let why = why_it_does_not_count(answer).expect("it does not count");
            assert!(why.contains(words), "{answer:?}: {why}");
        }
    }
}
