//! The state of the server: its version, its role in replication, its settings, and the guarantee that follows from them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leasehold_core::{BackendInfo, Error, ErrorKind, Guarantee, Result};
use tokio_postgres::Row;

use crate::{NAME, batch::BATCH_MAX, error, schema::Functions};

/// The oldest supported version, as `server_version_num` has it.
const VERSION_MIN: i64 = 13_00_00;
/// What `server_version_num` has to be divided by for the major version.
const MAJOR_VERSION: i64 = 10_000;

/// How many calls of `acquire`, and as many of `release`, may be under way before the engine gathers: together one for each of
/// the eight connections. More calls share a commit's write to the disk; fewer have larger batches, which cost less CPU.
const CALLS_IN_FLIGHT: usize = 4;

/// The statement that reads the state of the server.
pub(crate) const SERVER_STATE: &str = include_str!("../sql/server_state.sql");

/// What the server reports about itself, in the columns of `server_state.sql`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerState {
    version: i64,
    is_standby: bool,
    fsync: bool,
    full_page_writes: bool,
    synchronous_standby_names: String,
    standbys: i64,
    asynchronous_standbys: i64,
    isolation: String,
    process: i32,
}

impl ServerState {
    /// Reads the reply to [`SERVER_STATE`].
    pub(crate) fn from_rows(rows: &[Row]) -> Result<ServerState> {
        let row =
            rows.first().ok_or_else(|| error::unexpected_reply("the state of the server has no row"))?;
        ServerState::from_row(row).map_err(error::unexpected_reply)
    }

    fn from_row(row: &Row) -> Result<ServerState, tokio_postgres::Error> {
        let is_on = |index| row.try_get::<_, String>(index).map(|setting| setting == "on");
        Ok(ServerState {
            version: row.try_get(0)?,
            is_standby: row.try_get(1)?,
            fsync: is_on(2)?,
            full_page_writes: is_on(3)?,
            synchronous_standby_names: row.try_get(4)?,
            standbys: row.try_get(5)?,
            asynchronous_standbys: row.try_get(6)?,
            isolation: row.try_get(7)?,
            process: row.try_get(8)?,
        })
    }

