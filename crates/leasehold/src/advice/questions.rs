//! The thirteen questions, and the possible answers.

use std::fmt;

/// A question.
#[derive(Debug)]
#[non_exhaustive]
pub struct Question {
    /// Its short name, which is also a flag of `leasehold advise`.
    pub name: &'static str,
    /// The text of the question.
    pub asks: &'static str,
    /// The possible answers. Empty if the answer is a duration.
    pub choices: &'static [Choice],
}

/// A possible answer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Choice {
    /// The word to type.
    pub name: &'static str,
    /// The meaning of the word.
    pub means: &'static str,
}

const fn choice(name: &'static str, means: &'static str) -> Choice {
    Choice { name, means }
}

const fn question(name: &'static str, asks: &'static str, choices: &'static [Choice]) -> Question {
    Question { name, asks, choices }
}

const PROTECTS: &[Choice] = &[
    choice("derived", "something that can be made again: a cache entry, a search index, a file"),
    choice("job", "a job that runs on a schedule or in the background"),
    choice("row", "state in a database"),
    choice("request", "a request or a command that must be executed once"),
    choice("message", "the messages of a broker"),
    choice("workflow", "many steps, with waits in between"),
    choice("external", "a call to another system"),
    choice("capacity", "a limit on how many run at the same time"),
];

const OVERLAP: &[Choice] = &[
    choice("waste", "work is done twice, and nothing is wrong"),
    choice("damage", "something is wrong until it is repaired"),
    choice("harm", "money, stock, law, or anything that cannot be undone"),
];

const YES_NO: &[Choice] = &[choice("yes", "yes"), choice("no", "no, or I do not know")];

/// The thirteen questions, in the order in which they are asked.
pub const QUESTIONS: &[Question] = &[
    question("protects", "What side effect does the lease protect?", PROTECTS),
    question("overlap", "What happens if two run at the same time?", OVERLAP),
    question("duplicates", "Is it acceptable that the work is done twice?", YES_NO),
    question(
        "idempotent",
        "Can the work be made idempotent (doing it twice has the same result as once)?",
        YES_NO,
    ),
    question("fence", "Can the place where the effect happens refuse an old fencing token?", YES_NO),
    question("survive", "Must the lease survive the failure of the server that stores it?", YES_NO),
    question("lasts", "How long can the work take at most?", &[]),
    question("split", "Can the work be split into smaller durable steps?", YES_NO),
    question(
        "conditional",
        "Is the state in one database, where a conditional update would be enough?",
        YES_NO,
    ),
    question(
        "consensus",
        "Do you have a consensus service (etcd, ZooKeeper), or would one be worth running?",
        YES_NO,
    ),
    question("redis-only", "Is Redis the only store that you can use for leases?", YES_NO),
    question("regions", "Does it run in several regions, between which the network can be cut?", YES_NO),
    question("audit", "Must it be possible to prove afterwards who changed what?", YES_NO),
];

/// What side effect a lease protects: the answer to the first question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protects {
    /// Something that can be made again.
    Derived,
    /// A scheduled or background job.
    Job,
    /// State in a database.
    Row,
    /// A request that must be executed once.
    Request,
    /// Messages of a broker.
    Message,
    /// Many steps, with waits in between.
    Workflow,
    /// A call to another system.
    External,
    /// A limit on how many run at the same time.
    Capacity,
}

/// What happens if two run at the same time, the mildest first: the answer to the second question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Overlap {
    /// Work is done twice, and nothing is wrong.
    Waste,
    /// Something is wrong until it is repaired.
    Damage,
    /// Money, stock, law, or anything that cannot be undone.
    Harm,
}

impl Protects {
    /// All variants, in the order of the question's choices.
    pub const ALL: [Protects; 8] = [
        Protects::Derived,
        Protects::Job,
        Protects::Row,
        Protects::Request,
        Protects::Message,
        Protects::Workflow,
        Protects::External,
        Protects::Capacity,
    ];

    /// The name of the choice.
    pub fn as_str(self) -> &'static str {
        PROTECTS[self as usize].name
    }
}

impl Overlap {
    /// All variants, in the order of the question's choices.
    pub const ALL: [Overlap; 3] = [Overlap::Waste, Overlap::Damage, Overlap::Harm];

    /// The name of the choice.
    pub fn as_str(self) -> &'static str {
        OVERLAP[self as usize].name
    }
}

impl fmt::Display for Protects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
