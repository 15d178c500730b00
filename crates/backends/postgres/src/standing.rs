//! How far this server can be trusted.

use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_core::{BackendInfo, Error, ErrorKind, Guarantee, Result};
use tokio_postgres::Row;

use crate::{NAME, error};

/// The oldest version that is taken: the oldest that its makers keep.
const VERSION_MIN: i64 = 13_00_00;

/// What to ask it.
pub(crate) const EXAMINE: &str = include_str!("../sql/examine.sql");

/// What the server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    version: i64,
    is_standby: bool,
    fsync: bool,
    whole_pages: bool,
    synchronous_names: String,
    standbys: i64,
    asynchronous: i64,
    isolation: String,
    process: i32,
}

impl Standing {
    /// From the answer to [`EXAMINE`].
    pub(crate) fn of(rows: &[Row]) -> Result<Standing> {
        let row = rows
            .first()
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "the server says nothing of itself"))?;
        Standing::read(row).map_err(|error| error::of_statement(&error))
    }

    fn read(row: &Row) -> Result<Standing, tokio_postgres::Error> {
        let on = |index| row.try_get::<_, String>(index).map(|setting| setting == "on");
        Ok(Standing {
            version: row.try_get(0)?,
            is_standby: row.try_get(1)?,
            fsync: on(2)?,
            whole_pages: on(3)?,
            synchronous_names: row.try_get(4)?,
            standbys: row.try_get(5)?,
            asynchronous: row.try_get(6)?,
            isolation: row.try_get(7)?,
            process: row.try_get(8)?,
        })
    }

    /// # Errors
    /// `Unsupported` if it is too old; `Unavailable` if it is a standby.
    pub(crate) fn check(&self) -> Result<()> {
        if self.version < VERSION_MIN {
            let version = self.version / 10_000;
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("PostgreSQL {version} is too old: 13 or later is needed"),
            ));
        }
        if self.is_standby {
            let message = "this server is a standby: name its primary, or all of them, as in postgres://user@a,b/database";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// The process of the server that said so.
    pub(crate) fn process(&self) -> i32 {
        self.process
    }

    /// Whether transactions see what others committed while they waited. Else every conflict would be an error.
    pub(crate) fn reads_committed(&self) -> bool {
        self.isolation == "read committed"
    }

    fn footing(&self) -> Footing {
        if !self.fsync {
            Footing::NoFsync
        } else if !self.whole_pages {
            Footing::TornPages
        } else if self.synchronous_names.is_empty() {
            if self.standbys > 0 { Footing::Asynchronous } else { Footing::Alone }
        } else if self.asynchronous > 0 {
            Footing::Mixed
        } else {
            Footing::Synchronous
        }
    }
}

/// What a standing comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Footing {
    NoFsync,
    TornPages,
    Asynchronous,
    Alone,
    Mixed,
    Synchronous,
}

impl Footing {
    /// All of them, each at the index that it has as a number.
    const ALL: [Footing; 6] = [
        Footing::NoFsync,
        Footing::TornPages,
        Footing::Asynchronous,
        Footing::Alone,
        Footing::Mixed,
        Footing::Synchronous,
    ];

    fn level(self) -> (Guarantee, &'static str) {
        use Guarantee::{BestEffort, Database};
        match self {
            Footing::NoFsync => {
                (BestEffort, "fsync is off: a crash of the host can lose or damage what was committed")
            }
            Footing::TornPages => {
                (BestEffort, "full_page_writes is off: a crash of the host can damage what was committed")
            }
            Footing::Asynchronous => (
                BestEffort,
                "its standbys are asynchronous: a failover to one can forget a grant and give it again; set \
                 synchronous_standby_names",
            ),
            Footing::Alone => {
                (Database, "one server that waits for its disk; it has no standby at the moment")
            }
            Footing::Mixed => (
                Database,
                "every commit waits for a synchronous standby; a failover to one of the asynchronous ones can grant twice",
            ),
            Footing::Synchronous => (Database, "every commit waits for a synchronous standby"),
        }
    }

