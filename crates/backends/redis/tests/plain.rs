//! The short scripts for the plain case do what the whole scripts do: the same reply, and the same keys. ADR 0038.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;
#[path = "common/random.rs"]
mod random;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{LONG, claim, granted, open, owner};
use leasehold::{
    BackendExt as _, Claim, Error, FencingToken, Handover, OwnerToken, ReleaseRequest, Resource, Verdict,
};
use leasehold_redis::Redis;
use leasehold_testkit::servers::RedisServer;
use random::SeededRandom;

const CASES: usize = 400;

fn key(resource: &Resource, part: &str) -> String {
    format!("lock:v1:{{{}}}:{part}", resource.key())
}

/// Makes this client use the whole scripts on a resource: a moment ago it was not plain there.
async fn use_whole_scripts(server: &RedisServer, redis: &Redis, resource: &Resource) {
    server.command(&["SET", &key(resource, "state"), "x", "PX", "1000"]);
    redis.acquire_one(&claim(resource, LONG)).await.unwrap_err();
    server.command(&["DEL", &key(resource, "state")]);
}

fn clock_micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// What a resource contains before the call.
#[derive(Debug)]
struct Setup {
    owner: usize,
    fence: usize,
    state: usize,
    has_tombstone: bool,
    floor: usize,
    queues: bool,
    takes_over: usize,
    since: u64,
}

const OWNER_KINDS: usize = 9;
const FENCE_KINDS: usize = 7;

impl Setup {
    fn random(random: &mut SeededRandom) -> Setup {
        Setup {
            owner: random.below(OWNER_KINDS),
            // Often without a surprise, so that each surprise is also seen alone.
            fence: random.below(2 * FENCE_KINDS).saturating_sub(FENCE_KINDS),
            state: random.below(8).saturating_sub(5),
            has_tombstone: random.below(6) == 0,
            floor: random.below(10).saturating_sub(6),
            queues: random.below(2) == 0,
            takes_over: random.below(4),
            since: clock_micros() - 3_000_000,
        }
    }

    fn prepare(&self, server: &RedisServer, resource: &Resource, ours: OwnerToken, other: OwnerToken) {
        let (ours, other, since) = (ours.reveal(), other.reveal(), self.since);
        let owner_key = key(resource, "owner");
        let hold = |value: &str| drop(server.command(&["SET", &owner_key, value, "PX", "50000"]));
        match self.owner {
            0..=2 => {}
            3 => hold(&format!("{other}|{since}|{since}|3||1@host")),
            4 => hold(&format!("{ours}|{since}|{since}|0||1@host")),
            5 => hold(&format!("{other}|{since}|{since}|0|e|1@host")),
            6 => hold(&format!("{ours}|{since}|{since}|0|k|1@host")),
            7 => hold("worker-4:0b5c"),
            _ => drop(server.command(&["HSET", &owner_key, "uuid:7", "1"])),
        }
        let fence_key = key(resource, "fence");
        let fence = |value: String| drop(server.command(&["SET", &fence_key, &value, "PX", "7000000"]));
        match self.fence {
            0 => {}
            1 => fence(since.to_string()),
            2 => fence((since + 7_200_000_000).to_string()),
            3 => fence("9007199254740991".to_owned()),
            4 => fence(" 12".to_owned()),
            5 => fence("1e5".to_owned()),
            _ => drop(server.command(&["RPUSH", &fence_key, "a"])),
        }
        let state = |pause: &str| {
            let until = clock_micros() / 1000 + 60_000;
            let text = format!(
                "capacity=1 held=0 version={since} arrivals=0 ends=- until={until} pause={pause} extra=- watched=- silent=0 look=-"
            );
            server.command(&["SET", &key(resource, "state"), &text, "PX", "60000"]);
        };
        match self.state {
            0 => {}
            1 => state("-"),
            _ => state(&(clock_micros() / 1000 + 30_000).to_string()),
        }
        if self.has_tombstone {
            server.command(&["SET", &key(resource, &format!("grave:{ours}")), "b", "PX", "60000"]);
        }
    }

