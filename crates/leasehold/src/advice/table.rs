//! The table of advice, the strictest row first.

use leasehold_core::Guarantee;

use super::{
    Answers, LONG, Purpose,
    questions::{Overlap, Protects},
};

/// What a lease can do in a situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// A lease is enough.
    Enough,
    /// A lease is enough if its token is checked where the effect happens.
    Fenced,
    /// A lease in front saves work; something else decides.
    PreGuard,
    /// A lease is the wrong tool.
    No,
}

impl Role {
    /// A stable name, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Enough => "enough",
            Role::Fenced => "fenced",
            Role::PreGuard => "pre-guard",
            Role::No => "no",
        }
    }
}

/// A situation, and what to do in it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Row {
    /// A stable name, for programs.
    pub name: &'static str,
    /// When the row applies, in words.
    pub situation: &'static str,
    /// Whether the row applies to these answers.
    pub fits: fn(&Answers) -> bool,
    /// What to do.
    pub approach: &'static str,
    /// What a lease can do in this situation.
    pub role: Role,
    /// The purpose of the lease, if one is used.
    pub purpose: Purpose,
    /// The weakest guarantee of a backend that is enough.
    pub least: Guarantee,
    /// Whether something must check the fencing token.
    pub fencing: bool,
    /// Whether a database transaction, or consensus, must decide.
    pub transaction: bool,
    /// The reason for the advice.
    pub because: &'static str,
    /// Whether several claims share the resource. Redlock cannot do that.
    pub shares: bool,
    /// What can still go wrong.
    pub still: &'static [&'static str],
    /// Markdown with one block of code: an example.
    snippet: &'static str,
}

impl Row {
    /// An example, in Rust, SQL or shell.
    pub fn snippet(&self) -> String {
        let is_rust = self.is_rust();
        let code = self.snippet.lines().skip(1).take_while(|line| !line.starts_with("```"));
        // Rustdoc hides these lines too. They only make the snippet run as a test.
        let shown: Vec<_> = code.filter(|line| !(is_rust && line.starts_with("# "))).collect();
        shown.join("\n")
    }

    pub(super) fn is_rust(&self) -> bool {
        self.snippet.starts_with("```rust")
    }
}

/// Includes the snippets, and runs them as doc tests.
macro_rules! snippets {
    ($($name:ident = $file:literal;)*) => { $(
        const $name: &str = include_str!(concat!("snippets/", $file));
        const _: () = {
            #[cfg(doctest)]
            #[doc = include_str!(concat!("snippets/", $file))]
            pub struct Runs;
        };
    )* };
}

snippets! {
    CONDITIONAL = "conditional.md";
    FENCED = "fenced.md";
    IDEMPOTENCY = "idempotency.md";
    JOB = "job.md";
    LEASE = "lease.md";
    CRON = "cron.md";
    PRE_GUARD = "pre_guard.md";
    RECONCILE = "reconcile.md";
    SEMAPHORE = "semaphore.md";
    STRICT = "strict.md";
    BROKER = "broker.md";
}

