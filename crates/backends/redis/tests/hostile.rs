//! A server that sends random replies: every call ends with a result or an error, never with a panic.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests on real connections run in real time"
)]

mod common;
#[path = "common/random.rs"]
mod random;

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{LONG, claim, in_time, report};
use leasehold::{
    Backend, BackendExt as _, Cursor, Eviction, FencingToken, Holder, Listing, OperatorAction,
    OperatorCommand, Query, ReleaseRequest, RenewRequest, System,
};
use leasehold_core::{
    QuorumNode as _,
    quorum_node::{AttemptId, UndoRequest, VoteRequest},
};
use leasehold_redis::{Config, Redis, RedisNode};
use random::SeededRandom;

const ROUNDS: u64 = 30;

const WORDS: [&str; 16] = [
    "granted", "blocked", "buried", "mismatch", "kept", "queued", "gone", "done", "who", "yours", "held",
    "free", "far", "long", "novote", "",
];
const NUMBERS: [i64; 12] = [
    0,
    1,
    -1,
    2,
    7,
    1_800_000_000_000_000,
    9_007_199_254_740_991,
    9_007_199_254_740_992,
    4_294_967_295,
    4_294_967_296,
    i64::MAX,
    i64::MIN,
];
const TEXTS: [&str; 9] = [
    "0",
    "00ff00ff00ff",
    "n",
    "host|1|app",
    "e",
    "k",
    "1-1",
    "v1|00|3|1000|run|0|voting",
    "lock:v1:{a/b}:owner",
];

/// Makes random replies, in the form of the protocol.
struct RandomServer {
    random: SeededRandom,
    port: u16,
    mode: &'static str,
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

impl RandomServer {
    fn scalar(&mut self) -> String {
        match self.random.below(6) {
            0 | 1 => format!(":{}\r\n", self.random.choose(&NUMBERS)),
            2 => bulk(&self.random.choose(&NUMBERS).to_string()),
            3 => bulk(self.random.choose(&TEXTS)),
            4 => bulk(self.random.choose(&WORDS)),
            _ => "$-1\r\n".to_owned(),
        }
    }

    fn list(&mut self, depth: usize) -> String {
        let items: Vec<String> = (0..self.random.below(14)).map(|_| self.value(depth)).collect();
        format!("*{}\r\n{}{}", items.len() + 1, bulk(self.random.choose(&WORDS)), items.concat())
    }

    fn value(&mut self, depth: usize) -> String {
        if depth > 0 && self.random.below(4) == 0 { self.list(depth - 1) } else { self.scalar() }
    }

    fn error(&mut self) -> String {
        let port = self.port;
        let [moved, ask] = ["MOVED", "ASK"].map(|word| format!("{word} 4854 127.0.0.1:{port}"));
        let others =
            ["TRYAGAIN later", "NOSCRIPT what", "WRONGTYPE of value", "CORRUPT", "LIMIT", "ERR", "é é"];
        let errors: Vec<&str> =
            others.into_iter().chain([moved.as_str(), &ask, "MOVED", "ASK x y"]).collect();
        format!("-{}\r\n", self.random.choose(&errors))
    }

    fn any_reply(&mut self) -> String {
        match self.random.below(8) {
            0 => self.error(),
            1 => self.scalar(),
            _ => self.list(3),
        }
    }

    /// A reply to `CLUSTER SLOTS`: this server has all slots, and some ranges that may be invalid.
    fn slots(&mut self) -> String {
        const SLOTS: [i64; 6] = [0, 16383, 8000, 16384, -1, i64::MAX];
        let node = format!("*3\r\n{}:{}\r\n{}", bulk("127.0.0.1"), self.port, bulk("id"));
        let mut range =
            |_| format!("*3\r\n:{}\r\n:{}\r\n{node}", self.random.choose(&SLOTS), self.random.choose(&SLOTS));
        let ranges: Vec<String> = (0..3).map(&mut range).collect();
        format!("*4\r\n*3\r\n:0\r\n:16383\r\n{node}{}", ranges.concat())
    }

    fn answer(&mut self, words: &[String]) -> String {
        let rarely = self.random.below(12) == 0;
        let about = words.get(1).map(String::as_str).unwrap_or_default();
        match words[0].as_str() {
            "HELLO" => format!("%1\r\n{}{}", bulk("server"), bulk("redis")),
            "AUTH" | "SELECT" | "CLIENT" => "+OK\r\n".to_owned(),
            "PING" if about.is_empty() => "+PONG\r\n".to_owned(),
            "PING" if !rarely => bulk(about),
            verb @ ("SUBSCRIBE" | "SSUBSCRIBE") => {
                format!(">3\r\n{}{}:1\r\n", bulk(&verb.to_lowercase()), bulk(about))
            }
            _ if rarely => self.any_reply(),
            "ROLE" => format!("*3\r\n{}:0\r\n*0\r\n", bulk("master")),
            "INFO" => bulk(&format!("redis_version:7.0.15\r\nredis_mode:{}\r\nrun_id:ab\r\n", self.mode)),
            "CLUSTER" if about == "SLOTS" => self.slots(),
            "CLUSTER" => bulk(&format!("cluster_current_epoch:{}\r\n", self.random.choose(&NUMBERS))),
            "TIME" => {
                let (seconds, micros) = (self.random.choose(&NUMBERS), self.random.choose(&NUMBERS));
                format!("*2\r\n:{seconds}\r\n:{micros}\r\n")
            }
            "SCAN" => format!("*2\r\n{}{}", bulk("0"), self.list(1)),
            // It returns the request id, so that the other fields are read.
            "EVALSHA" | "EVAL" => {
                let is_number = self.random.below(3) == 0;
                let mut fields =
                    vec![if is_number { self.scalar() } else { bulk(self.random.choose(&WORDS)) }];
                fields.extend((0..self.random.below(14)).map(|_| self.value(3)));
                fields.push(bulk(words.last().map_or("", String::as_str)));
                format!("*{}\r\n{}", fields.len(), fields.concat())
            }
            _ => self.any_reply(),
        }
    }
}

fn read_number(from: &mut BufReader<TcpStream>) -> io::Result<usize> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let number = line.get(1..).and_then(|digits| digits.trim_end().parse().ok());
    number.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn read_words(from: &mut BufReader<TcpStream>) -> io::Result<Vec<String>> {
    let count = read_number(from)?;
    let word = |_| {
        let mut bytes = vec![0; read_number(from)? + 2];
        from.read_exact(&mut bytes)?;
        bytes.truncate(bytes.len() - 2);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    (0..count).map(word).collect()
}

/// Starts a server that sends random replies until this process ends. Returns its port.
fn start_random_server(mode: &'static str) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { continue };
            let random = SeededRandom::new(number as u64);
            let mut server = RandomServer { random, port, mode };
            std::thread::spawn(move || {
                let mut from = BufReader::new(stream.try_clone()?);
                loop {
                    let words = read_words(&mut from)?;
                    if words.is_empty() {
                        return Ok::<(), io::Error>(());
                    }
                    stream.write_all(server.answer(&words).as_bytes())?;
                }
            });
        }
    });
    port
}

