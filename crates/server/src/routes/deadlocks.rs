//! `GET /v1/deadlocks`: processes that wait for each other, in the newest sample.

use leasehold_api::{Problem, deadlocks::DeadlocksReply};

use crate::{answer::Answer, router::Call};

pub(crate) async fn answer(call: &Call<'_>) -> Result<Answer, Problem> {
    let sample = call.shared.sampler.latest().await?.sample;
    let scope = call.caller.scope();
    let deadlocks = sample.deadlocks().iter().filter_map(|deadlock| deadlock.body(scope)).cloned();
    Ok(Answer::json(200, &DeadlocksReply { deadlocks: deadlocks.collect() }))
}