    /// Checks that the backend can use this server.
    ///
    /// # Errors
    /// `Unsupported` if it is too old; `Unavailable` if it is a standby.
    pub(crate) fn check(&self, hosts: &str) -> Result<()> {
        if self.version < VERSION_MIN {
            let (version, oldest) = (self.version / MAJOR_VERSION, VERSION_MIN / MAJOR_VERSION);
            let message = format!(
                "{hosts} runs PostgreSQL {version}, which is not supported: upgrade it to {oldest} or later"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if self.is_standby {
            let message = format!(
                "{hosts} is a standby and takes no writes: name its primary in the URL, or all servers, as in \
                 postgres://user@a,b/database"
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// The server process that executed the statement.
    pub(crate) fn process(&self) -> i32 {
        self.process
    }

    /// Whether a transaction sees what others committed while it waited for a lock. At a stricter level every conflict would
    /// be a serialization error.
    pub(crate) fn reads_committed(&self) -> bool {
        self.isolation == "read committed"
    }

    fn durability(&self) -> Durability {
        // The worst case first: a setting that can lose commits outweighs any standby.
        if !self.fsync {
            Durability::FsyncOff
        } else if !self.full_page_writes {
            Durability::FullPageWritesOff
        } else if self.synchronous_standby_names.is_empty() {
            if self.standbys > 0 { Durability::AsynchronousStandbys } else { Durability::OneServer }
        } else if self.asynchronous_standbys > 0 {
            Durability::MixedStandbys
        } else {
            Durability::SynchronousStandbys
        }
    }
}

/// What can lose a commit on a server in some [`ServerState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    FsyncOff,
    FullPageWritesOff,
    AsynchronousStandbys,
    OneServer,
    MixedStandbys,
    SynchronousStandbys,
}

impl Durability {
    /// All values, each at the index `self as usize`.
    const ALL: [Durability; 6] = [
        Durability::FsyncOff,
        Durability::FullPageWritesOff,
        Durability::AsynchronousStandbys,
        Durability::OneServer,
        Durability::MixedStandbys,
        Durability::SynchronousStandbys,
    ];

    // The README shows some of these texts: a test compares them.
    fn guarantee(self) -> (Guarantee, &'static str) {
        use Guarantee::{BestEffort, Database};
        match self {
            Durability::FsyncOff => {
                (BestEffort, "fsync is off: a crash of the host can lose or damage what was committed")
            }
            Durability::FullPageWritesOff => {
                (BestEffort, "full_page_writes is off: a crash of the host can damage what was committed")
            }
            Durability::AsynchronousStandbys => (
                BestEffort,
                "its standbys are asynchronous: a failover to one can forget a grant and give it again; set \
                 synchronous_standby_names",
            ),
            Durability::OneServer => {
                (Database, "one server that waits for its disk; it has no standby at the moment")
            }
            Durability::MixedStandbys => (
                Database,
                "every commit waits for a synchronous standby; a failover to one of the asynchronous ones can grant twice",
            ),
            Durability::SynchronousStandbys => (Database, "every commit waits for a synchronous standby"),
        }
    }

    fn info(self, queue_max: u32, functions: Functions) -> BackendInfo {
        let (guarantee, because) = self.guarantee();
        let mut info = BackendInfo::new(NAME, guarantee);
        info.capabilities.passes_over = functions == Functions::Current;
        info.because = because.into();
        info.tokens_break_when = match guarantee {
            Guarantee::BestEffort => {
                "commits are lost, in a crash or a failover, and the clock that goes on is behind the last token"
            }
            _ => "the server's clock goes back and an older backup is restored",
        }
        .into();
        info.limits.queue = queue_max;
        info.limits.gather = BATCH_MAX;
        info.limits.calls_in_flight = CALLS_IN_FLIGHT;
        info
    }
}

/// What the backend promises on the server as it was last seen. That changes when the server gets a standby, is configured
/// anew, or when another server becomes the primary.
#[derive(Debug)]
pub(crate) struct GuaranteeTracker {
    /// One for each [`Durability`], made in advance: `Backend::info` returns a reference. First those with the functions of this
    /// release, then those with the functions of the previous one.
    infos: [[BackendInfo; Durability::ALL.len()]; 2],
    durability: AtomicUsize,
    has_previous_functions: AtomicBool,
}

impl GuaranteeTracker {
    /// Promises the least until the state of a server is known.
    pub(crate) fn new(queue_max: u32) -> GuaranteeTracker {
        let infos = [Functions::Current, Functions::Previous]
            .map(|functions| Durability::ALL.map(|durability| durability.info(queue_max, functions)));
        GuaranteeTracker {
            infos,
            durability: AtomicUsize::new(0),
            has_previous_functions: AtomicBool::new(false),
        }
    }

    pub(crate) fn info(&self) -> &BackendInfo {
        &self.infos()[self.durability.load(Ordering::Relaxed)]
    }

    fn infos(&self) -> &[BackendInfo; Durability::ALL.len()] {
        &self.infos[usize::from(self.has_previous_functions.load(Ordering::Relaxed))]
    }

    /// Promises what these functions can do.
    pub(crate) fn set_functions(&self, functions: Functions) {
        self.has_previous_functions.store(functions == Functions::Previous, Ordering::Relaxed);
    }

    /// Promises what this state of the server allows.
    pub(crate) fn update(&self, state: &ServerState) {
        // An index instead of a lock: `info` returns a reference that must stay valid.
        let index = state.durability() as usize;
        let before = &self.infos()[self.durability.swap(index, Ordering::Relaxed)];
        let info = &self.infos()[index];
        if info.guarantee < before.guarantee {
            tracing::warn!(
                guarantee = %info.guarantee,
                because = %info.because,
                "the guarantee of the PostgreSQL server is weaker than before"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_server() -> ServerState {
        ServerState {
            version: 150_018,
            is_standby: false,
            fsync: true,
            full_page_writes: true,
            synchronous_standby_names: String::new(),
            standbys: 0,
            asynchronous_standbys: 0,
            isolation: "read committed".to_owned(),
            process: 4711,
        }
    }

    #[test]
    fn the_guarantee_follows_from_the_state_that_was_seen_last() {
        use Guarantee::{BestEffort, Database};
        let names = || "*".to_owned();
        let table = [
            (one_server(), Database, "no standby"),
            (ServerState { fsync: false, ..one_server() }, BestEffort, "fsync"),
            (ServerState { full_page_writes: false, ..one_server() }, BestEffort, "full_page_writes"),
            (
                ServerState { standbys: 1, asynchronous_standbys: 1, ..one_server() },
                BestEffort,
                "asynchronous",
            ),
            // A role without pg_monitor sees that there are standbys, but not of which kind.
            (ServerState { standbys: 1, ..one_server() }, BestEffort, "asynchronous"),
            (
                ServerState { standbys: 1, synchronous_standby_names: names(), ..one_server() },
                Database,
                "waits for",
            ),
            (
                ServerState {
                    standbys: 2,
                    asynchronous_standbys: 1,
                    synchronous_standby_names: names(),
                    ..one_server()
                },
                Database,
                "asynchronous ones",
            ),
        ];
        let tracker = GuaranteeTracker::new(100);
        for (state, guarantee, word) in table {
            tracker.update(&state);
            let info = tracker.info();
            assert_eq!(info.guarantee, guarantee, "{state:?}");
            assert!(info.because.contains(word), "{state:?}: {}", info.because);
            assert_eq!(info.limits.queue, 100);
        }
    }

    #[test]
    fn every_durability_is_at_its_own_index() {
        for (index, durability) in Durability::ALL.into_iter().enumerate() {
            assert_eq!(durability as usize, index);
        }
    }

    #[test]
    fn an_old_server_and_a_standby_are_refused() {
        let old = ServerState { version: 120_020, ..one_server() }.check("db:5432").unwrap_err();
        assert_eq!(old.kind(), ErrorKind::Unsupported);
        assert!(old.to_string().contains("PostgreSQL 12"), "{old}");
        let standby = ServerState { is_standby: true, ..one_server() }.check("db:5432").unwrap_err();
        assert_eq!(standby.kind(), ErrorKind::Unavailable);
        one_server().check("db:5432").unwrap();
    }
}
