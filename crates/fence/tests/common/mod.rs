//! Helpers that several tests of the fence share.
#![allow(dead_code, reason = "each test uses a part of this")]

use leasehold_core::{Error, ErrorKind, FencingToken, OwnerToken, Pass};

pub(crate) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// A pass for `report/42`. With owner 0 it has no owner.
pub(crate) fn pass(number: u64, owner: u8) -> Pass {
    pass_for("report/42", number, owner)
}

pub(crate) fn pass_for(resource: &str, number: u64, owner: u8) -> Pass {
    let pass = Pass::new(resource.parse().unwrap(), token(number));
    if owner == 0 { pass } else { pass.owned_by(OwnerToken::from_bytes([owner; 16])) }
}

/// The two numbers of a refusal: the presented token, and the highest one.
#[track_caller]
pub(crate) fn stale<T: std::fmt::Debug>(result: Result<T, Error>) -> (u64, u64) {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::StaleToken, "{error:?}");
    let (presented, highest) = error.stale_token().unwrap_or_else(|| panic!("{error:?}"));
    (presented.get(), highest.get())
}
