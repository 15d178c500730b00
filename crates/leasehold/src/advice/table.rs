//! What to do: one table, the strictest row first.

use leasehold_core::Guarantee;

use super::{
    Answers, LONG, Purpose,
    questions::{Overlap, Protects},
};

/// What a lease is good for in this situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It is the answer.
    Enough,
    /// It is the answer if its token is checked where the effect happens.
    Fenced,
    /// It may stand in front and save work; something else decides.
    PreGuard,
    /// It is the wrong tool.
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

/// One situation, and what to do in it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Row {
    /// A stable name, for programs.
    pub name: &'static str,
    /// When it applies, in words.
    pub situation: &'static str,
    /// When it applies.
    pub fits: fn(&Answers) -> bool,
    /// What to do.
    pub approach: &'static str,
    /// What a lease is good for there.
    pub role: Role,
    /// What a lease, if one is taken, is for.
    pub purpose: Purpose,
    /// The weakest level of a backend that does.
    pub least: Guarantee,
    /// Whether something must check the fencing token.
    pub fencing: bool,
    /// Whether a database transaction, or consensus, must decide.
    pub transaction: bool,
    /// Why.
    pub because: &'static str,
    /// What can still go wrong.
    pub still: &'static [&'static str],
    /// Markdown with one block of code: how it looks.
    snippet: &'static str,
}

impl Row {
    /// How it looks, in Rust, SQL or at a shell.
    pub fn snippet(&self) -> String {
        let is_rust = self.snippet.starts_with("```rust");
        let code = self.snippet.lines().skip(1).take_while(|line| !line.starts_with("```"));
        // Rustdoc hides these lines too: they only make the snippet run as a test.
        let shown: Vec<_> = code.filter(|line| !(is_rust && line.starts_with("# "))).collect();
        shown.join("\n")
    }
}

/// The snippets run, too.
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

