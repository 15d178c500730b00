//! Helpers that several tests of the fence share.
#![allow(dead_code, reason = "each test uses a part of this")]

use leasehold_core::Pass;

#[allow(unused_imports, reason = "each test uses a part of this")]
pub(crate) use leasehold_testkit::passes::{pass_for, stale, token};

/// A pass for `report/42`. With owner 0 it has no owner.
pub(crate) fn pass(number: u64, owner: u8) -> Pass {
    pass_for("report/42", number, owner)
}
