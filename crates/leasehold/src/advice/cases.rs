//! Known cases, with the answers that their owners would give.

use std::time::Duration;

use super::{
    Answers,
    Overlap::{Damage, Harm, Waste},
    Protects::{Capacity, Derived, External, Job, Message, Request, Row, Workflow},
};

/// A known case.
#[derive(Debug)]
#[non_exhaustive]
pub struct Case {
    /// Its name: `leasehold advise --case NAME`.
    pub name: &'static str,
    /// A description of the case.
    pub what: &'static str,
    /// The answers that its owner would give.
    pub answers: Answers,
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// The base of all other cases: work that is only wasted if it is done twice.
pub(super) const HARMLESS: Answers = Answers {
    protects: Derived,
    overlap: Waste,
    duplicates: true,
    idempotent: true,
    fence: false,
    survive: false,
    lasts: minutes(1),
    split: false,
    conditional: false,
    consensus: false,
    redis_only: false,
    regions: false,
    audit: false,
};

/// State in a database on which money, stock or law depends. The state must survive; a lease in front of it need not.
pub(super) const HIGH_STAKES: Answers = Answers {
    protects: Row,
    overlap: Harm,
    duplicates: false,
    idempotent: true,
    fence: true,
    conditional: true,
    audit: true,
    ..HARMLESS
};

const fn case(name: &'static str, what: &'static str, answers: Answers) -> Case {
    Case { name, what, answers }
}

/// The known cases, from harmless to serious.
pub const CASES: &[Case] = &[
    case("cache-rebuild", "a hot cache entry expired, and a thousand requests would rebuild it", HARMLESS),
    case(
        "index-refresh",
        "a search index is refreshed in the background",
        Answers { lasts: minutes(5), ..HARMLESS },
    ),
    case("metrics-rollup", "metrics are aggregated, and one of two results is ignored", HARMLESS),
    case(
        "nightly-cleanup",
        "a scheduled cleanup, each item a conditional change",
        Answers { protects: Job, lasts: minutes(5), split: true, ..HARMLESS },
    ),
    case(
        "tenant-exports",
        "a tenant may run three exports at the same time",
        Answers { protects: Capacity, lasts: minutes(5), ..HARMLESS },
    ),
    case(
        "reminder-email",
        "a reminder is mailed once, by a provider that takes an idempotency key",
        Answers { protects: External, overlap: Damage, duplicates: false, ..HARMLESS },
    ),
    case(
        "report-export",
        "a report is exported, and its row says how far it is",
        Answers {
            protects: Job,
            overlap: Damage,
            duplicates: false,
            idempotent: false,
            fence: true,
            lasts: minutes(5),
            split: true,
            ..HARMLESS
        },
    ),
    case(
        "scheduler-leader",
        "one scheduler distributes the jobs",
        Answers {
            protects: Job,
            overlap: Damage,
            duplicates: false,
            fence: true,
            survive: true,
            consensus: true,
            ..HARMLESS
        },
    ),
    case(
        "redis-only-leader",
        "one worker distributes the jobs, in a company that runs only Redis",
        Answers {
            protects: Job,
            overlap: Damage,
            duplicates: false,
            fence: true,
            survive: true,
            redis_only: true,
            ..HARMLESS
        },
    ),
    case(
        "regional-sync",
        "one of several regions calls a partner that takes no token and no key",
        Answers {
            protects: External,
            overlap: Damage,
            duplicates: false,
            idempotent: false,
            survive: true,
            consensus: true,
            regions: true,
            ..HARMLESS
        },
    ),
    case(
        "access-grant",
        "an access right is given, and an auditor asks who gave it",
        Answers { protects: External, overlap: Damage, duplicates: false, audit: true, ..HARMLESS },
    ),
    case(
        "third-party-call",
        "a call to a system that takes no token and no key",
        Answers { protects: External, overlap: Damage, duplicates: false, idempotent: false, ..HARMLESS },
    ),
    case(
        "order-status",
        "an order goes from paid to shipped",
        Answers { protects: Row, overlap: Damage, duplicates: false, conditional: true, ..HARMLESS },
    ),
    case(
        "api-request",
        "a client repeats its request after a timeout",
        Answers { protects: Request, overlap: Damage, duplicates: false, conditional: true, ..HARMLESS },
    ),
    case(
        "broker-messages",
        "a message is handled by one consumer",
        Answers { protects: Message, overlap: Damage, duplicates: false, ..HARMLESS },
    ),
    case(
        "onboarding-workflow",
        "a customer is onboarded over several days, with waits in between",
        Answers {
            protects: Workflow,
            overlap: Damage,
            duplicates: false,
            lasts: minutes(3 * 1440),
            ..HARMLESS
        },
    ),
    case(
        "video-transcode",
        "a film is transcoded for an hour",
        Answers {
            protects: Job,
            overlap: Damage,
            duplicates: false,
            lasts: minutes(60),
            split: true,
            ..HARMLESS
        },
    ),
    case(
        "monthly-invoices",
        "the invoices of a month are made and sent",
        Answers { protects: Job, lasts: minutes(30), split: true, ..HIGH_STAKES },
    ),
    case(
        "payment-capture",
        "an authorised payment is captured",
        Answers { protects: External, fence: false, ..HIGH_STAKES },
    ),
    case("refund", "a refund is paid out once", Answers { protects: External, fence: false, ..HIGH_STAKES }),
    case("inventory", "the last item in stock is sold to one of two buyers", HIGH_STAKES),
    case("ticketing", "a seat is booked once", HIGH_STAKES),
    case("auction-settlement", "an auction ends and is settled", HIGH_STAKES),
    case("funds-transfer", "money moves from one account to another", HIGH_STAKES),
    case("regulatory-decision", "a decision of an authority is changed", HIGH_STAKES),
    case("legal-assignment", "a legal case is assigned to one officer", HIGH_STAKES),
    case(
        "device-command",
        "a command that cannot be undone, to a device that refuses old tokens",
        Answers { protects: External, idempotent: false, conditional: false, consensus: true, ..HIGH_STAKES },
    ),
    case(
        "irreversible-command",
        "a command that cannot be undone, to a device that takes no token and no key",
        Answers { protects: External, fence: false, idempotent: false, conditional: false, ..HIGH_STAKES },
    ),
];
