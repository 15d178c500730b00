//! Every key has an expiry after random verbs in random order.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;
#[path = "common/random.rs"]
mod random;

use std::{num::NonZeroU32, time::Duration};

use common::{LONG, claim, open};
use leasehold::{
    Backend, BackendExt as _, Claim, Cursor, Eviction, Handover, OperatorAction, OperatorCommand,
    ReleaseRequest, RenewRequest, Resource, Share,
};
use leasehold_redis::Redis;
use leasehold_testkit::servers::RedisServer;
use random::SeededRandom;

const CASES: u64 = 200;
const STEPS: u64 = 40;
const WITHOUT_EXPIRY: &str = "local found = {} \
    for _, key in ipairs(redis.call('KEYS', '*')) do \
      if redis.call('PTTL', key) == -1 then found[#found + 1] = key end \
    end \
    return table.concat(found, ' ')";

fn random_duration(random: &mut SeededRandom) -> Duration {
    random.choose(&[Duration::from_millis(2), Duration::from_secs(5), LONG])
}

struct RandomCase {
    random: SeededRandom,
    resource: Resource,
    shares: Vec<Share>,
    claims: Vec<Claim>,
    cursor: Cursor,
}

impl RandomCase {
    fn new(number: u64) -> RandomCase {
        let mut random = SeededRandom::new(number);
        let resource: Resource = format!("report/{number}").parse().unwrap();
        let permits = || (1..=3).map(|weight| Share::new(weight, 3).unwrap()).collect();
        let shares = random.choose(&[vec![Share::WHOLE], permits(), vec![Share::READ, Share::WRITE]]);
        let claims = (0..4).map(|_| claim(&resource, LONG)).collect();
        RandomCase { random, resource, shares, claims, cursor: Cursor(0) }
    }

    fn acquire(&mut self) -> Claim {
        let random = &mut self.random;
        let mut claim = random.choose(&self.claims);
        (claim.share, claim.ttl, claim.place_ttl) =
            (random.choose(&self.shares), random_duration(random), random_duration(random));
        if random.below(2) == 0 {
            claim = claim.queued();
        }
        if random.below(4) == 0 {
            claim = claim.with_note(&b"a note"[..]);
        }
        if random.below(4) == 0 {
            claim = claim.taking_over(Handover::from(random.choose(&self.claims).owner));
        }
        claim
    }

    fn order(&mut self) -> OperatorCommand {
        let lasting = random_duration(&mut self.random);
        let capacity = NonZeroU32::new(self.random.choose(&[1, 2, 5])).unwrap();
        let command = self.random.choose(&[
            OperatorAction::Ask { within: lasting },
            OperatorAction::Evict(Eviction::AtExpiry),
            OperatorAction::Evict(Eviction::Now),
            OperatorAction::Pause { lasting },
            OperatorAction::Resume,
            OperatorAction::Resize { capacity },
        ]);
        OperatorCommand::new(self.resource.clone(), command, "ops", "test")
    }

    /// Calls a random verb and returns a description of it.
    async fn step(&mut self, redis: &Redis) -> String {
        let which = self.random.below(12);
        let reference = self.random.choose(&self.claims).reference();
        match which {
            0..=4 => {
                let claim = self.acquire();
                let answer = redis.acquire_one(&claim).await;
                if let Ok(leasehold::Verdict::Blocked(blocked)) = &answer {
                    self.cursor = blocked.cursor;
                }
                format!("{claim:?}: {answer:?}")
            }
            5 | 6 => {
                let mut held = RenewRequest::new(reference, random_duration(&mut self.random));
                if self.random.below(2) == 0 {
                    held = held.with_note(&b"another"[..]);
                }
                format!("{held:?}: {:?}", redis.renew(&[held.clone()]).await)
            }
            7 | 8 => {
                let mut request = ReleaseRequest::new(reference);
                if self.random.below(3) == 0 {
                    request = request.with_tombstone(random_duration(&mut self.random));
                }
                if self.random.below(4) == 0 {
                    request = request.keeping(random_duration(&mut self.random));
                }
                format!("{request:?}: {:?}", redis.release_one(&request).await)
            }
            9 | 10 => {
                let order = self.order();
                format!("{order:?}: {:?}", redis.order(&order).await)
            }
            _ => {
                // Meanwhile something with a short ttl may expire.
                let waited = redis.wait(&reference, &self.cursor, Duration::from_millis(3)).await;
                format!("waits: {waited:?}")
            }
        }
    }
}

#[tokio::test]
async fn every_key_always_has_an_expiry() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    for number in 0..CASES {
        let (mut case, mut history) = (RandomCase::new(number), Vec::new());
        for _ in 0..STEPS {
            history.push(case.step(&redis).await);
            let without_expiry = server.command(&["EVAL", WITHOUT_EXPIRY, "0"]);
            assert_eq!(without_expiry, "", "keys without expiry after:\n{}", history.join("\n"));
        }
        server.command(&["FLUSHALL"]);
    }
}