/// What to do, the strictest first: the first row that fits counts.
pub const TABLE: &[Row] = &[
    Row {
        name: "reconcile",
        situation: "Harm, and neither a database nor a token nor idempotence can stop the second one",
        fits: |a| harm(a) && !a.conditional && !a.fence && !a.idempotent,
        approach: "Write down the intent, act, write down the outcome; reconcile what has no outcome. Not a lock",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        because: "A request that has left cannot be called back, and nothing at the other end can tell the second \
                  from the first. A lock would only make it rare, and hide it.",
        still: &[
            "An intent without an outcome has to be looked at, by a person or by asking the other system",
        ],
        snippet: RECONCILE,
    },
    Row {
        name: "transaction",
        situation: "Harm: money, stock, law, or what cannot be undone",
        fits: harm,
        approach: "A database transaction, or consensus with fencing; idempotent, with an audit record; a lease only \
                   as a pre-guard",
        role: Role::PreGuard,
        purpose: Purpose::Correctness,
        least: Guarantee::Database,
        fencing: true,
        transaction: true,
        because: "The rule must be enforced where the state is. A lease can be lost while its holder acts: in front \
                  of the transaction it saves work, in place of it it loses money.",
        still: &[
            "A call to another system inside the transaction is not part of it: send that system's own idempotency key",
            "Without the lease everything stays right, only slower: test it that way",
        ],
        snippet: PRE_GUARD,
    },
    Row {
        name: "workflow",
        situation: "Many steps with waiting in between, or work of more than a day",
        fits: |a| a.protects == Protects::Workflow || a.lasts > <crate::LeaseRequest>::TTL_MAX,
        approach: "A workflow engine, or a durable job table with a heartbeat. Not a lock",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: true,
        transaction: true,
        because: "A lease says who works now. It does not say how far the work has come, and whoever takes over has \
                  to know.",
        still: &["A step can run twice: make each of them a conditional change of the durable state"],
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
        because: "The broker already hands each message to one consumer, and already hands it out again when that \
                  one dies. A lock beside it can disagree with it.",
        still: &["A message can come twice: remember its id in the transaction that does its work"],
        snippet: BROKER,
    },
    Row {
        name: "idempotency-key",
        situation: "A request or command that is to be carried out once",
        fits: |a| a.protects == Protects::Request,
        approach: "A unique constraint: the client's idempotency key, stored with the first answer. Not a lock",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        because: "A lock keeps two from running at the same time. The second comes later, when the lock is free \
                  again; only a record of the first one stops it.",
        still: &["Keys are kept for a while, not for ever: a retry after that is a new request"],
        snippet: IDEMPOTENCY,
    },
    Row {
        name: "conditional-update",
        situation: "State in one database",
        fits: |a| a.protects == Protects::Row || (a.conditional && a.severity() > Overlap::Waste),
        approach: "A conditional update by version, or a row lock where many meet. Not a lock outside",
        role: Role::No,
        purpose: Purpose::Correctness,
        least: Guarantee::BestEffort,
        fencing: false,
        transaction: true,
        because: "The rule lives where the data lives, in one step with the change. A lock outside has to be right \
                  as well, and can be lost between the read and the write.",
        still: &[
            "On a hot row, retries pile up: lock the row (`SELECT … FOR UPDATE`) instead of trying again",
        ],
        snippet: CONDITIONAL,
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
        because: "A limit protects a machine or a budget: one too many for a moment is a cost. Permits of those who \
                  died come back by themselves.",
        still: &[
            "A holder that is frozen past its time may still run: for a moment there is one more than the limit",
            "Permits have no fencing token: what a job writes must be guarded by the job's own state",
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
        because: "A long lease blocks everyone when its holder dies; a short one is lost often. The job's row says \
                  who owns it, how far it is, and outlives both.",
        still: &["The step that ran when the owner was lost may run again: commit progress in small steps"],
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
        because: "The lease picks one worker, the token keeps a late one from writing, and the job's state says what \
                  is left to do. With the fence the backend may be any.",
        still: &[
            "A read-modify-write must raise the mark before its first read: `enter` the token",
            "What leaves the fenced store, such as an e-mail, is not protected by it",
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
        because: "Exclusion may fail, by a pause or a failover; the check at the effect does not. With the fence the \
                  backend may be any.",
        still: &["A read-modify-write must raise the mark before its first read: `enter` the token"],
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
        because: "The key makes the second one harmless, the lease makes it rare.",
        still: &["A receiver that forgets its keys sooner than you retry sees a new request"],
        snippet: IDEMPOTENCY,
    },
    Row {
        name: "strict-lease",
        situation: "An effect that can neither check a token nor be made idempotent",
        fits: damage,
        approach: "A lease of a database or of consensus, taken for correctness; durable state around it",
        role: Role::Enough,
        purpose: Purpose::Correctness,
        least: Guarantee::Database,
        fencing: false,
        transaction: false,
        because: "The lease is all there is, so it must not be forgotten by a failover. The holder is told before \
                  anyone else is granted, and that is the protection.",
        still: &[
            "A holder that is frozen between its check and the effect acts too late, and nothing refuses it",
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
        because: "The lease saves the second run. Each item is still a conditional change with an audit record, so \
                  that a second run finds nothing to do.",
        still: &["Two can overlap after a pause or a failover, and both work on the same items"],
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
        because: "Duplicates cost something and break nothing: the simplest backend does.",
        still: &[
            "A late writer may overwrite a newer value: give values a version or a short life, or fence them",
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

/// Where leases can be kept.
#[derive(Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The URL's scheme.
    pub scheme: &'static str,
    /// Its level when it is set up well.
    pub level: Guarantee,
}

/// Where leases can be kept, weakest first.
pub const BACKENDS: &[Candidate] = &[
    Candidate { scheme: "redis", level: Guarantee::BestEffort },
    Candidate { scheme: "redlock", level: Guarantee::Quorum },
    Candidate { scheme: "sqlite", level: Guarantee::Database },
    Candidate { scheme: "postgres", level: Guarantee::Database },
    Candidate { scheme: "etcd", level: Guarantee::Consensus },
    Candidate { scheme: "zookeeper", level: Guarantee::Consensus },
];

/// The backends of at least this level, in words: `sqlite, postgres, etcd or zookeeper`.
pub fn backends(least: Guarantee) -> String {
    let names: Vec<_> = BACKENDS.iter().filter(|one| one.level >= least).map(|one| one.scheme).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