    fn info(self, line_max: u32) -> BackendInfo {
        let (level, because) = self.level();
        let mut info = BackendInfo::new(NAME, level);
        info.because = because.into();
        info.tokens_break_when = match level {
            Guarantee::BestEffort => {
                "commits are lost, in a crash or a failover, and the clock that goes on is behind the last token"
            }
            _ => "the server's clock goes back and an older backup is restored",
        }
        .into();
        info.limits.queue = line_max;
        info
    }
}

/// What the backend promises on the server as it was last seen. It may get a standby, be configured anew, or have been
/// followed by another one.
#[derive(Debug)]
pub(crate) struct Promise {
    /// One for each footing: whoever asks gets a reference.
    infos: [BackendInfo; Footing::ALL.len()],
    now: AtomicUsize,
}

impl Promise {
    /// Until the server was seen: the least.
    pub(crate) fn new(line_max: u32) -> Promise {
        Promise { infos: Footing::ALL.map(|footing| footing.info(line_max)), now: AtomicUsize::new(0) }
    }

    pub(crate) fn info(&self) -> &BackendInfo {
        &self.infos[self.now.load(Ordering::Relaxed)]
    }

    /// The server was seen to stand so.
    pub(crate) fn follow(&self, standing: &Standing) {
        let index = standing.footing() as usize;
        let before = &self.infos[self.now.swap(index, Ordering::Relaxed)];
        let info = &self.infos[index];
        if info.guarantee < before.guarantee {
            tracing::warn!(guarantee = %info.guarantee, because = %info.because, "the server promises less than before");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> Standing {
        Standing {
            version: 150_018,
            is_standby: false,
            fsync: true,
            whole_pages: true,
            synchronous_names: String::new(),
            standbys: 0,
            asynchronous: 0,
            isolation: "read committed".to_owned(),
            process: 4711,
        }
    }

    #[test]
    fn the_level_says_what_can_be_lost() {
        use Guarantee::{BestEffort, Database};
        let names = || "*".to_owned();
        let table = [
            (standing(), Database, "no standby"),
            (Standing { fsync: false, ..standing() }, BestEffort, "fsync"),
            (Standing { whole_pages: false, ..standing() }, BestEffort, "full_page_writes"),
            (Standing { standbys: 1, asynchronous: 1, ..standing() }, BestEffort, "asynchronous"),
            // A role without pg_monitor sees that there are standbys, and not of which kind.
            (Standing { standbys: 1, ..standing() }, BestEffort, "asynchronous"),
            (Standing { standbys: 1, synchronous_names: names(), ..standing() }, Database, "waits for"),
            (
                Standing { standbys: 2, asynchronous: 1, synchronous_names: names(), ..standing() },
                Database,
                "asynchronous ones",
            ),
        ];
        // As one server that changes over time: each is believed as it was seen last.
        let promise = Promise::new(100);
        for (standing, level, word) in table {
            promise.follow(&standing);
            let info = promise.info();
            assert_eq!(info.guarantee, level, "{standing:?}");
            assert!(info.because.contains(word), "{standing:?}: {}", info.because);
            assert_eq!(info.limits.queue, 100);
        }
    }

    #[test]
    fn every_footing_is_found_by_its_number() {
        for (index, footing) in Footing::ALL.into_iter().enumerate() {
            assert_eq!(footing as usize, index);
        }
    }

    #[test]
    fn an_old_server_and_a_standby_are_refused() {
        let old = Standing { version: 120_020, ..standing() }.check().unwrap_err();
        assert_eq!(old.kind(), ErrorKind::Unsupported);
        assert!(old.to_string().contains("PostgreSQL 12"), "{old}");
        let standby = Standing { is_standby: true, ..standing() }.check().unwrap_err();
        assert_eq!(standby.kind(), ErrorKind::Unavailable);
        standing().check().unwrap();
    }
}
