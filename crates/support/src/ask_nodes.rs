//! Asks the servers of a store how they are: [`Query::Nodes`](leasehold_core::Query::Nodes).
//!
//! 1. All servers are asked at once.
//! 2. A server that has not answered after [`ANSWER_WITHIN`] is reported as silent. It delays nobody for longer, and it is
//!    no error: the others are reported as well.
//! 3. The round trip is that of the question alone, without connecting. Its clock counts as read in the middle of it.

use std::{
    fmt::Display,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use leasehold_core::{Clock, Environment, Error, NodeStatus, WallTime};

use crate::race::first;

/// How long a server may take to answer, with connecting.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What the question to a server gives: its status, or why there is none.
pub type NodeReply<'a> = Pin<Box<dyn Future<Output = Result<NodeStatus, Error>> + Send + 'a>>;

/// A server that is asked.
pub struct NodeQuestion<'a> {
    name: String,
    reply: NodeReply<'a>,
}

impl<'a> NodeQuestion<'a> {
    /// Asks the server with this name. The status that it gives may have another name.
    pub fn new(
        name: impl Into<String>,
        reply: impl Future<Output = Result<NodeStatus, Error>> + Send + 'a,
    ) -> NodeQuestion<'a> {
        NodeQuestion { name: name.into(), reply: Box::pin(reply) }
    }
}

impl std::fmt::Debug for NodeQuestion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeQuestion").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The status of each server, in the order of the questions.
///
/// # Cancel safety
/// The questions are dropped. They change nothing.
pub async fn ask_all(environment: &dyn Environment, questions: Vec<NodeQuestion<'_>>) -> Vec<NodeStatus> {
    let (names, replies): (Vec<_>, Vec<_>) =
        questions.into_iter().map(|question| (question.name, question.reply)).unzip();
    let mut statuses: Vec<Option<NodeStatus>> = names.iter().map(|_| None).collect();
    let mut waiting: Vec<_> = replies.into_iter().map(Some).collect();
    let all = poll_fn(|cx| {
        for (number, slot) in waiting.iter_mut().enumerate() {
            let Some(reply) = slot else { continue };
            if let Poll::Ready(outcome) = reply.as_mut().poll(cx) {
                *slot = None;
                statuses[number] = Some(outcome.unwrap_or_else(|error| down(&names[number], &error)));
            }
        }
        if waiting.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    });
    first(all, environment.sleep(ANSWER_WITHIN)).await;
    statuses.into_iter().zip(names).map(|(status, name)| status.unwrap_or_else(|| silent(&name))).collect()
}

/// A server that did not answer, or refused, for this reason.
pub fn down(name: &str, why: &dyn Display) -> NodeStatus {
    let mut status = NodeStatus::named(name);
    status.why = Some(why.to_string());
    status
}

/// A server that has not answered in time.
pub fn silent(name: &str) -> NodeStatus {
    down(name, &format_args!("no answer within {ANSWER_WITHIN:?}"))
}

/// When a question was sent and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// How long it took.
    pub took: Duration,
    /// Our wall clock in the middle.
    pub middle: WallTime,
}

/// Measures a question.
pub async fn timed<T>(clock: &dyn Clock, question: impl Future<Output = T>) -> (T, RoundTrip) {
    let sent_at = clock.now();
    let reply = question.await;
    let took = sent_at.until(clock.now());
    let half = u64::try_from(took.as_micros() / 2).unwrap_or(u64::MAX);
    let middle = WallTime::from_micros(clock.wall().as_micros().saturating_sub(half));
    (reply, RoundTrip { took, middle })
}

/// Measures a question that is asked over a connection which is kept. It may have broken while nobody used it: then the question
/// is asked once more, which connects, and then again, so that the round trip is without connecting.
///
/// # Errors
/// That of the question, or of connecting.
pub async fn timed_over_connection<T, E, F>(
    clock: &dyn Clock,
    ask: impl Fn() -> F,
    is_broken: impl Fn(&E) -> bool,
) -> Result<(T, RoundTrip), E>
where
    F: Future<Output = Result<T, E>>,
{
    let (mut reply, mut trip) = timed(clock, ask()).await;
    if reply.as_ref().is_err_and(is_broken) {
        ask().await?;
        (reply, trip) = timed(clock, ask()).await;
    }
    Ok((reply?, trip))
}

