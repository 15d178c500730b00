//! A model check of the quorum: every order of events, for small sizes.
//!
//! The simulator draws runs; this tries them all. A moment is a handful of claims, three or five nodes, and what is on
//! the wire between them; from each moment every step is taken that could come next: any message arrives or goes on
//! being late (for ever, which is how it is lost), a node forgets, a caretaker looks or writes, a clock jumps, time
//! passes. [`stateright`](https://docs.rs/stateright) walks over all moments and looks for one in which a promise is
//! broken.
//!
//! What is checked is the code that runs: the node is `leasehold_core::quorum_node::node_model::NodeModel`, a client decides
//! by `tally::decide` and `tally::decide_renewal`, a caretaker by `membership::plan`. Only what sends and waits is modelled here.
//!
//! | module | what it does |
//! |---|---|
//! | `setup` | what is checked, and what may be left out |
//! | `state` | one moment |
//! | `node` | core's rule, made cheap to hold in millions |
//! | `model` | what can happen next, and the promises |
//! | `play` | how a moment becomes the next one |
//! | `suite` | the checks that are made |
//!
//! A check that finds nothing proves something only if it can find: each rule is left out once, and a counter-example
//! has to come up.

mod model;
mod node;
mod play;
mod setup;
mod state;
mod suite;

pub use model::{EXCLUSION, Step, TOKENS_DIFFER, TOKENS_GROW};
pub use setup::{Clocks, LeftOut, Loss, Setup};
pub use state::State;
pub use suite::{Outcome, broken, check, deep, sound};
