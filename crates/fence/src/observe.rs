//! Counts and logs refusals. Neither the metrics nor the logs contain the id of a resource or an owner.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use leasehold_core::{Error, Pass};

use crate::rule::Refusal;

/// The most kinds of resources in the metric, the same as in the metrics of a client. Further kinds count as `other`.
const KINDS_MAX: usize = 256;

static KINDS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Counts and logs a refusal by `downstream`, and returns the error for it. Fences of your own can use it, too.
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

/// The kind as a metric label, of which there is a limited number.
fn bounded(kind: &str) -> String {
    let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
    // Kinds may come from users: without a limit, the metric would grow with every new one.
    if !kinds.contains(kind) {
        if kinds.len() >= KINDS_MAX {
            return "other".to_owned();
        }
        kinds.insert(kind.to_owned());
    }
    kind.to_owned()
}
