//! Every key has an end, whatever is done in whatever order.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/chance.rs"]
mod chance;
mod common;

use std::{num::NonZeroU32, time::Duration};

use chance::Chance;
use common::{LONG, claim, open};
use leasehold::{
    Backend, Claim, Cursor, Eviction, Handover, OperatorAction, OperatorCommand, ReleaseRequest,
    RenewRequest, Resource, Share,
};
use leasehold_redis::Redis;
use leasehold_testkit::servers::RedisServer;

const CASES: u64 = 200;
const STEPS: u64 = 40;
const ENDLESS: &str = "local found = {} \
    for _, key in ipairs(redis.call('KEYS', '*')) do \
      if redis.call('PTTL', key) == -1 then found[#found + 1] = key end \
    end \
    return table.concat(found, ' ')";

fn span(chance: &mut Chance) -> Duration {
    chance.of(&[Duration::from_millis(2), Duration::from_secs(5), LONG])
}

struct Case {
    chance: Chance,
    resource: Resource,
    shares: Vec<Share>,
    claims: Vec<Claim>,
    cursor: Cursor,
}

impl Case {
    fn new(number: u64) -> Case {
        let mut chance = Chance::of_number(number);
        let resource: Resource = format!("report/{number}").parse().unwrap();
        let permits = || (1..=3).map(|weight| Share::new(weight, 3).unwrap()).collect();
        let shares = chance.of(&[vec![Share::WHOLE], permits(), vec![Share::READ, Share::WRITE]]);
        let claims = (0..4).map(|_| claim(&resource, LONG)).collect();
        Case { chance, resource, shares, claims, cursor: Cursor(0) }
    }

    fn acquire(&mut self) -> Claim {
        let chance = &mut self.chance;
        let mut claim = chance.of(&self.claims);
        (claim.share, claim.ttl, claim.place_ttl) = (chance.of(&self.shares), span(chance), span(chance));
        if chance.below(2) == 0 {
            claim = claim.queued();
        }
        if chance.below(4) == 0 {
            claim = claim.with_note(&b"a note"[..]);
        }
        if chance.below(4) == 0 {
            claim = claim.taking_over(Handover::from(chance.of(&self.claims).owner));
        }
        claim
    }

    fn order(&mut self) -> OperatorCommand {
        let lasting = span(&mut self.chance);
        let capacity = NonZeroU32::new(self.chance.of(&[1, 2, 5])).unwrap();
        let command = self.chance.of(&[
            OperatorAction::Ask { within: lasting },
            OperatorAction::Evict(Eviction::AtExpiry),
            OperatorAction::Evict(Eviction::Now),
            OperatorAction::Pause { lasting },
            OperatorAction::Resume,
            OperatorAction::Resize { capacity },
        ]);
        OperatorCommand::new(self.resource.clone(), command, "ops", "test")
    }

    /// Does something; what that was.
    async fn step(&mut self, redis: &Redis) -> String {
        let which = self.chance.below(12);
        let reference = self.chance.of(&self.claims).reference();
        match which {
            0..=4 => {
                let claim = self.acquire();
                let answer = redis.acquire(&claim).await;
                if let Ok(leasehold::Verdict::Blocked(blocked)) = &answer {
                    self.cursor = blocked.cursor;
                }
                format!("{claim:?}: {answer:?}")
            }
            5 | 6 => {
                let mut held = RenewRequest::new(reference, span(&mut self.chance));
                if self.chance.below(2) == 0 {
                    held = held.with_note(&b"another"[..]);
                }
                format!("{held:?}: {:?}", redis.renew(&[held.clone()]).await)
            }
            7 | 8 => {
                let mut request = ReleaseRequest::new(reference);
                if self.chance.below(3) == 0 {
                    request = request.with_tombstone(span(&mut self.chance));
                }
                if self.chance.below(4) == 0 {
                    request = request.keeping(span(&mut self.chance));
                }
                format!("{request:?}: {:?}", redis.release(&request).await)
            }
            9 | 10 => {
                let order = self.order();
                format!("{order:?}: {:?}", redis.order(&order).await)
            }
            _ => {
                // A moment in which something short may end.
                let waited = redis.wait(&reference, &self.cursor, Duration::from_millis(3)).await;
                format!("waits: {waited:?}")
            }
        }
    }
}

#[tokio::test]
async fn no_key_is_ever_without_an_end() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    for number in 0..CASES {
        let (mut case, mut story) = (Case::new(number), Vec::new());
        for _ in 0..STEPS {
            story.push(case.step(&redis).await);
            let endless = server.command(&["EVAL", ENDLESS, "0"]);
            assert_eq!(endless, "", "has no end after:\n{}", story.join("\n"));
        }
        server.command(&["FLUSHALL"]);
    }
}
