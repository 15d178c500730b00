//! `GET /v1/store`: the health of the store. It answers also while the store does not.

use leasehold_api::{
    acquire::LevelBody,
    store::{NodeBody, StoreReply},
};
use leasehold_core::{NodeStatus, WallTime};

use crate::{
    access::Role,
    answer::Answer,
    findings::{self, Facts},
    router::Call,
};

pub(crate) async fn answer(call: &Call<'_>) -> Answer {
    let shared = call.shared;
    let (latest, ()) = tokio::join!(shared.sampler.latest(), shared.health.refresh());
    let (failing, every, truncated) = match latest {
        Ok(latest) => (latest.failing, latest.every, latest.sample.is_truncated()),
        Err(problem) => (Some(problem.kind), shared.config.sampling.every, false),
    };
    let info = shared.backend.info();
    let health = shared.health.now(info, failing.as_deref());
    // The addresses of the store are for those who run it.
    let shows_names = call.caller.check_role(Role::Operator).is_ok() && call.caller.scope().is_everything();
    let nodes: Option<Vec<NodeBody>> = health.nodes.as_deref().map(|nodes| {
        let numbered = nodes.iter().zip(1..);
        numbered.map(|(node, number)| body(node, (!shows_names).then_some(number))).collect()
    });
    let calls = shared.metrics.store_calls();
    let findings = findings::findings(&Facts {
        info,
        health: &health,
        nodes: nodes.as_deref().unwrap_or_default(),
        calls: &calls,
        failing: failing.as_deref(),
        every: (every, shared.config.sampling.every),
        truncated,
        leases_end_with_server: shared.leases_end_with_server,
        bad_files: shared
            .bad_files()
            .into_iter()
            .filter(|(_, is_bad)| *is_bad)
            .map(|(file, _)| file)
            .collect(),
    });
    let reply = StoreReply {
        backend: info.name.to_owned(),
        level: LevelBody::of(info.guarantee),
        because: info.because.to_string(),
        state: health.state,
        sentence: health.sentence,
        calls,
        nodes,
        quorum: health.quorum,
        findings,
    };
    Answer::json(200, &reply)
}

/// A server, with a number instead of what tells its address.
fn body(node: &NodeStatus, number: Option<u32>) -> NodeBody {
    let hidden = |_: &String| "it does not answer, or has no vote".to_owned();
    NodeBody {
        name: number.map_or_else(|| node.name.clone(), |number| format!("node {number}")),
        counts: node.counts,
        stands_by: node.stands_by,
        why: if number.is_some() { node.why.as_ref().map(hidden) } else { node.why.clone() },
        round_trip_ms: node.round_trip.map(|trip| trip.as_secs_f64() * 1000.0),
        clock_ahead_ms: node.clocks.map(|(theirs, ours)| ahead_ms(theirs, ours)),
    }
}

fn ahead_ms(theirs: WallTime, ours: WallTime) -> f64 {
    let (theirs, ours) = (theirs.as_micros(), ours.as_micros());
    let apart = std::time::Duration::from_micros(theirs.abs_diff(ours)).as_secs_f64() * 1000.0;
    if theirs < ours { -apart } else { apart }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_ahead_or_behind() {
        let at = WallTime::from_micros;
        assert_eq!(ahead_ms(at(2_000_000), at(1_500_000)), 500.0);
        assert_eq!(ahead_ms(at(1_000_000), at(1_500_000)), -500.0);
    }

    #[test]
    fn addresses_are_hidden_from_those_who_do_not_run_the_store() {
        let mut node = NodeStatus::named("10.0.0.1:6379");
        node.why = Some("10.0.0.1:6379 refused the connection".to_owned());
        let hidden = serde_json::to_string(&body(&node, Some(2))).unwrap();
        assert!(hidden.contains("node 2") && !hidden.contains("10.0.0.1"), "{hidden}");
        assert_eq!(body(&node, None).name, "10.0.0.1:6379");
    }
}
