//! What is checked: how many nodes and claims, how much may go wrong, and what is left out on purpose.

/// Claims at the most.
pub(crate) const CLAIMS_MAX: usize = 4;
/// Rounds of one claim at the most.
pub(crate) const ROUNDS_MAX: usize = 3;
/// How long a grant lasts, in ticks.
pub(crate) const TTL: u8 = 2;
/// How long a node that may have forgotten has no vote, in ticks: the shortest that is allowed.
pub(crate) const GATE: u8 = TTL;

/// What the nodes' clocks are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// They run as fast as all other clocks: a node grants nothing before the last grant has ended. Exclusion is checked.
    Sound,
    /// They jump as they like: any node may drop a lock at any moment. Only tokens can be right then.
    Wild,
}

/// How a node loses what it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It restarts empty.
    Restart,
    /// It restarts with its birth mark, and without what it granted: a log that was cut short.
    RestartWithMark,
    /// Someone flushes it, and it runs on.
    Flush,
}

/// A rule that is left out, so that the check can show what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// A node accepts a number that it has accepted for another owner.
    OwnerCheck,
    /// A node that lost everything votes on, as if nothing had happened.
    Quarantine,
    /// A node that lost everything is told at once what the others have accepted, and votes without waiting.
    Waiting,
    /// A node that lost everything waits, and votes without being told what the others have accepted.
    Reading,
    /// One node less than a majority is enough.
    Majority,
    /// A node lets a rival in while the lock is held.
    Lock,
    /// A grant counts from its answer, not from its request.
    Validity,
}

/// One check.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What it is about.
    pub name: &'static str,
    /// Nodes of the quorum.
    pub nodes: usize,
    /// Claims, each with an owner of its own, each begun at any moment.
    pub claims: usize,
    /// How often a claim may ask.
    pub rounds: usize,
    /// How often a claim that was granted may renew.
    pub renewals: u8,
    /// In how many ways, and how often, a node may forget.
    pub losses: (&'static [Loss], u8),
    /// How many nodes may have forgotten at the same time.
    pub forgetful: usize,
    /// How many caretakers are under way to one node at the same time; with two, they may also see all but one node.
    pub caretakers: usize,
    /// How many ticks pass; a grant lasts two.
    pub ticks: u8,
    /// What the nodes' clocks are worth.
    pub clocks: Clocks,
    /// What is left out.
    pub left_out: Option<LeftOut>,
}

impl Setup {
    /// Less than a hundred thousand moments.
    pub fn is_small(&self) -> bool {
        self.ticks == 0 && self.rounds == 1
    }
}
