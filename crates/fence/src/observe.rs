//! Refusals, counted and logged. No id and no owner is in either.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use leasehold_core::{Error, Pass};

use crate::rule::Refusal;

/// As many kinds as the metrics of a client have; the rest count as `other`.
const KINDS_MAX: usize = 256;

static KINDS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Counts and logs that `downstream` refused, and makes the error of it. For fences of your own, too.
pub fn refused(pass: &Pass, refusal: Refusal, downstream: &'static str) -> Error {
    metrics::counter!(
        "leasehold_fencing_rejected_total",
        "kind" => bounded(pass.resource.kind()),
        "downstream" => downstream
    )
    .increment(1);
    let (highest, ceiling) = match refusal {
        Refusal::Stale { highest, .. } => (Some(highest.get()), None),
        Refusal::Former { ceiling, .. } => (None, Some(ceiling.get())),
    };
    tracing::warn!(
        target: "leasehold",
        event = "stale_token_refused",
        kind = pass.resource.kind(),
        id_hash = pass.resource.id_hash(),
        token = pass.token.get(),
        highest,
        ceiling,
        downstream,
    );
    Error::from(refusal).on(&pass.resource)
}

fn bounded(kind: &str) -> String {
    let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
    if !kinds.contains(kind) {
        if kinds.len() >= KINDS_MAX {
            return "other".to_owned();
        }
        kinds.insert(kind.to_owned());
    }
    kind.to_owned()
}
