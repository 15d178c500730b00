//! Whether to use a lease at all, and which kind.
//!
//! 1. There are ten [questions](QUESTIONS) about the work.
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

/// Answers to the ten [questions](QUESTIONS), in their order.
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
}

/// What to do in one situation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Advice {
    /// The row of the [table](TABLE) that fits.
    pub row: &'static Row,
    /// The weakest guarantee of a backend that is enough.
    pub least: Guarantee,
    /// Remarks about these answers in particular.
    pub remarks: Vec<String>,
}

/// The longest ttl that is not long: with a longer one, a holder that died blocks all others for too long.
pub const LONG: Duration = Duration::from_secs(600);

impl Answers {
    /// The advice for these answers.
    pub fn advice(&self) -> Advice {
        let row = TABLE.iter().find(|row| (row.fits)(self)).unwrap_or(&TABLE[TABLE.len() - 1]);
        let survives = if self.survive { Guarantee::Database } else { Guarantee::BestEffort };
        let least = row.least.max(if row.role == Role::No { Guarantee::BestEffort } else { survives });
        Advice { row, least, remarks: self.remarks(row, least) }
    }

    /// How bad an overlap is. If the work must not be done twice, an overlap is more than a waste, even if the answer says
    /// that it is one.
    pub(crate) fn severity(&self) -> Overlap {
        if self.overlap == Overlap::Waste && !self.duplicates { Overlap::Damage } else { self.overlap }
    }

    fn remarks(&self, row: &Row, least: Guarantee) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.severity() != self.overlap {
            remarks.push(
                "you say that an overlap only wastes work, but also that the work must not be done twice: the stricter \
                 answer counts"
                    .to_owned(),
            );
        }
        if self.overlap == Overlap::Harm && self.duplicates {
            remarks.push(
                "you say that duplicates are acceptable, but also that an overlap does harm: the stricter answer counts"
                    .to_owned(),
            );
        }
        if row.role == Role::No {
            return remarks;
        }
        if self.lasts > LONG {
            let how =
                if self.split { "acquire a lease for each step" } else { "split it into durable steps" };
            remarks.push(format!(
                "the work can take more than ten minutes: {how}, and store its progress in a job table"
            ));
        }
        if least > row.least {
            remarks.push(
                "the lease must survive the failure of its server: a best-effort backend may forget it"
                    .to_owned(),
            );
        }
        if least >= Guarantee::Database {
            remarks.push(match self.consensus {
                true => "you have a consensus service: etcd:// or zookeeper:// has the strongest guarantee"
                    .to_owned(),
                false => {
                    "you need no consensus service: one database is enough, sqlite: or postgres://".to_owned()
                }
            });
        }
        if !self.fence && row.role != Role::PreGuard && self.severity() != Overlap::Waste {
            remarks.push(
                "nothing checks the fencing token: a holder that was paused for longer than its lease may still act".to_owned(),
            );
        }
        remarks
    }
}

#[cfg(test)]
mod tests;
