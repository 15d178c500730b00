//! One suite for every backend: a named test for each line of the contract and for what each verb means.
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
//!         Stage::manual(memory.clone(), time).opened_again(memory)
//!     });
//! }
//! ```
//!
//! A stage that cannot be set up (a server is missing) must panic: the tests fail then, they are never skipped.
//! A test that does not apply to the backend's [capabilities](leasehold_core::Capabilities) is listed as ignored,
//! with the reason.

mod desk;
mod holding;
mod line;
mod mutex;
mod names;
mod orders;
mod runner;
mod sharing;
mod succession;
mod waiting;

use std::{future::Future, num::NonZeroU32, pin::Pin};

use leasehold_core::{Capabilities, Limits, OperatorAction, Share};

pub use runner::{Report, main, run};

use desk::Desk;

/// One test of the suite.
struct Test {
    name: &'static str,
    needs: &'static [Need],
    run: for<'a> fn(&'a Desk) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// Tests on one subject, each run once for every share.
struct Group {
    name: &'static str,
    shares: &'static [Spelling],
    tests: &'static [Test],
}

/// A weight of a capacity.
type Spelling = (u32, u32);
/// All that excludes everyone else: a semaphore taken whole and a writer are mutexes too.
const EXCLUSIVE: &[Spelling] = &[(1, 1), (3, 3), (u32::MAX, u32::MAX)];
const WHOLE: &[Spelling] = &[(1, 1)];

const GROUPS: &[Group] = &[
    Group { name: "mutex", shares: EXCLUSIVE, tests: mutex::TESTS },
    Group { name: "holding", shares: EXCLUSIVE, tests: holding::TESTS },
    Group { name: "line", shares: EXCLUSIVE, tests: line::TESTS },
    Group { name: "waiting", shares: EXCLUSIVE, tests: waiting::TESTS },
    Group { name: "succession", shares: EXCLUSIVE, tests: succession::TESTS },
    Group { name: "sharing", shares: WHOLE, tests: sharing::TESTS },
    Group { name: "orders", shares: WHOLE, tests: orders::TESTS },
    Group { name: "names", shares: WHOLE, tests: names::TESTS },
];

/// A share known to be one.
fn resize(capacity: u32) -> OperatorAction {
    OperatorAction::Resize { capacity: NonZeroU32::new(capacity).expect("at least 1") }
}

fn share(weight: u32, capacity: u32) -> Share {
    Share::new(weight, capacity).expect("the suite asks for real shares")
}

/// What a backend must be able to do for a test to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Line,
    Shares,
    HandOver,
    /// That a seat is *not* handed over while others wait: what happens then is stated too.
    NoHandOver,
    /// That a seat can be succeeded at all, if only while nobody waits.
    Heirs,
    KeepFor,
    OwnTtl,
    Orders,
    /// That a line can be filled within a test.
    ShortLine,
    /// Of the stage: a second handle.
    Twice,
    /// Of the stage: that the state can be opened once more.
    Reopening,
}

/// What a stage has to offer.
struct Offer {
    has: Capabilities,
    limits: Limits,
    twice: bool,
    reopening: bool,
}

impl Need {
    /// The reason not to run, if there is one.
    fn lacking(self, offer: &Offer) -> Option<&'static str> {
        let has = &offer.has;
        let (met, reason) = match self {
            Need::Line => (has.queue, "no line"),
            Need::Shares => (has.shares, "no shares"),
            Need::HandOver => (has.handover, "no hand-over while others wait"),
            Need::NoHandOver => (!has.handover, "seats are handed over"),
            Need::Heirs => (has.handover || has.queue, "no succession of a holder"),
            Need::KeepFor => (has.keep_for, "no keep_for"),
            Need::OwnTtl => (has.own_ttl, "a session keeps what it holds"),
            Need::Orders => (has.orders, "no orders"),
            Need::ShortLine => (offer.limits.queue <= 500, "the line is too long to be filled"),
            Need::Twice => (offer.twice, "the target has one handle"),
            Need::Reopening => (offer.reopening, "the target is not opened again"),
        };
        (!met).then_some(reason)
    }
}

/// `test!(name)` or `test!(name, Need, …)`.
macro_rules! test {
    ($name:ident $(, $need:ident)*) => {
        super::Test {
            name: stringify!($name),
            needs: &[$(super::Need::$need),*],
            run: |desk| Box::pin($name(desk)),
        }
    };
}
use test;
