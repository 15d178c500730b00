//! `POST /v1/release`

use leasehold_api::{
    Problem,
    list::{Leases, Many, OneOrMany},
    release::{self, ReleaseBody},
};
use leasehold_core::ReleaseRequest;

use crate::{answer::Answer, body, bounds, router::Call, routes};

pub(crate) async fn answer(call: &Call<'_>, bytes: &[u8]) -> Result<Answer, Problem> {
    match ReleaseBody::read(bytes).map_err(|error| body::unreadable(&error))? {
        OneOrMany::One(body) => {
            let request = check(call, &body)?;
            let released = call.shared.store.release(request.clone()).await;
            Ok(release::reply(&request, released).into())
        }
        OneOrMany::Many(many) => self::many(call, many).await,
    }
}

async fn many(call: &Call<'_>, many: Many<ReleaseBody>) -> Result<Answer, Problem> {
    bounds::entries(many.entries.len())?;
    let limit = bounds::timeout(many.timeout_ms, call.shared.store.timeout())?;
    let sorted = routes::Sorted::new(many.entries.iter().map(|body| check(call, body)).collect());
    let requests: Vec<ReleaseRequest> = sorted.accepted.iter().map(|(_, request)| request.clone()).collect();
    let released = call.shared.store.release_many(requests, limit).await;
    let replies = sorted.accepted.iter().zip(released);
    let replies = replies.map(|((_, request), released)| release::reply(request, released)).collect();
    Ok(Answer::json(200, &Leases { leases: sorted.merge(call, replies) }))
}

fn check(call: &Call<'_>, body: &ReleaseBody) -> Result<ReleaseRequest, Problem> {
    let mut request = body.request().map_err(|error| bounds::refused(&error))?;
    let checked =
        call.caller.check_resource(&request.resource).and_then(|()| bounds::release(call, &mut request));
    checked.map_err(|problem| problem.about(&request.resource, request.owner))?;
    Ok(request)
}
