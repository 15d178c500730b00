//! `POST /v1/renew`

use leasehold_api::{
    Problem,
    list::{Leases, Many, OneOrMany},
    renew::{self, RenewBody},
};
use leasehold_core::RenewRequest;

use crate::{answer::Answer, body, bounds, router::Call, routes};

pub(crate) async fn answer(call: &Call<'_>, bytes: &[u8]) -> Result<Answer, Problem> {
    match RenewBody::read(bytes).map_err(|error| body::unreadable(&error))? {
        OneOrMany::One(body) => {
            let request = check(call, &body)?;
            let renewal = call.shared.store.renew(request.clone()).await;
            Ok(renew::reply(&request, renewal).into())
        }
        OneOrMany::Many(many) => self::many(call, many).await,
    }
}

async fn many(call: &Call<'_>, many: Many<RenewBody>) -> Result<Answer, Problem> {
    bounds::entries(many.entries.len())?;
    let limit = bounds::timeout(many.timeout_ms, call.shared.store.timeout())?;
    let sorted = routes::Sorted::new(many.entries.iter().map(|body| check(call, body)).collect());
    let requests: Vec<RenewRequest> = sorted.accepted.iter().map(|(_, request)| request.clone()).collect();
    let renewals = call.shared.store.renew_many(requests, limit).await;
    let replies = sorted.accepted.iter().zip(renewals);
    let replies = replies.map(|((_, request), renewal)| renew::reply(request, renewal)).collect();
    Ok(Answer::json(200, &Leases { leases: sorted.merge(call, replies) }))
}

fn check(call: &Call<'_>, body: &RenewBody) -> Result<RenewRequest, Problem> {
    let mut request = body.request().map_err(|error| bounds::refused(&error))?;
    let checked =
        call.caller.check_resource(&request.resource).and_then(|()| bounds::renewal(call, &mut request));
    checked.map_err(|problem| problem.about(&request.resource, request.owner))?;
    Ok(request)
}
