//! Whether to use a lease at all, and which kind.
//!
//! 1. There are thirteen [questions](QUESTIONS) about the work.
//! 2. [One table](TABLE) says what to do. Its rows go from the strictest to the least strict, and the first row that fits
//!    the answers counts. So if two rows fit, the stricter one wins.
//! 3. The advice may be that a lock is the wrong tool.
//!
//! `leasehold advise`, the page `docs/choosing.md` and [`Purpose`] use these tables.
//!
//! ```
//! use leasehold::advice::{Answers, CASES, Role};
//!
//! let payment = CASES.iter().find(|case| case.name == "payment-capture").expect("it is in the list");
//! let advice = payment.answers.advice();
//! assert_eq!(advice.row.role, Role::PreGuard);
//! assert!(advice.row.transaction);
//!
//! let answers = Answers { conditional: false, fence: false, idempotent: false, ..payment.answers };
//! assert_eq!(answers.advice().row.role, Role::No, "no lock can promise that");
//! ```

mod cases;
mod markdown;
mod questions;
mod table;
mod ttl;

use std::{fmt, time::Duration};

use leasehold_core::Guarantee;

pub use self::{
    cases::{CASES, Case},
    markdown::markdown,
    questions::{Choice, Overlap, Protects, QUESTIONS, Question},
    table::{BACKENDS, Candidate, Role, Row, TABLE, backends},
    ttl::{TtlAdvice, p999, ttl},
};

/// Whether a lease saves work or protects correctness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Purpose {
    /// To save work: if two run at the same time once in a while, nothing is wrong. The default.
    #[default]
    Efficiency,
    /// To be correct: if two ever run at the same time, something is wrong. A backend that is too weak refuses the request,
    /// unless the effect is [fenced](crate::LeaseRequest::fenced).
    Correctness,
}

impl Purpose {
    /// The weakest guarantee that is enough without a fence.
    pub const fn least(self) -> Guarantee {
        match self {
            Purpose::Efficiency => Guarantee::BestEffort,
            Purpose::Correctness => Guarantee::Database,
        }
    }

    /// A stable name, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Purpose::Efficiency => "efficiency",
            Purpose::Correctness => "correctness",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Answers to the [questions](QUESTIONS), in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    /// What side effect the lease protects.
    pub protects: Protects,
    /// What happens if two run at the same time.
    pub overlap: Overlap,
    /// Whether it is acceptable that the work is done twice.
    pub duplicates: bool,
    /// Whether the work can be made idempotent: doing it twice has the same result as doing it once.
    pub idempotent: bool,
    /// Whether the place where the effect happens can refuse an old token.
    pub fence: bool,
    /// Whether the lease must survive the failure of the server that stores it.
    pub survive: bool,
    /// How long the work can take.
    pub lasts: Duration,
    /// Whether the work can be split into smaller durable steps.
    pub split: bool,
    /// Whether the state is in one database, where a conditional update would be enough.
    pub conditional: bool,
    /// Whether there is a consensus service, or one would be worth running.
    pub consensus: bool,
    /// Whether Redis is the only store that can keep leases.
    pub redis_only: bool,
    /// Whether it runs in several regions, between which the network can be cut.
    pub regions: bool,
    /// Whether it must be possible to prove afterwards who changed what.
    pub audit: bool,
}

/// What to do in one situation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Advice {
    /// The row of the [table](TABLE) that fits.
    pub row: &'static Row,
    /// The weakest guarantee of a backend that is enough.
    pub least: Guarantee,
    /// The backends that fit, the one to take first. Empty if a lease is the wrong tool, or if Redis is the only store and
    /// is too weak.
    pub backends: Vec<&'static Candidate>,
    /// Remarks about these answers in particular.
    pub remarks: Vec<String>,
}

impl Advice {
    /// An example, in Rust, SQL or shell, for the first of the backends.
    pub fn snippet(&self) -> String {
        let snippet = self.row.snippet();
        let Some(backend) = self.backends.first() else { return snippet };
        if self.row.is_rust() {
            return format!("let leases = leasehold::connect({:?}).await?;\n{snippet}", backend.url);
        }
        let snippet = snippet.replace(BACKENDS[0].url, backend.url);
        // Redlock keeps nothing after a release, so it cannot remember that a tick was run.
        if backend.scheme == "redlock" {
            snippet.replace("--once-per 50m ", "").replace(", once an hour at the most", "")
        } else {
            snippet
        }
    }
}

/// The longest ttl that is not long: with a longer one, a holder that died blocks all others for too long.
pub const LONG: Duration = Duration::from_secs(600);

impl Answers {
    /// The advice for these answers.
    pub fn advice(&self) -> Advice {
        let row = TABLE.iter().find(|row| (row.fits)(self)).unwrap_or(&TABLE[TABLE.len() - 1]);
        let least = self.least(row);
        let backends = self.backends(row, least);
        let remarks = self.remarks(row, &backends);
        Advice { row, least, backends, remarks }
    }

