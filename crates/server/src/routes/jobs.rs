//! `GET /v1/jobs`: jobs on a schedule, and who leads elections.

use leasehold_api::{
    Problem,
    fields::{self, TokenText},
    jobs::{ElectionBody, JobsReply},
};
use leasehold_core::Resource;

use crate::{
    access::Scope,
    answer::Answer,
    jobs::{Job, RECORD_KINDS},
    router::Call,
    sampler::{Sample, beside_requests},
};

/// The most elections of an answer.
const ELECTIONS_MAX: usize = 500;

pub(crate) async fn answer(call: &Call<'_>) -> Result<Answer, Problem> {
    let sample = call.shared.sampler.latest().await?.sample;
    let jobs = call.shared.jobs.all(&sample).await.map_err(|error| Problem::from(&error))?;
    let caller = call.caller.clone();
    let reply = beside_requests(move || {
        let scope = caller.scope();
        let schedules = jobs.iter().filter(|job| may_see(scope, job)).map(|job| job.body(&sample)).collect();
        JobsReply { schedules, elections: elections(&sample, scope) }
    });
    Ok(Answer::json(200, &reply.await.map_err(|error| Problem::from(&error))?))
}

/// Whether the caller may see the job itself and the records that tell of it.
fn may_see(scope: Scope<'_>, job: &Job) -> bool {
    let record = |kind: &str| {
        let record = Resource::new(kind, "x").ok()?;
        match job.resource.namespace() {
            Some(namespace) => record.in_namespace(namespace).ok(),
            None => Some(record),
        }
    };
    let mut records = RECORD_KINDS.into_iter().map(record);
    scope.has(&job.resource) && records.all(|record| record.is_some_and(|record| scope.has(&record)))
}

fn elections(sample: &Sample, scope: Scope<'_>) -> Vec<ElectionBody> {
    let age = sample.age();
    let rows = sample.rows().iter().filter(|row| scope.has(&row.snapshot.resource));
    let leading = rows.filter_map(|row| {
        let (note, by) = (row.note.as_ref()?, row.snapshot.holders.first()?);
        Some(ElectionBody {
            resource: row.snapshot.resource.to_string(),
            key: row.snapshot.resource.key().to_owned(),
            leader: (&*by.holder).into(),
            token: TokenText(by.token),
            note: note.text.clone(),
            held_for_ms: fields::ms_down(by.held_for + age),
            remaining_ms: fields::ms_down(by.remaining.saturating_sub(age)),
            state: row.state_of(0),
            candidates: row.snapshot.queue_length,
        })
    });
    leading.take(ELECTIONS_MAX).collect()
}
