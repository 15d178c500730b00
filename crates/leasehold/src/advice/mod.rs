//! Whether to use a lease at all, and which.
//!
//! Ten [questions](QUESTIONS), and [one table](TABLE) of what to do: the first row that fits the answers counts. The
//! rows stand from the strictest to the laxest, so where two pieces of advice would differ, the stricter one wins. The
//! answer may be that a lock is the wrong tool. The program's `leasehold advise`, the page `docs/choosing.md` and
//! [`Purpose`] all read what stands here.
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

/// What the lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Purpose {
    /// To save work: if two run once in a while, nothing is wrong. The default.
    #[default]
    Efficiency,
    /// To be right: if two ever run, something is wrong. Refused on backends that promise too little, unless the
    /// request says that the effect is [fenced](crate::LeaseRequest::fenced).
    Correctness,
}

impl Purpose {
    /// The weakest level that does for it, without a fence.
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
    /// What happens if two run at once.
    pub overlap: Overlap,
    /// Whether doing it twice can be tolerated.
    pub duplicates: bool,
    /// Whether doing it twice can be made the same as doing it once.
    pub idempotent: bool,
    /// Whether the place where the effect happens can refuse an old token.
    pub fence: bool,
    /// Whether the lease must outlive the failure of the server that keeps it.
    pub survive: bool,
    /// How long the work can take.
    pub lasts: Duration,
    /// Whether it can be split into smaller steps, each of them durable.
    pub split: bool,
    /// Whether the state is in one database, where a conditional update would do.
    pub conditional: bool,
    /// Whether a consensus service is there, or worth having.
    pub consensus: bool,
}

/// What to do, and what to know about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Advice {
    /// The row of the [table](TABLE) that fits.
    pub row: &'static Row,
    /// The weakest level of a backend that does.
    pub least: Guarantee,
    /// What these answers in particular call for.
    pub remarks: Vec<String>,
}

/// Above this, a lease whose holder died blocks everyone for too long.
pub const LONG: Duration = Duration::from_secs(600);

impl Answers {
    /// What to do.
    pub fn advice(&self) -> Advice {
        let row = TABLE.iter().find(|row| (row.fits)(self)).unwrap_or(&TABLE[TABLE.len() - 1]);
        let survives = if self.survive { Guarantee::Database } else { Guarantee::BestEffort };
        let least = row.least.max(if row.role == Role::No { Guarantee::BestEffort } else { survives });
        Advice { row, least, remarks: self.remarks(row, least) }
    }

    /// How bad an overlap is. Work that must not be done twice is worse than a waste, whatever was said of it.
    pub(crate) fn severity(&self) -> Overlap {
        if self.overlap == Overlap::Waste && !self.duplicates { Overlap::Damage } else { self.overlap }
    }

    fn remarks(&self, row: &Row, least: Guarantee) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.severity() != self.overlap {
            remarks.push(
                "you say that an overlap only wastes work, and that it must not be done twice: the stricter counts"
                    .to_owned(),
            );
        }
        if self.overlap == Overlap::Harm && self.duplicates {
            remarks.push(
                "you say that duplicates are tolerable, and that an overlap does harm: the stricter counts"
                    .to_owned(),
            );
        }
        if row.role == Role::No {
            return remarks;
        }
        if self.lasts > LONG {
            let how = if self.split { "take one lease for each step" } else { "split it into durable steps" };
            remarks.push(format!(
                "it can take more than ten minutes: {how}, and keep its progress in a job table"
            ));
        }
        if least > row.least {
            remarks.push("the lease must survive its server: a best-effort backend may forget it".to_owned());
        }
        if least >= Guarantee::Database {
            remarks.push(match self.consensus {
                true => "you have a consensus service: etcd:// or zookeeper:// is the strongest".to_owned(),
                false => {
                    "no consensus service is needed: one database keeps it, sqlite: or postgres://".to_owned()
                }
            });
        }
        if !self.fence && row.role != Role::PreGuard && self.severity() != Overlap::Waste {
            remarks.push(
                "nothing checks the token: a holder that is frozen past its time may still act".to_owned(),
            );
        }
        remarks
    }
}

#[cfg(test)]
mod tests;
