//! The variables that describe held leases: for the command of `leasehold run`, and for a shell that calls `leasehold acquire`.

use std::ffi::OsString;

use leasehold::Pass;

use super::{ShareMode, nested};
use crate::{
    commands::Context,
    held_leases::{HeldLeases, ResourceLease},
};

/// The variables for the command: what it holds and in which store, without the password of the store.
///
/// The variables for one resource are those of the first, in the order of the keys.
pub(crate) fn variables(
    context: &Context,
    share: ShareMode,
    leases: &HeldLeases,
) -> Vec<(&'static str, OsString)> {
    let store = context.store.shown();
    let outer_runs = leases.iter().map(|ResourceLease { resource, lease }| nested::HeldLine {
        share,
        owner: lease.owner(),
        token: lease.token(),
        ttl: lease.ttl(),
        resource: resource.clone(),
        store: store.to_owned(),
    });
    // A key has no spaces. It may have a `=`, so its token stands after the last one.
    let keys: Vec<_> = leases.iter().map(|held| held.resource.key()).collect();
    let tokens: Vec<_> =
        leases.iter().map(|held| format!("{}={}", held.resource.key(), token(held, share))).collect();
    let passes: Vec<_> = leases.iter().map(|held| pass(held, share).unwrap_or_default()).collect();
    let mut environment: Vec<(&'static str, OsString)> = vec![
        ("LEASEHOLD_RESOURCES", keys.join(" ").into()),
        ("LEASEHOLD_TOKENS", tokens.join(" ").into()),
        ("LEASEHOLD_PASSES", passes.join("\n").into()),
        (nested::HELD, nested::HeldLine::appended(outer_runs).into()),
    ];
    if let Some(first) = leases.iter().next() {
        environment.push(("LEASEHOLD_RESOURCE", first.resource.to_string().into()));
        environment.push(("LEASEHOLD_TOKEN", token(first, share).into()));
        environment.push(("LEASEHOLD_PASS", pass(first, share).unwrap_or_default().into()));
        environment.push(("LEASEHOLD_OWNER", first.lease.owner().reveal().into()));
    }
    environment.extend(context.variables());
    environment
}

/// The fencing token. Only exclusive holders come one after another: the tokens of holders that share a resource fence nothing.
pub(crate) fn token(held: &ResourceLease, share: ShareMode) -> String {
    if share.is_exclusive() { held.lease.token() } else { String::new() }
}

/// The pass that the command shows to a fence (ADR 0027). Only an exclusive holder has one.
pub(crate) fn pass(held: &ResourceLease, share: ShareMode) -> Option<String> {
    let token = held.lease.token().parse().ok().filter(|_| share.is_exclusive())?;
    Some(Pass::new(held.resource.clone(), token).owned_by(held.lease.owner()).to_string())
}
