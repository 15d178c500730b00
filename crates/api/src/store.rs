//! `GET /v1/store`: the health of the store, by its calls and by its servers.

use serde::{Deserialize, Serialize};

use crate::acquire::LevelBody;

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct StoreReply {
    /// Which kind of store: `sqlite`, `redis`.
    pub backend: String,
    /// How far its exclusion can be trusted.
    pub level: LevelBody,
    /// Why it is at that level.
    pub because: String,
    /// Its state now.
    pub state: StoreState,
    /// The same for people: `redis, healthy`.
    pub sentence: String,
    /// The calls of this server since its start, by verb.
    pub calls: Vec<CallsBody>,
    /// Its servers. `None` if it has none, or does not tell.
    pub nodes: Option<Vec<NodeBody>>,
    /// How many of its servers it needs: of a Redlock set, which names all of them.
    pub quorum: Option<QuorumBody>,
    /// What is wrong or worth knowing, the worst first.
    pub findings: Vec<FindingBody>,
}

/// The state of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoreState {
    /// It answers.
    Healthy,
    /// It answers, and a part of it does not, or is slow.
    Degraded,
    /// It does not answer.
    Down,
    /// A state of a later version.
    #[serde(other)]
    Unknown,
}

impl StoreState {
    /// A word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            StoreState::Healthy => "healthy",
            StoreState::Degraded => "degraded",
            StoreState::Down => "down",
            StoreState::Unknown => "unknown",
        }
    }
}

/// The calls of one verb.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CallsBody {
    /// The verb of the backend.
    pub verb: String,
    /// How many.
    pub count: u64,
    /// Those that failed, or were not answered in time.
    pub errors: u64,
    /// Half of them took at most about so long. `None` without calls.
    pub p50_ms: Option<f64>,
    /// Of a hundred, 99 took at most about so long. `None` without calls.
    pub p99_ms: Option<f64>,
}

/// A server of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct NodeBody {
    /// Its address without secrets; or `node 1`, for callers who may not see it.
    pub name: String,
    /// Whether it is up: it answers, and in a quorum it has a vote.
    pub counts: bool,
    /// `counts` is false by design, and nothing is wrong with it: a standby, a learner, an observer.
    #[serde(default)]
    pub stands_by: bool,
    /// Why `counts` is false.
    pub why: Option<String>,
    /// How long its answer took.
    pub round_trip_ms: Option<f64>,
    /// How far its clock is ahead of this server's. Negative: behind.
    pub clock_ahead_ms: Option<f64>,
}

/// How many servers a store needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct QuorumBody {
    /// All of its servers.
    pub nodes: u32,
    /// Those with `counts`.
    pub up: u32,
    /// A majority.
    pub needed: u32,
    /// How many more may fail. Negative: there is no majority.
    pub margin: i64,
}

impl QuorumBody {
    /// The quorum of so many servers, of which so many count.
    pub fn of(nodes: u32, up: u32) -> QuorumBody {
        let needed = nodes / 2 + 1;
        QuorumBody { nodes, up, needed, margin: i64::from(up) - i64::from(needed) }
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Severity {
    /// Leases fail, or may be granted twice.
    Critical,
    /// One more fault, and it is critical.
    Warning,
    /// Worth knowing.
    Info,
    /// One of a later version.
    #[serde(other)]
    Unknown,
}

/// What is wrong or worth knowing about the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct FindingBody {
    /// How much it matters.
    pub severity: Severity,
    /// What it is.
    pub title: String,
    /// What was seen, and what it means.
    pub detail: String,
    /// What to do.
    pub fix: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_what_may_fail_before_there_is_no_majority() {
        let margin = |nodes, up| QuorumBody::of(nodes, up).margin;
        assert_eq!([margin(5, 5), margin(5, 4), margin(5, 3), margin(5, 2)], [2, 1, 0, -1]);
        assert_eq!([margin(4, 4), margin(1, 1), margin(1, 0)], [1, 0, -1]);
    }
}