/// The table of advice, the strictest row first. The first row that fits counts.
pub const TABLE: &[Row] = &[
    Row {
        name: "reconcile",
        situation: "Harm, and no database, no fencing token and no idempotency can stop a second execution",
        fits: |a| harm(a) && !a.conditional && !a.fence && !a.idempotent,
        approach: "Write down the intent, act, write down the outcome; reconcile intents without an outcome. Not a lock",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        shares: false,
        because: "A request that was sent cannot be called back, and the receiver cannot tell the second request from \
                  the first. A lock would only make duplicates rare, and hide them.",
        still: &["An intent without an outcome must be checked, by a person or by asking the other system"],
        snippet: RECONCILE,
    },
    Row {
        name: "consensus",
        situation: "Harm, and the state is not in one database, but the effect can check a token",
        fits: |a| harm(a) && !a.conditional && a.fence,
        approach: "A lease on consensus or a database, whose token the effect checks; idempotent, with an audit record",
        role: Role::Fenced,
        purpose: Purpose::Correctness,
        least: Guarantee::Database,
        fencing: true,
        transaction: true,
        shares: false,
        because: "No single database can decide, so the check of the token at the effect decides. The lease chooses who \
                  may try, and a failover must not let it choose twice.",
        still: &[
            "The check of the token and the effect must be one atomic step in the system that has the effect",
            "Write the audit record in that step too",
        ],
        snippet: FENCED,
    },
    Row {
        name: "transaction",
        situation: "Harm: money, stock, law, or anything that cannot be undone",
        fits: harm,
        approach: "A database transaction that decides; idempotent, with an audit record; a lease only as a pre-guard, \
                   which may be on Redis",
        role: Role::PreGuard,
        purpose: Purpose::Efficiency,
        least: Guarantee::BestEffort,
        fencing: true,
        transaction: true,
        shares: false,
        because: "The rule must be enforced where the state is. A lease can be lost while its holder acts. In front of \
                  the transaction, a lease saves work; instead of the transaction, it can lose money.",
        still: &[
            "A call to another system is not part of the transaction: send that system an idempotency key",
            "Everything must stay correct without the lease, only slower: test it without the lease",
        ],
        snippet: PRE_GUARD,
    },
    Row {
        name: "workflow",
        situation: "Many steps with waits in between, or work of more than a day",
        fits: |a| a.protects == Protects::Workflow || a.lasts > <crate::LeaseRequest>::TTL_MAX,
        approach: "A workflow engine, or a durable job table with a heartbeat. Not a lock",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: true,
        transaction: true,
        shares: false,
        because: "A lease says who works now. It does not say how far the work is, and the process that takes over \
                  must know that.",
        still: &["A step can run twice: make each step a conditional change of the durable state"],
        snippet: JOB,
    },
    Row {
        name: "broker",
        situation: "Messages of a broker",
        fits: |a| a.protects == Protects::Message,
        approach: "The broker's own consumer groups or visibility timeout, and an idempotent handler. Not a lock",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        shares: false,
        because: "The broker already gives each message to one consumer, and delivers it again when that consumer \
                  dies. A separate lock can disagree with the broker.",
        still: &["A message can come twice: store its id in the transaction that does its work"],
        snippet: BROKER,
    },
    Row {
        name: "idempotency-key",
        situation: "A request or command that must be executed once",
        fits: |a| a.protects == Protects::Request,
        approach: "A unique constraint: the client's idempotency key, stored with the first answer. Not a lock",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        shares: false,
        because: "A lock keeps two requests from running at the same time. But a retry comes later, when the lock is \
                  free again. Only a record of the first request stops it.",
        still: &["Keys are stored for a limited time: a retry after that is a new request"],
        snippet: IDEMPOTENCY,
    },
    Row {
        name: "conditional-update",
        situation: "State in one database",
        fits: |a| a.protects == Protects::Row || (a.conditional && a.severity() > Overlap::Waste),
        approach: "A conditional update by version, or a row lock if many compete for the row. Not an external lock",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        shares: false,
        because: "The database checks the rule in the same step as the change. An external lock must be correct as \
                  well, and can be lost between the read and the write.",
        still: &["On a row that many change, retries pile up: lock the row (`SELECT … FOR UPDATE`) instead"],
        snippet: CONDITIONAL,
    },
    Row {
        name: "audited",
        situation: "Damage, and it must be possible to prove who changed what",
        fits: |a| damage(a) && a.audit && a.protects != Protects::Capacity,
        approach: "A transaction that makes the change and writes the audit record; a lease only as a pre-guard",
        role: Role::PreGuard,
        purpose: Purpose::Efficiency,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        shares: false,
        because: "A lease that has ended leaves nothing behind. Only a record that is written in the transaction of the \
                  change proves who made it, and refuses a second change.",
        still: &["What is done outside of the transaction has no record: write the intent before it"],
        snippet: PRE_GUARD,
    },
    Row {
        name: "semaphore",
        situation: "A limit on how many run at once",
        fits: |a| a.protects == Protects::Capacity,
        approach: "A semaphore per tenant, and durable state for each job",
        role: Role::Enough,
        purpose: Purpose::Efficiency,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: false,
        shares: true,
        because: "A limit protects a machine or a budget, so one too many for a moment only costs something. Permits \
                  of a holder that died become free again.",
        still: &[
            "A holder that was paused for longer than its lease may still run: for a moment there is one more than the limit",
            "Permits have no fencing token: protect what a job writes by the job's own state",
        ],
        snippet: SEMAPHORE,
    },
    Row {
        name: "durable-job",
        situation: "Work of more than ten minutes that must not be done twice",
        fits: |a| a.lasts > LONG && a.severity() > Overlap::Waste,
        approach: "Durable job ownership: a row with a heartbeat and a version; a lease only as a pre-filter",
        role: Role::PreGuard,
        purpose: Purpose::Efficiency,
        least: Guarantee::BestEffort,
        fencing: true,
        transaction: true,
        shares: false,
        because: "A long lease blocks everyone when its holder dies, and a short one is lost often. The job's row says \
                  who owns the job and how far it is, and it outlives every lease.",
        still: &[
            "The step that was running when the owner was lost may run again: commit progress in small steps",
        ],
        snippet: JOB,
    },
    Row {
        name: "fenced-job",
        situation: "A job whose results would be damaged, and whose store can check a token",
        fits: |a| damage(a) && a.fence && a.protects == Protects::Job,
        approach: "A lease with fencing, and durable job state",
        role: Role::Fenced,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: true,
        transaction: false,
        shares: false,
        because: "The lease picks one worker, the token keeps a late worker from writing, and the job's state says \
                  what is left to do. With the fence, any backend is good enough.",
        still: &[
            "A read-modify-write must call `enter` with its token before its first read",
            "The fence protects only its own store, not an e-mail or a call to another system",
        ],
        snippet: FENCED,
    },
    Row {
        name: "fenced",
        situation: "An effect that can check a token",
        fits: |a| damage(a) && a.fence,
        approach: "A lease with fencing",
        role: Role::Fenced,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: true,
        transaction: false,
        shares: false,
        because: "Exclusion may fail, by a pause or a failover. The check at the effect does not fail. With the fence, \
                  any backend is good enough.",
        still: &["A read-modify-write must call `enter` with its token before its first read"],
        snippet: FENCED,
    },
    Row {
        name: "idempotent-effect",
        situation: "An effect that cannot check a token, but can be made idempotent",
        fits: |a| damage(a) && a.idempotent,
        approach: "An idempotency key at the effect; a lease in front of it",
        role: Role::PreGuard,
        purpose: Purpose::Efficiency,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        shares: false,
        because: "The key makes a second execution harmless, and the lease makes it rare.",
        still: &["If the receiver forgets a key before you retry, the retry is a new request"],
        snippet: IDEMPOTENCY,
    },
    Row {
        name: "strict-lease",
        situation: "An effect that can neither check a token nor be made idempotent",
        fits: damage,
        approach: "A lease with Purpose::Correctness, on a database or a consensus service; durable state around it",
        role: Role::Enough,
        purpose: Purpose::Correctness,
        least: Guarantee::Database,
        fencing: false,
        transaction: false,
        shares: false,
        because: "Only the lease protects the effect, so a failover must not forget it. The holder is told to stop \
                  before another claim is granted.",
        still: &[
            "A holder that is paused between its check and the effect acts too late, and nothing refuses it",
        ],
        snippet: STRICT,
    },
    Row {
        name: "singleton-job",
        situation: "A scheduled job, where a second run is only a waste",
        fits: |a| a.protects == Protects::Job,
        approach: "A lease, and idempotent work",
        role: Role::Enough,
        purpose: Purpose::Efficiency,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: false,
        shares: false,
        because: "The lease saves the second run. Make each item a conditional change with an audit record anyway, so \
                  that a second run finds nothing to do.",
        still: &["After a pause or a failover, two runs can overlap and work on the same items"],
        snippet: CRON,
    },
    Row {
        name: "lease",
        situation: "A second run is only a waste",
        fits: |_| true,
        approach: "A lease",
        role: Role::Enough,
        purpose: Purpose::Efficiency,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: false,
        shares: false,
        because: "Duplicates cost something but break nothing, so the simplest backend is enough.",
        still: &[
            "A late writer may overwrite a newer value: give values a version or a short life, or use a fence",
        ],
        snippet: LEASE,
    },
];

