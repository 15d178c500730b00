//! What common texts on distributed locks recommend, situation by situation, and what is advised here.
//!
//! The texts are a course on coordination with Redis, a book chapter on locks from `SETNX` to Redisson, a guide to locks in
//! Spring, and an overview for system design. Where the advice differs, `differs` says how; `docs/choosing.md` says why.

use std::time::Duration;

use super::{
    Answers, Overlap, Protects, Role,
    cases::{HARMLESS, HIGH_STAKES},
};

/// One situation of a text.
struct Situation {
    named: &'static str,
    answers: Answers,
    /// The row of the table that must fit.
    row: &'static str,
    /// A backend that the text allows, if it allows one.
    allows: Option<&'static str>,
    /// A backend that the text rules out.
    rules_out: Option<&'static str>,
    differs: Option<&'static str>,
}

const DAMAGE: Answers = Answers { overlap: Overlap::Damage, duplicates: false, ..HARMLESS };
const HOURS: Duration = Duration::from_secs(5 * 3600);
const DAYS: Duration = Duration::from_secs(3 * 24 * 3600);

const fn says(named: &'static str, answers: Answers, row: &'static str) -> Situation {
    Situation { named, answers, row, allows: None, rules_out: None, differs: None }
}

impl Situation {
    const fn allowing(self, backend: &'static str) -> Situation {
        Situation { allows: Some(backend), ..self }
    }

    const fn without(self, backend: &'static str) -> Situation {
        Situation { rules_out: Some(backend), ..self }
    }

    const fn differing(self, how: &'static str) -> Situation {
        Situation { differs: Some(how), ..self }
    }
}

const fn protecting(protects: Protects, answers: Answers) -> Answers {
    Answers { protects, ..answers }
}

use Protects::{Capacity, External, Job, Message, Request, Row, Workflow};

/// Efficiency: a second execution costs, and breaks nothing.
const EFFICIENCY: &[Situation] = &[
    says("two workers rebuild the same cache", HARMLESS, "lease").allowing("redis"),
    says("a duplicate cache rebuild, by Redlock: usually overkill", HARMLESS, "lease").allowing("redlock"),
    says("single flight for a hot cache key", HARMLESS, "lease").allowing("redis"),
    says("a non-critical refresh task is sent twice", protecting(Job, HARMLESS), "singleton-job")
        .allowing("redis"),
    says("metrics are aggregated twice, one result is ignored", HARMLESS, "lease").allowing("redis"),
    says("a background optimisation runs twice", protecting(Job, HARMLESS), "singleton-job")
        .allowing("redis"),
    says("a search index is refreshed in the background", HARMLESS, "lease").allowing("redis"),
    says("several workers compact the same temporary resource", HARMLESS, "lease").allowing("redis"),
    says(
        "a scheduled cleanup with a conditional change per item",
        protecting(Job, HARMLESS),
        "singleton-job",
    )
    .allowing("redis"),
    says("a non-critical cron job, by Redlock: maybe", protecting(Job, HARMLESS), "singleton-job")
        .allowing("redlock"),
    says("one worker for an idempotent job", protecting(Job, HARMLESS), "singleton-job").allowing("redis"),
    says("idempotent deduplication with SET NX", HARMLESS, "lease").allowing("redis"),
    says("at most three exports per tenant", protecting(Capacity, HARMLESS), "semaphore")
        .allowing("redis")
        .without("redlock"),
    says(
        "one expensive computation per tenant, where a second only costs",
        protecting(Capacity, HARMLESS),
        "semaphore",
    )
    .allowing("redis"),
    says(
        "a Redis-only company that wants more safety",
        Answers { survive: true, redis_only: true, ..protecting(Job, HARMLESS) },
        "singleton-job",
    )
    .allowing("redlock")
    .without("redis"),
    says(
        "the lock must survive a failover of Redis",
        Answers { survive: true, ..protecting(Job, HARMLESS) },
        "singleton-job",
    )
    .allowing("redlock")
    .without("redis"),
];