    fn claim(&self, resource: &Resource, ours: OwnerToken, other: OwnerToken) -> Claim {
        let mut claim = claim(resource, LONG);
        claim.owner = ours;
        let floor = match self.floor {
            0 => None,
            1 => Some(self.since + 3_600_000_000),
            2 => Some(self.since + 2 * 86_400_000_000),
            _ => Some(self.since + 500 * 86_400_000_000),
        };
        claim.floor = floor.map(|floor| FencingToken::new(floor).unwrap());
        claim.takes_over_from = match self.takes_over {
            2 => Some(Handover::from(other)),
            3 => Some(Handover::with_tombstone(other, Duration::from_secs(40))),
            _ => None,
        };
        if self.queues { claim.queued() } else { claim }
    }
}

/// A time in steps of 20 s. The times of this test are far from the edge of a step.
fn rough(millis: i64) -> i64 {
    (millis + 8_000).div_euclid(20_000) * 20
}

fn roughly(time: Duration) -> i64 {
    rough(i64::try_from(time.as_millis()).unwrap())
}

/// Texts and numbers, with times replaced: a time of the server's clock by how far it is from now.
fn without_time(text: &str) -> String {
    let now = clock_micros();
    let mut out = String::new();
    let mut digits = String::new();
    // One more character, which ends the last number.
    for c in text.chars().chain([' ']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        match digits.parse::<u64>() {
            // Microseconds, or milliseconds.
            Ok(number) if digits.len() == 16 => {
                out.push_str(&format!("<us{:+}>", rough((number as i64 - now as i64) / 1000)));
            }
            Ok(number) if digits.len() == 13 => {
                out.push_str(&format!("<ms{:+}>", rough(number as i64 - now as i64 / 1000)));
            }
            _ => out.push_str(&digits),
        }
        digits.clear();
        out.push(c);
    }
    out.pop();
    out
}

/// All keys of a resource, with their types, values and expiries.
fn contents(server: &RedisServer, resource: &Resource) -> Vec<String> {
    let keys = server.command(&["KEYS", &format!("lock:v1:{{{}}}:*", resource.key())]);
    let mut found: Vec<String> = keys
        .split(' ')
        .filter(|key| !key.is_empty())
        .map(|key| {
            let value = match server.command(&["TYPE", key]).as_str() {
                "string" => server.command(&["GET", key]),
                "zset" => server.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
                "hash" => server.command(&["HGETALL", key]),
                other => other.to_owned(),
            };
            let left: i64 = server.command(&["PTTL", key]).parse().unwrap();
            // The two clients have different ids.
            let is_client = |part: &&str| part.len() == 16 && part.chars().all(|c| c.is_ascii_hexdigit());
            let is_number = |part: &&str| part.chars().all(|c| c.is_ascii_digit());
            let parts = value.split('|').map(|part| match part {
                client if is_client(&client) && !is_number(&client) => "client",
                part => part,
            });
            let value = parts.collect::<Vec<_>>().join("|");
            let part = key.rsplit_once("}:").unwrap().1;
            format!("{part}={} for {} s", without_time(&value), rough(left))
        })
        .collect();
    found.sort();
    found
}

/// A verdict without what depends on the time and on the name of the resource.
fn verdict_text(resource: &Resource, outcome: &Result<Verdict, Error>) -> String {
    let text = match outcome {
        Ok(Verdict::Granted(grant)) => {
            format!("granted {} for {} s", grant.token, roughly(grant.remaining))
        }
        Ok(Verdict::Blocked(blocked)) => {
            let holders: Vec<String> = blocked
                .holders
                .iter()
                .map(|by| {
                    let (held, left) = (roughly(by.held_for), roughly(by.remaining));
                    format!(
                        "{} {} {} {held} {left} {} {}",
                        by.holder, by.token, by.weight, by.handovers, by.kept
                    )
                })
                .collect();
            let changes = blocked.changes_in.map(roughly);
            let (queued, ahead, paused) = (blocked.queued, blocked.ahead, blocked.paused);
            // The same holder and the same fence give the same cursor, unless there is a version in `state`.
            format!("blocked {queued} {ahead} {paused} {changes:?} {holders:?}")
        }
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("{:?} {:?} {error}", error.kind(), error.effect()),
    };
    without_time(&text.replace(resource.key(), "RESOURCE"))
}