fn harm(answers: &Answers) -> bool {
    answers.severity() == Overlap::Harm
}

fn damage(answers: &Answers) -> bool {
    answers.severity() >= Overlap::Damage
}

/// A backend that can store leases.
#[derive(Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The scheme of its URL.
    pub scheme: &'static str,
    /// Its guarantee when it is configured well.
    pub level: Guarantee,
    /// Whether its leases survive the failure of one server, when it is configured well.
    pub survives: bool,
    /// Whether several claims can share a resource on it.
    pub shares: bool,
    /// A URL as an example.
    pub url: &'static str,
}

/// The backends that can store leases, the weakest first.
pub const BACKENDS: &[Candidate] = &[
    candidate("redis", Guarantee::BestEffort, "redis://cache.internal/"),
    Candidate { shares: false, ..surviving("redlock", Guarantee::Quorum, "redlock://r1,r2,r3,r4,r5") },
    candidate("sqlite", Guarantee::Database, "sqlite:/var/lib/app/leases.db"),
    surviving("postgres", Guarantee::Database, "postgres://app@db.internal/app"),
    surviving("etcd", Guarantee::Consensus, "etcd://e1,e2,e3"),
    surviving("zookeeper", Guarantee::Consensus, "zookeeper://z1,z2,z3"),
];

const fn candidate(scheme: &'static str, level: Guarantee, url: &'static str) -> Candidate {
    Candidate { scheme, level, survives: false, shares: true, url }
}

const fn surviving(scheme: &'static str, level: Guarantee, url: &'static str) -> Candidate {
    Candidate { scheme, level, survives: true, shares: true, url }
}

/// The names of the backends with at least this guarantee, as a text: `sqlite, postgres, etcd or zookeeper`.
pub fn backends(least: Guarantee) -> String {
    let names: Vec<_> = BACKENDS.iter().filter(|one| one.level >= least).map(|one| one.scheme).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
