//! `GET /v1/info`: what the server and its store are and promise, and what the caller may do.

use std::{borrow::Cow, time::Duration};

use leasehold_core::{BackendInfo, Capabilities, Limits};
use serde::{Deserialize, Serialize};

use crate::{
    acquire::LevelBody,
    bounds,
    fields::{self, StoreId},
};

/// The answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct InfoReply {
    /// The version of the API.
    pub api: String,
    /// The version of the server.
    pub server: String,
    /// The store.
    pub store: StoreBody,
    /// What the store can do.
    pub capabilities: CapabilitiesBody,
    /// The bounds on requests: those of the server and of its store.
    pub limits: LimitsBody,
    /// What the caller may do.
    pub caller: CallerBody,
    /// Leases stay when this server ends.
    pub survives_server: bool,
    /// The server is shutting down.
    pub draining: bool,
}

/// The store behind a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct StoreBody {
    /// Its id: the header `Leasehold-Store`.
    pub id: String,
    /// Which kind of store: `sqlite`, `redis`.
    pub backend: String,
    /// How far its exclusion can be trusted.
    pub level: LevelBody,
    /// Why it is at that level.
    pub because: String,
    /// What can make a token smaller than an earlier one.
    pub tokens_break_when: String,
}

/// What a store can do: the fields of [`Capabilities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[expect(clippy::struct_excessive_bools, reason = "as in core")]
pub struct CapabilitiesBody {
    /// Blocked claims can queue.
    pub queue: bool,
    /// Shares other than 1 of 1.
    pub shares: bool,
    /// A claim may take over from a holder while others are queued.
    pub handover: bool,
    /// A released resource can stay closed for a while.
    pub keep_for: bool,
    /// Every claim has a ttl of its own.
    pub own_ttl: bool,
    /// Operators' commands, with their audit trail.
    pub orders: bool,
    /// The store itself grants to the head of the queue.
    pub self_granting: bool,
    /// Silent waiters are passed over.
    pub passes_over: bool,
    /// Silent waiters are removed from the queue.
    #[serde(default)]
    pub removes_silent: bool,
}

/// The bounds on requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct LimitsBody {
    /// Claims in one queue.
    pub queue: u32,
    /// Bytes in a note.
    pub note: usize,
    /// Entries in one request.
    pub entries: usize,
    /// Entries in one page.
    pub page: u32,
    /// The longest ttl.
    pub ttl_ms: u64,
    /// The longest wait.
    pub wait_ms: u64,
    /// The longest place ttl.
    pub place_ttl_ms: u64,
    /// The longest tombstone.
    pub bury_ms: u64,
}

/// What the caller may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct CallerBody {
    /// Who the server takes the caller for. `None` if it asks for no token.
    pub subject: Option<String>,
    /// `viewer`, `client`, `operator`.
    pub roles: Vec<String>,
    /// The namespaces that the caller may use; `-` is for resources without one. `None` for all.
    pub namespaces: Option<Vec<String>>,
    /// The kinds that the caller may use. `None` for all.
    pub kinds: Option<Vec<String>>,
}

impl InfoReply {
    /// The answer for a store with this information.
    pub fn new(info: &BackendInfo, store: &StoreId, server: &str, caller: CallerBody) -> InfoReply {
        let Capabilities {
            queue,
            shares,
            handover,
            keep_for,
            own_ttl,
            orders,
            self_granting,
            passes_over,
            removes_silent,
            ..
        } = info.capabilities;
        let capabilities = CapabilitiesBody {
            queue,
            shares,
            handover,
            keep_for,
            own_ttl,
            orders,
            self_granting,
            passes_over,
            removes_silent,
        };
        InfoReply {
            api: crate::VERSION.to_owned(),
            server: server.to_owned(),
            store: StoreBody {
                id: store.to_string(),
                backend: info.name.to_owned(),
                level: LevelBody::of(info.guarantee),
                because: info.because.to_string(),
                tokens_break_when: info.tokens_break_when.to_string(),
            },
            capabilities,
            limits: LimitsBody {
                queue: info.limits.queue,
                note: info.limits.note,
                entries: bounds::ENTRIES,
                page: info.limits.page,
                ttl_ms: fields::ms_down(info.limits.ttl),
                wait_ms: bounds::WAIT_MS,
                place_ttl_ms: bounds::PLACE_TTL_MS,
                bury_ms: bounds::BURY_MS,
            },
            caller,
            survives_server: info.capabilities.own_ttl,
            draining: false,
        }
    }

    /// What a backend over this server says about itself: the level, capabilities and limits of the store behind it. A list of
    /// requests has `entries` of them at most, whatever the store takes: the server splits it.
    pub fn backend_info(&self) -> BackendInfo {
        let mut info =
            BackendInfo::new(fields::backend_name(&self.store.backend), self.store.level.to_core());
        info.because = Cow::Owned(self.store.because.clone());
        info.tokens_break_when = Cow::Owned(self.store.tokens_break_when.clone());
        let has = &self.capabilities;
        info.capabilities.queue = has.queue;
        info.capabilities.shares = has.shares;
        info.capabilities.handover = has.handover;
        info.capabilities.keep_for = has.keep_for;
        info.capabilities.own_ttl = has.own_ttl;
        info.capabilities.orders = has.orders;
        info.capabilities.self_granting = has.self_granting;
        info.capabilities.passes_over = has.passes_over;
        info.capabilities.removes_silent = has.removes_silent;
        info.limits = self.limits.to_core();
        info
    }
}

impl LimitsBody {
    fn to_core(self) -> Limits {
        let mut limits = Limits::default();
        (limits.queue, limits.note, limits.page) = (self.queue, self.note, self.page);
        (limits.batch, limits.gather) = (self.entries, self.entries);
        limits.ttl = Duration::from_millis(self.ttl_ms);
        limits
    }
}
