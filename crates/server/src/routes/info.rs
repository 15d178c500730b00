//! `GET /v1/info`: what the server and its store are, and what the caller may do.

use leasehold_api::{fields, info::InfoReply};

use crate::{answer::Answer, router::Call};

pub(crate) fn answer(call: &Call<'_>) -> Answer {
    let shared = call.shared;
    let config = &shared.config;
    let mut info = InfoReply::new(shared.backend.info(), &config.store, &config.version, call.caller.body());
    info.survives_server = !shared.leases_end_with_server;
    info.draining = shared.is_draining();
    // The library shortens a ttl to this, and renews by it. If it had more in mind than it gets, it would renew without a pause.
    info.limits.ttl_ms = fields::ms_down(call.ttl_max());
    Answer::json(200, &info)
}
