//! The checking side of fencing tokens.
pub mod observe;
pub mod rule;
pub use leasehold_core::{FencingToken, OwnerHash, Pass, Resource};
