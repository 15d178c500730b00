//! What several tests of the fence need.
#![allow(dead_code, reason = "each test uses its part")]

use leasehold_core::{Error, ErrorKind, FencingToken, OwnerToken, Pass};

pub(crate) fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// A pass for `report/42`; owner 0 is nobody.
pub(crate) fn pass(number: u64, owner: u8) -> Pass {
    pass_for("report/42", number, owner)
}

pub(crate) fn pass_for(resource: &str, number: u64, owner: u8) -> Pass {
    let pass = Pass::new(resource.parse().unwrap(), token(number));
    if owner == 0 { pass } else { pass.owned_by(OwnerToken::from_bytes([owner; 16])) }
}

/// The numbers of a refusal.
#[track_caller]
pub(crate) fn stale<T: std::fmt::Debug>(answer: Result<T, Error>) -> (u64, u64) {
    let error = answer.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::StaleToken, "{error:?}");
    let (presented, highest) = error.stale_token().unwrap_or_else(|| panic!("{error:?}"));
    (presented.get(), highest.get())
}
