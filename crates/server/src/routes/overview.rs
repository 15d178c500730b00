//! `GET /v1/overview`: what the sampler has seen, searched, sorted and paged.

use std::sync::Arc;

use leasehold_api::{
    Problem, fields,
    overview::{LIMIT_DEFAULT, LIMIT_MAX, OverviewQuery, OverviewReply},
};

use crate::{
    answer::Answer,
    bounds::invalid,
    router::Call,
    sampler::{Latest, Search, beside_requests},
};

pub(crate) async fn answer(call: &Call<'_>, query: OverviewQuery) -> Result<Answer, Problem> {
    let limit = query.limit.unwrap_or(LIMIT_DEFAULT);
    if limit > LIMIT_MAX {
        return Err(invalid(format!("`limit` is {limit}, and at most {LIMIT_MAX} is allowed")));
    }
    let Latest { sample, since, every, stuck_after, failing, event_id } =
        call.shared.sampler.latest().await?;
    let caller = call.caller.clone();
    let (kept, only, sort) = (Arc::clone(&sample), query.only, query.sort);
    // Going through many resources takes long.
    let found = beside_requests(move || {
        let scope = caller.scope();
        let text = query.q.as_deref().unwrap_or("").to_lowercase();
        let search =
            Search { scope, text: &text, key: query.key.as_deref(), kind: query.kind.as_deref(), only };
        let page = kept.page(search, sort, query.after.as_deref(), limit as usize)?;
        Some((page, kept.totals(scope)))
    });
    let found = found.await.map_err(|error| Problem::from(&error))?;
    let (page, totals) = found.ok_or_else(|| invalid("`after` is not the `next` of a page"))?;
    let scope = call.caller.scope();
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
            led: totals.led,
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
