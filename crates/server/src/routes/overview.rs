//! `GET /v1/overview`: what the sampler has seen, searched, sorted and paged.

use leasehold_api::{
    Problem, fields,
    overview::{LIMIT_DEFAULT, LIMIT_MAX, OverviewQuery, OverviewReply},
};

use crate::{
    answer::Answer,
    bounds::invalid,
    router::Call,
    sampler::{Latest, Search},
};

pub(crate) async fn answer(call: &Call<'_>, query: OverviewQuery) -> Result<Answer, Problem> {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if limit > LIMIT_MAX {
        return Err(invalid(format!("`limit` is {limit}, and at most {LIMIT_MAX} is allowed")));
    }
    let Latest { sample, since, every, stuck_after, failing, event_id } =
        call.shared.sampler.latest().await?;
    let scope = call.caller.scope();
    let text = query.q.as_deref().unwrap_or("").to_lowercase();
    let (key, kind) = (query.key.as_deref(), query.kind.as_deref());
    let search = Search { scope, text: &text, key, kind, only: query.only };
    let page = sample
        .page(search, query.sort, query.after.as_deref(), limit as usize)
        .ok_or_else(|| invalid("`after` is not the `next` of a page"))?;
    let totals = sample.totals(scope);
    let (last_hour, rates) = call.shared.sampler.last_hour(scope);
    let health = call.shared.health.now(call.shared.backend.info(), failing.as_deref());
    Ok(Answer::json(
        200,
        &OverviewReply {
            sampled_ms_ago: fields::ms_up(sample.age()),
            every_ms: fields::ms_up(every),
            since: humantime::format_rfc3339_millis(since.to_system_time()).to_string(),
            event_id,
            failing,
            truncated: sample.is_truncated(),
            held: totals.held,
            waiting: totals.waiting,
            stuck: totals.stuck,
            stuck_after_ms: fields::ms_up(stuck_after),
            paused: totals.paused,
            unreadable: totals.unreadable,
            kept: totals.kept,
            unusual: totals.unusual,
            gone: totals.gone,
            foreign: totals.foreign,
            deadlocks: totals.deadlocks,
            last_hour,
            rates,
            kinds: totals.kinds,
            store: health.summary(),
            oldest_wait: totals.oldest_wait,
            oldest_hold: totals.oldest_hold,
            matched: page.matched,
            items: page.items,
            next: page.next,
        },
    ))
}
