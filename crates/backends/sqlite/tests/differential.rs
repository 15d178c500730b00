//! Random verbs, the model against the file: one handle, and two handles as two processes would have them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold::testing::ManualTime;
use leasehold_core::{
    Backend, Claim, ClaimRef, Clock, Command, Cursor, Eviction, Farewell, FencingToken, Held, Holder, Model,
    Order, OwnerToken, Page, Query, Resource, Share, Snapshot, Succession, Verdict,
};
use leasehold_sqlite::{Config, Sqlite};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Acquire { claim: ClaimSpec },
    Renew { whom: Vec<(usize, usize, u64, Option<u8>)> },
    Release { resource: usize, owner: usize, bury: Option<u64>, keep_for: Option<u64> },
    Order { resource: usize, meaning: Option<usize>, command: Command },
    Pass { millis: u64 },
    Look { resource: usize },
}

#[derive(Clone, Debug)]
struct ClaimSpec {
    resource: usize,
    owner: usize,
    weight: u32,
    capacity: u32,
    ttl: u64,
    place_ttl: u64,
    queued: bool,
    succeeds: Option<(usize, Option<u64>)>,
    floor: Option<u64>,
    note: Option<u8>,
}

const OWNERS: usize = 7;
const RESOURCES: usize = 2;

fn claim() -> impl Strategy<Value = Step> {
    let capacity = prop_oneof![6 => Just(1u32), 4 => Just(3u32), 1 => Just(u32::MAX)];
    let weight = prop_oneof![3 => Just(1u32), 1 => Just(2u32), 1 => Just(u32::MAX)];
    let succeeds = prop::option::weighted(0.25, (0..OWNERS, prop::option::of(1u64..5000)));
    (
        (0..RESOURCES, 0..OWNERS, weight, capacity, 1u64..4000, 1u64..3000),
        (any::<bool>(), succeeds, prop::option::weighted(0.05, 1u64..1 << 53), prop::option::of(any::<u8>())),
    )
        .prop_map(
            |((resource, owner, weight, capacity, ttl, place_ttl), (queued, succeeds, floor, note))| {
                let weight = weight.min(capacity);
                let claim = ClaimSpec {
                    resource,
                    owner,
                    weight,
                    capacity,
                    ttl,
                    place_ttl,
                    queued,
                    succeeds,
                    floor,
                    note,
                };
                Step::Acquire { claim }
            },
        )
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (0u64..3000).prop_map(|ms| Command::Ask { within: Duration::from_millis(ms) }),
        Just(Command::Evict(Eviction::AtExpiry)),
        Just(Command::Evict(Eviction::Now)),
        (0u64..2000).prop_map(|ms| Command::Pause { lasting: Duration::from_millis(ms) }),
        Just(Command::Resume),
        prop_oneof![Just(0u32), Just(1), Just(2), Just(3), Just(5)]
            .prop_map(|capacity| Command::Resize { capacity }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let renewal = (0..RESOURCES, 0..OWNERS, 1u64..4000, prop::option::weighted(0.2, any::<u8>()));
    prop_oneof![
        8 => claim(),
        3 => prop::collection::vec(renewal, 1..4).prop_map(|whom| Step::Renew { whom }),
        4 => (0..RESOURCES, 0..OWNERS, prop::option::weighted(0.3, 1u64..4000), prop::option::weighted(0.2, 0u64..3000))
            .prop_map(|(resource, owner, bury, keep_for)| Step::Release { resource, owner, bury, keep_for }),
        2 => (0..RESOURCES, prop::option::weighted(0.3, 0..OWNERS), command())
            .prop_map(|(resource, meaning, command)| Step::Order { resource, meaning, command }),
        3 => (1u64..2500).prop_map(|millis| Step::Pass { millis }),
        2 => (0..RESOURCES).prop_map(|resource| Step::Look { resource }),
    ]
}

struct World {
    time: ManualTime,
    handles: Vec<Sqlite>,
    models: Vec<Model>,
    resources: Vec<Resource>,
    /// The newest grant of each owner, for orders that mean one.
    tokens: BTreeMap<(usize, usize), FencingToken>,
}

fn owner(number: usize) -> OwnerToken {
    let mut bytes = [0x5a; 16];
    bytes[0] = u8::try_from(number).unwrap();
    OwnerToken::from_bytes(bytes)
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn shown(verdict: Verdict) -> String {
    match verdict {
        Verdict::Blocked(mut blocked) => {
            blocked.cursor = Cursor::default();
            format!("{blocked:?}")
        }
        other => format!("{other:?}"),
    }
}

fn pictured(mut snapshot: Snapshot) -> String {
    snapshot.cursor = Cursor::default();
    if snapshot.holder_count == 0 && snapshot.line_length == 0 {
        snapshot.capacity = 0; // without meaning
    }
    format!("{snapshot:?}")
}

impl World {
    async fn step(&mut self, number: usize, step: &Step) {
        let backend = &self.handles[number % self.handles.len()];
        let (now, wall) = (self.time.now(), self.time.wall().as_micros());
        match step {
            Step::Acquire { claim: spec } => {
                let claim = self.claim(spec);
                let expected = self.models[spec.resource].acquire(now, &claim, wall);
                let actual = backend.acquire(&claim).await;
                if let Ok(Verdict::Granted(grant)) = &actual {
                    self.tokens.insert((spec.resource, spec.owner), grant.token);
                }
                match (expected, actual) {
                    (Ok(expected), Ok(actual)) => assert_eq!(shown(expected), shown(actual), "{claim:?}"),
                    (Err(expected), Err(actual)) => assert_eq!(expected.kind(), actual.kind()),
                    other => panic!("{other:?}"),
                }
            }
            Step::Renew { whom } => {
                let held: Vec<Held> =
                    whom.iter().map(|&(r, o, ttl, note)| self.held(r, o, ttl, note)).collect();
                let expected = whom.iter().zip(&held).map(|((r, ..), held)| self.models[*r].renew(now, held));
                let expected: Vec<String> = expected.map(|renewal| format!("{renewal:?}")).collect();
                let actual: Vec<String> =
                    backend.renew(&held).await.into_iter().map(|r| format!("{:?}", r.unwrap())).collect();
                assert_eq!(expected, actual);
            }
            Step::Release { resource, owner: who, bury, keep_for } => {
                let mut farewell = Farewell::new(self.reference(*resource, *who));
                (farewell.bury, farewell.keep_for) = (bury.map(millis), keep_for.map(millis));
                let expected = self.models[*resource].release(now, &farewell);
                assert_eq!(expected, backend.release(&farewell).await.unwrap());
            }
            Step::Order { resource, meaning, command } => {
                let mut order = Order::new(self.resources[*resource].clone(), *command, "me", "test");
                order.token = meaning.and_then(|who| self.tokens.get(&(*resource, who)).copied());
                match (self.models[*resource].order(now, &order), backend.order(&order).await) {
                    (Ok(expected), Ok(actual)) => assert_eq!(expected, actual, "{order:?}"),
                    (Err(expected), Err(actual)) => assert_eq!(expected.kind(), actual.kind()),
                    other => panic!("{other:?}"),
                }
            }
            Step::Pass { millis: ms } => self.time.jump(millis(*ms)),
            Step::Look { resource } => {
                let resource = *resource;
                let expected = self.models[resource].snapshot(now, &self.resources[resource]);
                let page = backend.inspect(&Query::One(self.resources[resource].clone())).await.unwrap();
                let Page::Resources { snapshots, .. } = page else { panic!("{page:?}") };
                assert_eq!(pictured(expected), pictured(snapshots.into_iter().next().unwrap()));
            }
        }
    }

    fn reference(&self, resource: usize, who: usize) -> ClaimRef {
        ClaimRef { resource: self.resources[resource].clone(), owner: owner(who) }
    }

    fn held(&self, resource: usize, who: usize, ttl: u64, note: Option<u8>) -> Held {
        let held = Held::new(self.reference(resource, who), millis(ttl));
        match note {
            Some(note) => held.noting(vec![note; 3]),
            None => held,
        }
    }

    fn claim(&self, spec: &ClaimSpec) -> Claim {
        let share = Share::new(spec.weight, spec.capacity).unwrap();
        let holder = Arc::new(Holder::new("host", 7, &format!("owner {}", spec.owner)));
        let resource = self.resources[spec.resource].clone();
        let mut claim = Claim::new(resource, owner(spec.owner), share, millis(spec.ttl), holder);
        claim.place_ttl = millis(spec.place_ttl);
        if spec.queued {
            claim = claim.queued();
        }
        claim.succeeds = spec.succeeds.map(|(from, bury)| match bury {
            Some(keep) => Succession::burying(owner(from), millis(keep)),
            None => Succession::from(owner(from)),
        });
        claim.floor = spec.floor.map(|floor| FencingToken::new(floor).unwrap());
        claim.note = spec.note.map(|note| Arc::from(vec![note]));
        claim
    }
}

fn compare(steps: &[Step], handles: usize) {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let time = ManualTime::new();
        let config = Config::new(directory.path().join("leases.db"));
        let open = |_| Sqlite::open(config.clone(), Arc::new(time.clone())).unwrap();
        let mut world = World {
            handles: (0..handles).map(open).collect(),
            models: vec![Model::new(0); RESOURCES],
            resources: (0..RESOURCES).map(|n| Resource::new("test", &n.to_string()).unwrap()).collect(),
            tokens: BTreeMap::new(),
            time,
        };
        for (number, step) in steps.iter().enumerate() {
            world.step(number, step).await;
        }
    });
}

proptest! {
    #[test]
    fn the_file_does_what_the_model_does(steps in prop::collection::vec(step(), 1..150)) {
        compare(&steps, 1);
    }

    #[test]
    fn two_handles_are_one_backend(steps in prop::collection::vec(step(), 1..150)) {
        compare(&steps, 2);
    }
}
