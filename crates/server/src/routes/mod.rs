//! The routes: one file each.

pub(crate) mod acquire;
pub(crate) mod audit;
pub(crate) mod deadlocks;
pub(crate) mod events;
pub(crate) mod info;
pub(crate) mod jobs;
pub(crate) mod leaks;
pub(crate) mod login;
pub(crate) mod metrics;
pub(crate) mod open;
pub(crate) mod orders;
pub(crate) mod overview;
mod pages;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod resource;
pub(crate) mod resources;
pub(crate) mod store;
pub(crate) mod terraform;
pub(crate) mod timeline;
pub(crate) mod wait;

use leasehold_api::{Problem, ProblemKind, list::Entry};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, SemaphorePermit};

use crate::{access::Waiters, router::Call, server::Shared};

/// Counts claims that wait. Refuses more than the server takes on, or more than the caller may have.
fn waiters<'a>(call: &Call<'a>, count: usize) -> Result<(SemaphorePermit<'a>, Option<Waiters>), Problem> {
    let shared: &'a Shared = call.shared;
    let of_caller = call.caller.wait(count)?;
    let many = u32::try_from(count).unwrap_or(u32::MAX);
    let permit = shared.waiters.try_acquire_many(many).map_err(|_| too_many_wait(shared))?;
    Ok((permit, of_caller))
}

/// Counts a stream as a claim that waits.
fn stream_permit(call: &Call<'_>) -> Result<(OwnedSemaphorePermit, Option<Waiters>), Problem> {
    let of_caller = call.caller.wait(1)?;
    let waiters = Arc::clone(&call.shared.waiters);
    let permit = waiters.try_acquire_owned().map_err(|_| too_many_wait(call.shared))?;
    Ok((permit, of_caller))
}

fn too_many_wait(shared: &Shared) -> Problem {
    let most = shared.config.limits.waiters;
    let detail = format!("the server has {most} waiting claims and streams, which is all it takes");
    let mut problem = Problem::new(ProblemKind::Throttled, detail);
    problem.retry_after_ms = Some(1000);
    problem
}

/// New claims are refused while the server drains.
fn refuse_while_draining(shared: &Shared) -> Result<(), Problem> {
    if !shared.is_draining() {
        return Ok(());
    }
    Err(Problem::new(ProblemKind::Draining, "this server is shutting down and takes no new claims"))
}

/// Entries of a list: those that were refused here, and those that go to the store.
struct Sorted<Q, R> {
    answers: Vec<Option<Entry<R>>>,
    /// With their positions in the list.
    accepted: Vec<(usize, Q)>,
}

impl<Q, R> Sorted<Q, R> {
    fn new(checked: Vec<Result<Q, Problem>>) -> Sorted<Q, R> {
        let (mut answers, mut accepted) =
            (Vec::with_capacity(checked.len()), Vec::with_capacity(checked.len()));
        for (position, entry) in checked.into_iter().enumerate() {
            match entry {
                Ok(request) => {
                    accepted.push((position, request));
                    answers.push(None);
                }
                Err(problem) => answers.push(Some(problem.into())),
            }
        }
        Sorted { answers, accepted }
    }

    /// The answers in the order of the list. `results` are those of the accepted entries. Refusals are counted.
    fn merge(mut self, call: &Call<'_>, results: Vec<Entry<R>>) -> Vec<Entry<R>> {
        for ((position, _), result) in self.accepted.iter().zip(results) {
            self.answers[*position] = Some(result);
        }
        let missing = || {
            Problem::new(ProblemKind::Internal, "no result")
                .with_effect(leasehold_core::Effect::Unknown)
                .into()
        };
        let answers: Vec<_> = self.answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect();
        for answer in &answers {
            if let Entry::Problem(problem) = answer {
                call.shared.metrics.refused(&problem.kind);
            }
        }
        answers
    }
}
