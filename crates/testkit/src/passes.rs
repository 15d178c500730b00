//! What the tests of the fence share: tokens, passes, and what a refusal says.

use leasehold_core::{Error, ErrorKind, FencingToken, OwnerToken, Pass};

/// # Panics
/// If the number is not that of a token.
#[track_caller]
pub fn token(number: u64) -> FencingToken {
    FencingToken::new(number).expect("the number of a token")
}

/// A pass for this resource. With owner 0 it has no owner.
///
/// # Panics
/// If the resource or the number is not valid.
#[track_caller]
pub fn pass_for(resource: &str, number: u64, owner: u8) -> Pass {
    let pass = Pass::new(resource.parse().expect("the name of a resource"), token(number));
    if owner == 0 { pass } else { pass.owned_by(OwnerToken::from_bytes([owner; 16])) }
}

/// The two numbers of a refusal: the presented token, and the highest one.
///
/// # Panics
/// If the result is no refusal of a stale token.
#[track_caller]
pub fn stale<T: std::fmt::Debug>(result: Result<T, Error>) -> (u64, u64) {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind(), ErrorKind::StaleToken, "{error:?}");
    let (presented, highest) = error.stale_token().unwrap_or_else(|| panic!("{error:?}"));
    (presented.get(), highest.get())
}
