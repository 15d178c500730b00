//! `GET /v1/timeline`: what happened to one resource.

use leasehold_api::{Problem, timeline::TimelineQuery};

use crate::{answer::Answer, bounds, router::Call, sampler::timeline};

pub(crate) async fn answer(call: &Call<'_>, query: TimelineQuery) -> Result<Answer, Problem> {
    let resource = query.resource().map_err(|error| bounds::refused(&error))?;
    call.caller.check_resource(&resource)?;
    // Samples are taken often from now on, so that the next request has something to show.
    call.shared.sampler.latest().await?;
    let commands = call.shared.audit.of(&resource).await.map_err(|error| Problem::from(&error))?;
    let seen = call.shared.sampler.seen(&resource);
    Ok(Answer::json(200, &timeline::timeline(&resource, seen, &commands.records, commands.is_whole)))
}