#[tokio::test]
async fn the_plain_scripts_and_the_whole_scripts_agree_on_random_states() {
    let server = RedisServer::start();
    let (plain, whole) = (open(&server.url()).await, open(&server.url()).await);
    let mut random = SeededRandom::new(15);
    let mut seen = std::collections::BTreeMap::new();
    for number in 0..CASES {
        let setup = Setup::random(&mut random);
        let (ours, other) = (owner(), owner());
        let resources =
            ["plain", "whole"].map(|kind| format!("{kind}/{number}").parse::<Resource>().unwrap());
        use_whole_scripts(&server, &whole, &resources[1]).await;
        let mut outcomes = Vec::new();
        for (redis, resource) in [&plain, &whole].into_iter().zip(&resources) {
            setup.prepare(&server, resource, ours, other);
            let claim = setup.claim(resource, ours, other);
            let verdict = redis.acquire_one(&claim).await;
            *seen
                .entry(verdict_text(resource, &verdict).split(' ').next().unwrap().to_owned())
                .or_insert(0) += 1;
            let after_acquire = contents(&server, resource);
            // A client that has seen nothing of this resource releases it, or the primed one.
            let fresh = open(&server.url()).await;
            let releasing = if std::ptr::eq(redis, &plain) { &fresh } else { redis };
            let request = ReleaseRequest::new(claim.reference());
            let released = releasing.release_one(&request).await.map_err(|error| error.kind());
            outcomes.push((
                verdict_text(resource, &verdict),
                after_acquire,
                format!("{released:?}"),
                contents(&server, resource),
            ));
        }
        assert_eq!(outcomes[0], outcomes[1], "{setup:#?}");
    }
    // Each kind of verdict came often enough to mean something.
    for kind in ["granted", "blocked", "Cancelled", "Corrupt", "Invalid"] {
        assert!(seen.get(kind).is_some_and(|count| *count >= 8), "{kind}: {seen:?}");
    }
}

/// A claim that leaves and one that watches: the cursor of the short script is the one that `wait` compares with.
#[tokio::test]
async fn a_blocked_reply_of_the_plain_script_has_the_same_cursor() {
    let server = RedisServer::start();
    let (plain, whole) = (open(&server.url()).await, open(&server.url()).await);
    let resource: Resource = "report/42".parse().unwrap();
    use_whole_scripts(&server, &whole, &resource).await;
    granted(&plain, &claim(&resource, LONG)).await;
    let mut cursors = Vec::new();
    for redis in [&plain, &whole] {
        let Ok(Verdict::Blocked(blocked)) = redis.acquire_one(&claim(&resource, LONG)).await else {
            panic!("it is held")
        };
        cursors.push(blocked.cursor);
    }
    assert_eq!(cursors[0], cursors[1]);
}

/// What the short scripts are for. ADR 0038 has these figures.
#[tokio::test]
async fn a_plain_pair_takes_eight_commands() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let commands = || -> u64 {
        let stats = server.command(&["INFO", "commandstats"]);
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        let is_counted = |line: &&str| line.starts_with("cmdstat_") && !line.starts_with("cmdstat_info");
        stats.lines().filter(is_counted).filter_map(calls).sum()
    };
    let pair = async || {
        let ours = claim(&"report/42".parse().unwrap(), LONG);
        granted(&redis, &ours).await;
        redis.release_one(&ReleaseRequest::new(ours.reference())).await.unwrap();
    };
    pair().await;
    let before = commands();
    pair().await;
    assert_eq!(commands() - before, 8);
}
