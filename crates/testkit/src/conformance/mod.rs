//! One suite for every backend: a named test for each line of the contract and for the meaning of each verb.
//!
//! A backend's `tests/conformance.rs`, with `harness = false` in its `Cargo.toml`:
//!
//! ```no_run
//! use leasehold::{Memory, testing::ManualTime};
//! use leasehold_testkit::{BackendUnderTest, conformance};
//! use std::sync::Arc;
//!
//! fn main() {
//!     conformance::main("memory", || async {
//!         let time = ManualTime::new();
//!         let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
//!         BackendUnderTest::manual(memory.clone(), time).opened_again(memory)
//!     });
//! }
//! ```
//!
//! If the backend cannot be opened, for example because a server is not installed, the closure must panic:
//! the tests then fail; they are never skipped. A test that does not apply to the backend's
//! [capabilities](leasehold_core::Capabilities) is listed as ignored, with the reason.
//!
//! A prefix such as `b3_` names the line of the contract that the test is about: see
//! [`leasehold_core::Backend`].

mod context;
mod handover;
mod holding;
mod mutex;
mod names;
mod nodes;
mod orders;
mod queue;
mod runner;
mod sharing;
mod silence;
mod together;
mod waiting;

use std::{future::Future, num::NonZeroU32, pin::Pin};

use leasehold_core::{Capabilities, Limits, OperatorAction, Share};

pub use runner::{SuiteReport, main, run};

use context::TestContext;

/// One test of the suite.
struct ConformanceTest {
    name: &'static str,
    requirements: &'static [Requirement],
    run: for<'a> fn(&'a TestContext) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// The tests on one subject. Each runs once for every share of the group.
struct TestGroup {
    name: &'static str,
    shares: &'static [WeightOfCapacity],
    tests: &'static [ConformanceTest],
}

type WeightOfCapacity = (u32, u32);
/// Shares that exclude every other claim: a mutex, a whole semaphore, and a writer must all behave alike.
const EXCLUSIVE: &[WeightOfCapacity] = &[(1, 1), (3, 3), (u32::MAX, u32::MAX)];
const WHOLE: &[WeightOfCapacity] = &[(1, 1)];

const GROUPS: &[TestGroup] = &[
    TestGroup { name: "mutex", shares: EXCLUSIVE, tests: mutex::TESTS },
    TestGroup { name: "holding", shares: EXCLUSIVE, tests: holding::TESTS },
    TestGroup { name: "queue", shares: EXCLUSIVE, tests: queue::TESTS },
    TestGroup { name: "silence", shares: EXCLUSIVE, tests: silence::TESTS },
    TestGroup { name: "waiting", shares: EXCLUSIVE, tests: waiting::TESTS },
    TestGroup { name: "handover", shares: EXCLUSIVE, tests: handover::TESTS },
    TestGroup { name: "sharing", shares: WHOLE, tests: sharing::TESTS },
    TestGroup { name: "together", shares: EXCLUSIVE, tests: together::TESTS },
    TestGroup { name: "orders", shares: WHOLE, tests: orders::TESTS },
    TestGroup { name: "names", shares: WHOLE, tests: names::TESTS },
    TestGroup { name: "nodes", shares: WHOLE, tests: nodes::TESTS },
];

fn resize(capacity: u32) -> OperatorAction {
    OperatorAction::Resize { capacity: NonZeroU32::new(capacity).expect("at least 1") }
}

fn share(weight: u32, capacity: u32) -> Share {
    Share::new(weight, capacity).expect("the suite uses valid shares")
}

/// What the backend or the setup must have for a test to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requirement {
    Queue,
    Shares,
    Handover,
    /// The backend does *not* hand a grant over while others wait. A test states what happens instead.
    NoHandover,
    /// A successor can take a grant over at all, if only while the queue is empty.
    Takeover,
    KeepFor,
    OwnTtl,
    Orders,
    /// Silent waiters are passed over.
    PassesOver,
    /// Silent waiters are removed from the queue by claims that wait.
    RemovesSilent,
    /// The backend takes several claims in one call.
    Gather,
    /// The queue is short enough to be filled within a test.
    ShortQueue,
    /// The setup has a second handle to the same state.
    SecondHandle,
    /// The setup can open the state once more.
    Reopen,
}

/// What a backend under test can do.
struct TargetFeatures {
    capabilities: Capabilities,
    limits: Limits,
    has_second_handle: bool,
    can_reopen: bool,
}

impl Requirement {
    /// Why a test with this requirement does not apply, if it does not.
    fn unmet_reason(self, features: &TargetFeatures) -> Option<&'static str> {
        let has = &features.capabilities;
        let (met, reason) = match self {
            Requirement::Queue => (has.queue, "no queue"),
            Requirement::Shares => (has.shares, "no shares"),
            Requirement::Handover => (has.handover, "no handover while others wait"),
            Requirement::NoHandover => (!has.handover, "grants are handed over while others wait"),
            Requirement::Takeover => (has.handover || has.queue, "no handover of a grant"),
            Requirement::KeepFor => (has.keep_for, "no keep_for"),
            Requirement::OwnTtl => (has.own_ttl, "a session keeps grants alive, not their ttl"),
            Requirement::Orders => (has.orders, "no orders"),
            Requirement::PassesOver => (has.passes_over, "a silent waiter keeps its turn"),
            Requirement::RemovesSilent => (has.removes_silent, "a silent waiter is not removed"),
            Requirement::Gather => (features.limits.gather > 1, "takes one claim at a time"),
            Requirement::ShortQueue => {
                (features.limits.queue <= QUEUE_TO_FILL_MAX, "the queue is too long to be filled")
            }
            Requirement::SecondHandle => (features.has_second_handle, "the setup has one handle"),
            Requirement::Reopen => (features.can_reopen, "the setup cannot open the state again"),
        };
        (!met).then_some(reason)
    }
}

/// The longest queue that a test fills.
const QUEUE_TO_FILL_MAX: u32 = 500;

/// `test!(name)` or `test!(name, Requirement, …)`.
macro_rules! test {
    ($name:ident $(, $requirement:ident)*) => {
        super::ConformanceTest {
            name: stringify!($name),
            requirements: &[$(super::Requirement::$requirement),*],
            run: |ctx| Box::pin($name(ctx)),
        }
    };
}
use test;
