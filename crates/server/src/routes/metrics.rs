//! `GET /metrics`

use crate::{answer::Answer, metrics::Gauges, server::Shared};

pub(crate) fn answer(shared: &Shared, routes: &[&'static str]) -> Answer {
    let gauges = Gauges {
        waiting: shared.waiters_max().saturating_sub(shared.waiters.available_permits()),
        connections: shared.connections.load(std::sync::atomic::Ordering::Relaxed),
        draining: shared.is_draining(),
        bad_files: shared.bad_files(),
    };
    Answer::text(200, shared.metrics.render(routes, gauges))
        .of_type("text/plain; version=0.0.4; charset=utf-8")
}