    /// The weakest guarantee that is enough.
    fn least(&self, row: &Row) -> Guarantee {
        let decides_alone = row.role == Role::Enough && row.purpose == Purpose::Correctness;
        if row.role != Role::No && self.regions && decides_alone {
            // Databases are usually copied to another region after the reply, so a failover there can forget.
            return Guarantee::Consensus;
        }
        let survives =
            if self.survive && row.role != Role::No { Guarantee::Quorum } else { Guarantee::BestEffort };
        row.least.max(survives)
    }

    /// The backends that fit, the one to take first.
    fn backends(&self, row: &Row, least: Guarantee) -> Vec<&'static Candidate> {
        let fits = |one: &&Candidate| {
            let is_redis = one.level <= Guarantee::Quorum;
            let reachable = one.scheme != "sqlite" || !self.regions;
            row.role != Role::No
                && one.level >= least
                && (one.survives || !self.survive)
                && (one.shares || !row.shares)
                && (is_redis || !self.redis_only)
                && reachable
        };
        let mut backends: Vec<&'static Candidate> = BACKENDS.iter().filter(fits).collect();
        let wants_more = self.survive || self.severity() != Overlap::Waste;
        let first = match () {
            () if wants_more && self.consensus => "etcd",
            () if self.redis_only && wants_more => "redlock",
            () if self.survive => "postgres",
            () => "redis",
        };
        // Stable: the others stay in the order of their guarantees.
        backends.sort_by_key(|one| one.scheme != first);
        backends
    }

    /// How bad an overlap is. If the work must not be done twice, an overlap is more than a waste, even if the answer says
    /// that it is one.
    pub(crate) fn severity(&self) -> Overlap {
        if self.overlap == Overlap::Waste && !self.duplicates { Overlap::Damage } else { self.overlap }
    }

    fn remarks(&self, row: &Row, backends: &[&Candidate]) -> Vec<String> {
        let mut remarks = self.contradictions();
        if self.audit && self.severity() == Overlap::Waste {
            remarks.push("a lease is no record of what was done: write an audit record in the transaction of each change");
        }
        if row.role == Role::No {
            return remarks.into_iter().map(str::to_owned).collect();
        }
        if self.lasts > LONG {
            remarks.push(match self.split {
                true => {
                    "the work can take more than ten minutes: acquire a lease for each step, and store its progress in a \
                     job table"
                }
                false => {
                    "the work can take more than ten minutes: split it into durable steps, and store its progress in a \
                     job table"
                }
            });
        }
        if self.survive {
            remarks.push(
                "the lease must survive the failure of its server: one Redis can forget it, and one host can go down \
                 with it",
            );
        }
        remarks.extend(self.remarks_on_stores(row, backends));
        if self.regions {
            remarks.push(
                "while regions cannot reach each other, only the region with the store, or with a majority of it, is \
                 granted leases",
            );
        }
        if !self.fence && row.role != Role::PreGuard && self.severity() != Overlap::Waste {
            remarks.push("nothing checks the fencing token: a holder that was paused for longer than its lease may still act");
        }
        remarks.into_iter().map(str::to_owned).collect()
    }

    fn contradictions(&self) -> Vec<&'static str> {
        let mut remarks = Vec::new();
        if self.severity() != self.overlap {
            remarks.push(
                "you say that an overlap only wastes work, but also that the work must not be done twice: the stricter \
                 answer counts",
            );
        }
        if self.overlap == Overlap::Harm && self.duplicates {
            remarks.push(
                "you say that duplicates are acceptable, but also that an overlap does harm: the stricter answer counts",
            );
        }
        remarks
    }

    fn remarks_on_stores(&self, row: &Row, backends: &[&Candidate]) -> Vec<&'static str> {
        let has = |scheme: &str| backends.iter().any(|one| one.scheme == scheme);
        let mut remarks = Vec::new();
        if self.redis_only {
            remarks.push(match (has("redlock"), has("redis")) {
                (false, false) if row.shares => {
                    "Redis is too weak here: one server may forget, and Redlock has no semaphores. Use a database or a \
                     consensus service, or accept that a failover lets more run"
                }
                (false, false) => {
                    "Redis is too weak here, also as Redlock: use a database or a consensus service, or let the effect \
                     check the token"
                }
                (true, _) if row.role == Role::Enough => {
                    "Redlock on five independent Redis servers is safer than one Redis, and not as safe as a database \
                     or consensus: it trusts the clocks of the servers"
                }
                (true, _) => {
                    "Redlock on five independent Redis servers is safer than one Redis; what decides is the fence or \
                     the transaction"
                }
                (false, true) => "one Redis is enough here; Redlock has no semaphores",
            });
        }
        if row.role == Role::PreGuard && has("redis") {
            remarks.push("a lease on Redis is a good pre-guard: it only keeps others from trying");
        }
        if backends.first().is_some_and(|one| one.level >= Guarantee::Database) {
            remarks.push(match self.consensus {
                true => "you have a consensus service: etcd:// or zookeeper:// has the strongest guarantee",
                false if !has("postgres") => {
                    "a lease that decides alone in several regions needs a consensus service, with members in three of them"
                }
                false if self.survive => {
                    "you need no consensus service: PostgreSQL with a synchronous standby is enough"
                }
                false => "you need no consensus service: one database is enough",
            });
        }
        remarks
    }
}

#[cfg(test)]
mod texts;

#[cfg(test)]
mod tests;
