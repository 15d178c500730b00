//! `GET /v1/resource`: one resource, whole. With a cursor and `wait_ms` it waits for a change, as observers do.

use leasehold_api::{
    Problem, fields,
    inspect::{ResourceQuery, SnapshotBody},
};
use leasehold_core::{ClaimRef, Effect, OwnerToken, Query, Snapshot};

use crate::{access, answer::Answer, bounds, listener::drained, router::Call, routes};

pub(crate) async fn answer(call: &Call<'_>, query: ResourceQuery) -> Result<Answer, Problem> {
    let resource = query.resource().map_err(|error| bounds::refused(&error))?;
    call.caller.check_resource(&resource)?;
    let at_most = bounds::wait(query.wait_ms)?;
    let store = &call.shared.config.store;
    // A cursor that this store did not give is answered at once.
    let cursor = query.cursor.as_deref().and_then(|text| fields::read_cursor(text, store));
    if let Some(cursor) = cursor.filter(|_| !at_most.is_zero()) {
        let _waiter = routes::waiters(call, 1)?;
        // An owner that has no claim: it is woken by any change.
        let observer =
            ClaimRef { resource: resource.clone(), owner: OwnerToken::fresh(&*call.shared.environment) };
        tokio::select! {
            // A hint. Whether it failed does not matter: the resource is read now.
            _ = call.shared.store.wait(&observer, cursor, at_most) => {}
            () = drained(call.shared.draining.subscribe()) => {}
            () = call.caller.revoked() => return Err(access::revoked().with_effect(Effect::None)),
        }
    }
    let page = call.shared.store.inspect(&Query::One(resource.clone())).await;
    let page = page.map_err(|error| Problem::from(&error).on(&resource))?;
    let snapshot = page.into_snapshots().pop().unwrap_or_else(|| Snapshot::empty(resource));
    Ok(Answer::json(200, &SnapshotBody::of(&snapshot, store)))
}
