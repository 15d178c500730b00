//! `GET /v1/jobs`: jobs on a schedule, and who leads elections.

use serde::{Deserialize, Serialize};

use crate::{fields::TokenText, inspect::HolderBody};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JobsReply {
    /// The jobs that `leasehold cron` and the library have run.
    pub schedules: Vec<ScheduleBody>,
    /// Exclusive holders with a note: so elections publish their leader.
    pub elections: Vec<ElectionBody>,
}

/// A job on a schedule. It is listed for a hundred ticks after its last one: at least three days.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ScheduleBody {
    /// The job, with its namespace if it has one.
    pub name: String,
    /// The cron expression and its time zone.
    pub schedule: String,
    /// When it runs next: RFC 3339. `None` if never.
    pub next_at: Option<String>,
    /// For which time it ran last.
    pub last_tick_at: Option<String>,
    /// How that ended.
    pub last_outcome: TickOutcomeBody,
    /// The last tick that succeeded, if its record is still there.
    pub last_success_at: Option<String>,
    /// The error of the last tick, if it failed with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How much the next tick is overdue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_by_ms: Option<u64>,
    /// How many of the recorded ticks failed, or ended in an unknown way.
    pub failures: u32,
    /// How many of them did not run, because the run before them had not ended; and one that is overdue.
    pub missed: u32,
    /// How many ticks are recorded.
    pub recorded: u32,
    /// The process that runs it now.
    pub holder: Option<HolderBody>,
    /// The host that ran the last tick.
    pub host: String,
    /// The resource that it holds while it runs.
    pub resource: String,
    /// The state of the job for people.
    pub sentence: String,
}

/// How a tick ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TickOutcomeBody {
    /// The work ended without an error.
    Ok,
    /// It failed, lost its lease, or its process vanished.
    Failed,
    /// It did not run, or is overdue.
    Missed,
    /// It runs.
    Running,
    /// There was none yet.
    Never,
    /// An outcome of a later version.
    #[serde(other)]
    Unknown,
}

/// A resource whose holder leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ElectionBody {
    /// The resource, as people write it.
    pub resource: String,
    /// Its key.
    pub key: String,
    /// The process that leads.
    pub leader: HolderBody,
    /// The token of its grant.
    pub token: TokenText,
    /// The beginning of what it has published. `None` if that is not text.
    pub note: Option<String>,
    /// How long it has led.
    pub held_for_ms: u64,
    /// The time until its lease expires, unless it is renewed.
    pub remaining_ms: u64,
    /// `renewing`, `late`, `silent` or `gone`, where that can be told.
    pub state: Option<String>,
    /// How many wait to lead.
    pub candidates: u32,
}