/// Counts panics, also in tasks that no test waits for.
fn count_panics() -> Arc<AtomicUsize> {
    let panics = Arc::new(AtomicUsize::new(0));
    let (count, usual) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |what| {
        count.fetch_add(1, Ordering::Relaxed);
        usual(what);
    }));
    panics
}

async fn call_every_verb(redis: &Redis) {
    let mut ours = claim(&report(), LONG);
    drop(redis.acquire_one(&ours).await);
    ours = ours.queued().with_note(&b"a note"[..]);
    drop(redis.acquire_one(&ours).await);
    let held = RenewRequest::new(ours.reference(), LONG);
    drop(redis.renew(&[held.clone(), held.with_note(&b"another"[..])]).await);
    drop(redis.wait(&ours.reference(), &Cursor(0), Duration::from_millis(5)).await);
    for query in
        [Query::One(report()), Query::Resources(Listing::default()), Query::Audit(Listing::default())]
    {
        drop(redis.inspect(&query).await);
    }
    drop(redis.inspect(&Query::Leaks(Listing::default())).await);
    let order = OperatorCommand::new(report(), OperatorAction::Evict(Eviction::Now), "ops", "test");
    drop(redis.order(&order).await);
    drop(redis.release_one(&ReleaseRequest::new(ours.reference()).with_tombstone(LONG)).await);
    drop(redis.release_one(&ReleaseRequest::new(ours.reference())).await);
    // Other resources, because the one above is taken for contended by now.
    let others: Vec<_> =
        (0..3).map(|number| claim(&format!("other/{number}").parse().unwrap(), LONG)).collect();
    assert_eq!(redis.acquire(&others).await.len(), others.len());
    let requests: Vec<_> = others.iter().map(|claim| ReleaseRequest::new(claim.reference())).collect();
    assert_eq!(redis.release(&requests).await.len(), others.len());
}

async fn call_every_node_verb(node: &RedisNode) {
    let ours = claim(&report(), LONG);
    let vote_request = VoteRequest {
        resource: report(),
        owner: ours.owner,
        attempt: AttemptId(1),
        ttl: LONG,
        proposal: FencingToken::new(1).unwrap(),
        holder: Arc::new(Holder::new("host", 1, "test")),
        note: None,
    };
    if let Ok(health) = node.health().await {
        drop(node.mark(None, &health.mark.unwrap_or_else(mark)).await);
    }
    drop((node.vote(&vote_request).await, node.claim(&vote_request).await, node.join(&vote_request).await));
    drop(node.renew(&[RenewRequest::new(ours.reference(), LONG)]).await);
    drop((node.look(&report()).await, node.walk("", None).await));
    let undo = UndoRequest { resource: report(), owner: ours.owner, attempt: None, tombstone: Some(LONG) };
    drop(node.undo(&undo).await);
    drop(node.raise(&[(report(), FencingToken::new(7).unwrap())]).await);
    drop(node.listen(&report(), Duration::from_millis(5)).await);
}

fn mark() -> leasehold_core::quorum_node::BirthMark {
    use leasehold_core::quorum_node::{BirthMark, VoterStatus};
    let (set, run) = ("00".to_owned(), "ab".to_owned());
    BirthMark { set, size: 3, gate: LONG, run, durable: false, standing: VoterStatus::Voting }
}

#[tokio::test]
async fn no_reply_of_a_server_causes_a_panic() {
    let panics = count_panics();
    let environment = Arc::new(System::current());
    let options = "timeout=20ms&connect_timeout=200ms";
    for (scheme, mode) in [("redis", "standalone"), ("redis+cluster", "cluster")] {
        let url = format!("{scheme}://127.0.0.1:{}?{options}", start_random_server(mode));
        let config = Config::parse(&url).unwrap();
        for _ in 0..ROUNDS {
            let opened =
                in_time("it connects or not", Redis::connect(config.clone(), environment.clone())).await;
            if let Ok(redis) = opened {
                in_time("answers or errors", call_every_verb(&redis)).await;
            }
        }
    }
    let config =
        Config::parse(&format!("redis://127.0.0.1:{}?{options}", start_random_server("standalone"))).unwrap();
    for _ in 0..ROUNDS {
        let node = RedisNode::new(config.clone(), environment.clone());
        in_time("answers or errors", call_every_node_verb(&node)).await;
    }
    assert_eq!(panics.load(Ordering::Relaxed), 0);
}