impl RoundTrip {
    /// A server that answered, and counts. `time` is the time on its clock, if it said so.
    pub fn answered(self, name: impl Into<String>, time: Option<WallTime>) -> NodeStatus {
        let mut status = NodeStatus::named(name);
        status.counts = true;
        status.round_trip = Some(self.took);
        status.clocks = time.map(|time| (time, self.middle));
        status
    }
}

/// A server that answered and does not count, for this reason.
#[must_use]
pub fn not_counting(mut status: NodeStatus, why: impl Into<String>) -> NodeStatus {
    (status.counts, status.why) = (false, Some(why.into()));
    status
}

/// A server that answered and does not count by design, for this reason.
#[must_use]
pub fn standing_by(status: NodeStatus, why: impl Into<String>) -> NodeStatus {
    let mut status = not_counting(status, why);
    status.stands_by = true;
    status
}

/// The name of the server at an address: `host:port`, with brackets around an IPv6 address.
pub fn name_of(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        sync::atomic::{AtomicU64, Ordering},
    };

    use leasehold_core::{ErrorKind, Timestamp, clock::Task};

    use super::*;

    /// A clock that is set by hand, and a timer that has always ended.
    #[derive(Debug, Default)]
    struct TestEnvironment(AtomicU64);

    impl Clock for TestEnvironment {
        fn now(&self) -> Timestamp {
            Timestamp::from_nanos(self.0.load(Ordering::Relaxed))
        }

        fn wall(&self) -> WallTime {
            WallTime::from_micros(1_000_000 + self.0.load(Ordering::Relaxed) / 1000)
        }
    }

    impl Environment for TestEnvironment {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(0);
        }

        fn sleep(&self, _: Duration) -> Task {
            Box::pin(ready(()))
        }

        fn spawn(&self, _: Task) {}
    }

    #[tokio::test]
    async fn a_silent_server_and_one_that_fails_are_reported_beside_the_others() {
        let environment = TestEnvironment::default();
        let refused = Error::new(ErrorKind::Denied, "the password is wrong");
        let up = RoundTrip { took: Duration::from_millis(2), middle: WallTime::from_micros(5) };
        let questions = vec![
            NodeQuestion::new("a", pending()),
            NodeQuestion::new("b", ready(Err(refused))),
            NodeQuestion::new("c", ready(Ok(up.answered("c:1", Some(WallTime::from_micros(7)))))),
        ];
        let statuses = ask_all(&environment, questions).await;
        let why: Vec<_> = statuses.iter().map(|status| status.why.as_deref()).collect();
        assert_eq!(why, [Some("no answer within 1s"), Some("the password is wrong"), None]);
        assert_eq!(statuses.iter().map(|status| status.counts).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!((statuses[2].name.as_str(), statuses[2].round_trip), ("c:1", Some(up.took)));
        assert_eq!(statuses[2].clocks, Some((WallTime::from_micros(7), WallTime::from_micros(5))));
    }

    #[tokio::test]
    async fn our_clock_is_read_in_the_middle_of_the_round_trip() {
        let environment = TestEnvironment::default();
        let question = async { environment.0.store(4_000_000, Ordering::Relaxed) };
        let ((), trip) = timed(&environment, question).await;
        assert_eq!(trip.took, Duration::from_millis(4));
        assert_eq!(trip.middle, WallTime::from_micros(1_002_000));
    }

    #[tokio::test]
    async fn a_broken_connection_is_replaced_and_the_round_trip_is_without_connecting() {
        let environment = TestEnvironment::default();
        let asked = AtomicU64::new(0);
        let ask = || async {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            // Connecting takes 9 ms, every question 1 ms.
            environment.0.fetch_add(if number == 1 { 10_000_000 } else { 1_000_000 }, Ordering::Relaxed);
            if number == 0 { Err("broken") } else { Ok(number) }
        };
        let (number, trip) = timed_over_connection(&environment, ask, |_| true).await.unwrap();
        assert_eq!((number, trip.took), (2, Duration::from_millis(1)));
        asked.store(0, Ordering::Relaxed);
        let refused = timed_over_connection(&environment, ask, |_| false).await.unwrap_err();
        assert_eq!((refused, asked.load(Ordering::Relaxed)), ("broken", 1));
    }

    #[test]
    fn an_address_with_colons_gets_brackets_once() {
        let names = [name_of("::1", 1), name_of("[::1]", 1), name_of("db.internal", 5432)];
        assert_eq!(names, ["[::1]:1", "[::1]:1", "db.internal:5432"]);
    }
}