/// Correctness: something is wrong if two execute.
const CORRECTNESS: &[Situation] = &[
    says(
        "a payment is charged once",
        Answers { protects: External, fence: false, ..HIGH_STAKES },
        "transaction",
    )
    .allowing("redis"),
    says("funds are transferred", HIGH_STAKES, "transaction").allowing("redis"),
    says("scarce stock is allocated", HIGH_STAKES, "transaction").allowing("redis"),
    says("financial and stock operations: Redisson and an optimistic lock", HIGH_STAKES, "transaction")
        .allowing("redis"),
    says("a purchase reads the stock, subtracts and saves, under a lock", HIGH_STAKES, "transaction")
        .allowing("redis")
        .differing("the lock is a pre-guard; the database decides"),
    says("a legal case is assigned", HIGH_STAKES, "transaction").allowing("redis"),
    says("the state of a regulatory decision changes", HIGH_STAKES, "transaction").allowing("redis"),
    says(
        "a refund is paid by one of two workers",
        Answers { protects: External, ..HIGH_STAKES },
        "transaction",
    ),
    says("monthly invoices", Answers { protects: Job, split: true, ..HIGH_STAKES }, "transaction"),
    says("a seat is not booked twice, by a distributed lock", HIGH_STAKES, "transaction")
        .differing("the lock is a pre-guard; the database decides"),
    says("an auction's record is locked during settlement", HIGH_STAKES, "transaction")
        .differing("the lock is a pre-guard; the database decides"),
    says("the core of a bank: a row lock in a transaction", HIGH_STAKES, "transaction"),
    says(
        "an irreversible command to a system that checks no token",
        Answers { protects: External, fence: false, idempotent: false, conditional: false, ..HIGH_STAKES },
        "reconcile",
    ),
    says(
        "exclusivity decides on money, outside of one database, with fencing",
        Answers { protects: External, conditional: false, consensus: true, ..HIGH_STAKES },
        "consensus",
    )
    .allowing("etcd")
    .without("redlock"),
    says(
        "a row changes its state",
        Answers { protects: Row, conditional: true, ..DAMAGE },
        "conditional-update",
    ),
    says(
        "a job is picked from a table: a prefilter in Redis",
        Answers { lasts: HOURS, ..protecting(Job, DAMAGE) },
        "durable-job",
    )
    .allowing("redis"),
    says("a command is processed once", protecting(Request, DAMAGE), "idempotency-key"),
    says(
        "a client repeats an API request: an idempotency key",
        protecting(Request, DAMAGE),
        "idempotency-key",
    ),
    says("messages of a broker", protecting(Message, DAMAGE), "broker"),
    says("a workflow that takes days", Answers { lasts: DAYS, ..protecting(Workflow, DAMAGE) }, "workflow"),
    says("work of hours", Answers { lasts: HOURS, ..protecting(Job, DAMAGE) }, "durable-job"),
    says(
        "a report is exported with a fencing token",
        Answers { fence: true, ..protecting(Job, DAMAGE) },
        "fenced-job",
    )
    .allowing("redis"),
    says(
        "an external effect that supports fencing",
        Answers { fence: true, ..protecting(External, DAMAGE) },
        "fenced",
    )
    .allowing("redis"),
    says(
        "Redlock with fencing at the resource",
        Answers { fence: true, ..protecting(External, DAMAGE) },
        "fenced",
    )
    .allowing("redlock"),
    says(
        "an external effect without fencing, by idempotency",
        protecting(External, DAMAGE),
        "idempotent-effect",
    )
    .allowing("redis"),
    says("a reminder is not mailed twice, by SET NX", protecting(External, DAMAGE), "idempotent-effect")
        .allowing("redis")
        .differing("the lease only makes it rare; the idempotency key decides"),
    says(
        "an external effect that can neither check a token nor be repeated",
        Answers { idempotent: false, ..protecting(External, DAMAGE) },
        "strict-lease",
    )
    .allowing("etcd")
    .without("redlock"),
    says(
        "a scheduler's leader, on etcd",
        Answers { fence: true, survive: true, consensus: true, ..protecting(Job, DAMAGE) },
        "fenced-job",
    )
    .allowing("etcd")
    .without("redis"),
    says(
        "a strongly consistent lock between services",
        Answers { idempotent: false, consensus: true, ..protecting(External, DAMAGE) },
        "strict-lease",
    )
    .allowing("zookeeper")
    .without("redis"),
    says(
        "the general business mutex, by Redisson",
        Answers { fence: true, ..protecting(External, DAMAGE) },
        "fenced",
    )
    .allowing("redis")
    .differing("with a fence, or not at all"),
    says(
        "partitions between regions are expected",
        Answers { regions: true, idempotent: false, ..protecting(External, DAMAGE) },
        "strict-lease",
    )
    .allowing("etcd")
    .without("postgres"),
    says("auditability is required", Answers { audit: true, ..protecting(External, DAMAGE) }, "audited")
        .allowing("redis"),
];

fn situations() -> impl Iterator<Item = &'static Situation> {
    EFFICIENCY.iter().chain(CORRECTNESS)
}

#[test]
fn the_advice_agrees_with_the_texts() {
    for Situation { named, answers, row, allows, rules_out, .. } in situations() {
        let advice = answers.advice();
        assert_eq!(advice.row.name, *row, "{named}");
        let has = |scheme: &str| advice.backends.iter().any(|one| one.scheme == scheme);
        assert!(allows.is_none_or(has), "{named}: {allows:?} must be possible");
        assert!(!rules_out.is_some_and(has), "{named}: {rules_out:?} must not be advised");
        if advice.row.role == Role::Enough && EFFICIENCY.iter().any(|one| one.named == *named) {
            assert!(!advice.row.transaction, "{named}");
        }
    }
}

#[test]
fn where_the_advice_differs_the_page_says_why() {
    let page = include_str!("../../../../docs/choosing.md");
    let (_, page) = page.split_once("## Where good advice disagrees").expect("the page has that part");
    for word in ["stock", "Booking a seat", "auction", "Mails", "business mutex"] {
        assert!(page.contains(word), "{word}");
    }
    assert_eq!(situations().filter(|one| one.differs.is_some()).count(), 5, "each has its line on the page");
}

#[test]
fn the_remarks_do_not_contradict_the_backends() {
    for situation in situations() {
        for (regions, survive) in [(false, true), (true, false), (true, true)] {
            let advice = Answers { regions, survive, consensus: false, ..situation.answers }.advice();
            let has_database = advice.backends.iter().any(|one| one.scheme == "postgres");
            let says = |words: &str| advice.remarks.iter().any(|remark| remark.contains(words));
            assert!(
                has_database || !says("you need no consensus service"),
                "{}: {advice:?}",
                situation.named
            );
        }
    }
}

/// The first backend is what the example uses.
#[test]
fn a_redis_only_company_is_advised_redlock_where_one_redis_is_too_little() {
    for situation in situations().filter(|one| one.allows.is_some()) {
        let answers = Answers { redis_only: true, survive: true, ..situation.answers };
        let advice = answers.advice();
        let first = advice.backends.first().map(|one| one.scheme);
        let fits = !advice.row.shares
            && advice.row.least <= leasehold_core::Guarantee::Quorum
            && advice.least <= leasehold_core::Guarantee::Quorum;
        assert_eq!(first, fits.then_some("redlock"), "{}", situation.named);
    }
}
