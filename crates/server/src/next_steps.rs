//! What can be done about a resource, and what to do now: the same options in the same order as `leasehold why`.
//!
//! 1. If an operator has paused the resource: resume it.
//! 2. Then those about its holder with the most time left, because it keeps the resource for longest: wait, ask, evict at the end of its
//!    lease, evict now.
//! 3. Then those about locks of other programs.
//!
//! The next step is the mildest one that helps. It never makes two holders work at the same time: that needs somebody who knows that the
//! work has ended.

use std::time::Duration;

use leasehold_api::{
    fields::TokenText,
    overview::{StepBody, StepName},
};
use leasehold_core::{ForeignLock, HeldBy, HolderState, Snapshot};
use leasehold_support::text::{quoted, span};

/// The state of a holder whose process has ended.
pub(crate) const GONE: &str = "gone";
/// From so long a wait on, a resource needs attention.
const WAIT_NOTICED_MS: u64 = 10_000;
/// A lease that remains for longer has no end: its key has lost its expiry.
const NO_END: Duration = Duration::from_secs(300 * 86_400);
/// What is over so soon is waited for.
const SOON: Duration = Duration::from_secs(15);

/// What is known about a resource.
pub(crate) struct Facts<'a> {
    pub(crate) snapshot: &'a Snapshot,
    /// The positions of holders whose processes have ended.
    pub(crate) gone: &'a [usize],
    pub(crate) oldest_wait_ms: Option<u64>,
    pub(crate) is_stuck: bool,
    pub(crate) is_unusual: bool,
    pub(crate) is_deadlocked: bool,
    /// The store takes operators' commands.
    pub(crate) takes_orders: bool,
}

/// All steps, and the next one.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) all: Vec<StepBody>,
    pub(crate) next: Option<StepBody>,
}

impl Facts<'_> {
    fn needs_attention(&self) -> bool {
        let snapshot = self.snapshot;
        snapshot.unreadable.is_some()
            || snapshot.paused_for.is_some()
            || !self.gone.is_empty()
            || self.is_stuck
            || self.is_unusual
            || self.is_deadlocked
            || self.oldest_wait_ms.is_some_and(|ms| ms >= WAIT_NOTICED_MS)
    }

    /// The holder that keeps the resource for longest, and whether its process has ended.
    fn holder(&self) -> Option<(&HeldBy, bool)> {
        let holders = self.snapshot.holders.iter().enumerate();
        let (position, by) = holders.max_by_key(|(_, by)| by.remaining)?;
        Some((by, self.gone.contains(&position)))
    }

    fn name(&self) -> String {
        self.snapshot.resource.to_string()
    }

    fn command(&self, order: &str, options: &[&str]) -> String {
        let name = self.name();
        let words = [&[order, &name], options].concat();
        let words = words.iter().map(|word| quoted(word));
        std::iter::once("leasehold".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// The command of an order about this grant.
    fn order(&self, order: &str, by: &HeldBy, options: &[&str]) -> String {
        let token = by.token.to_string();
        self.command(order, &[&["--token", &token], options, &["--reason", "WHY"]].concat())
    }
}

/// What can be done. Nothing for a resource that needs no attention.
pub(crate) fn steps(facts: &Facts<'_>) -> Steps {
    if !facts.needs_attention() {
        return Steps::default();
    }
    if facts.snapshot.unreadable.is_some() {
        let step =
            inspect(facts, "Its data in the store cannot be read: look at what was found there.", "show");
        return Steps { next: Some(step.clone()), all: vec![step] };
    }
    let mut all: Vec<StepBody> = resume(facts).into_iter().collect();
    if let Some((by, is_gone)) = facts.holder() {
        all.push(wait(by, is_gone));
        if facts.takes_orders {
            all.extend(orders(facts, by, is_gone));
        }
    }
    for lock in &facts.snapshot.foreign {
        all.extend(foreign(facts, lock));
    }
    if all.is_empty() || !facts.takes_orders {
        all.push(inspect(facts, "See who holds it, who waits, and until when.", "why"));
    }
    let wanted = next(facts);
    let next = all.iter().find(|step| step.step == wanted).or(all.first()).cloned();
    Steps { all, next }
}

/// Which step comes next.
fn next(facts: &Facts<'_>) -> StepName {
    if facts.snapshot.paused_for.is_some() {
        return StepName::Resume;
    }
    if let Some(lock) = facts.snapshot.foreign.first() {
        return if lock.remaining.is_some() { StepName::Wait } else { StepName::EvictForeign };
    }
    let Some((by, is_gone)) = facts.holder() else { return StepName::Inspect };
    if !facts.takes_orders {
        return StepName::Wait;
    }
    if by.kept || by.evicting {
        return StepName::Wait;
    }
    if is_gone || has_no_end(by) {
        return if by.remaining <= SOON { StepName::Wait } else { StepName::EvictNow };
    }
    if let Some(asked) = &by.asked {
        return if asked.within.is_zero() { StepName::Evict } else { StepName::Wait };
    }
    match by.state() {
        // It has stopped its work, or never renews: its lease ends by itself.
        Some(HolderState::Silent | HolderState::Late) if by.remaining <= SOON => StepName::Wait,
        Some(HolderState::Silent | HolderState::Late) => StepName::Evict,
        Some(HolderState::Renewing) | None => StepName::Ask,
    }
}

fn has_no_end(by: &HeldBy) -> bool {
    by.remaining >= NO_END
}

fn step(step: StepName, text: impl Into<String>, consequence: impl Into<String>) -> StepBody {
    StepBody {
        step,
        text: text.into(),
        command: None,
        consequence: consequence.into(),
        token: None,
        value_hash: None,
    }
}

fn inspect(facts: &Facts<'_>, text: &str, command: &str) -> StepBody {
    let mut step = step(StepName::Inspect, text, "Nothing changes.");
    step.command = Some(facts.command(command, &[]));
    step
}

fn resume(facts: &Facts<'_>) -> Option<StepBody> {
    let left = facts.snapshot.paused_for?;
    let newest = facts.snapshot.holders.iter().map(|by| by.token).max();
    let token = newest.map(|token| token.to_string());
    let mut options: Vec<&str> = token.iter().flat_map(|token| ["--token", token.as_str()]).collect();
    options.extend(["--reason", "WHY"]);
    let text = format!(
        "An operator has paused it for {} more: end the pause when what it was for is over.",
        span(left)
    );
    let mut step =
        step(StepName::Resume, text, "Claims are granted again at once, the first in the queue first.");
    step.command = facts.takes_orders.then(|| facts.command("resume", &options));
    step.token = newest.map(TokenText);
    Some(step)
}

/// That it ends by itself.
fn wait(by: &HeldBy, is_gone: bool) -> StepBody {
    let left = span(by.remaining);
    let text = match by.state() {
        _ if has_no_end(by) => "Wait for its release: the lease has no end.".to_owned(),
        _ if by.kept => format!("Wait: it was released, and opens by itself in {left}."),
        _ if is_gone => {
            format!("Wait: the process of its holder does not exist any more, and the lease ends in {left}.")
        }
        _ if by.evicting => format!("Wait: the holder is being evicted, and the lease ends in {left}."),
        _ if by.asked.is_some() => "Wait: the holder has been asked to finish.".to_owned(),
        Some(HolderState::Silent) => {
            format!("Wait: the holder has stopped renewing, and the lease ends in {left} by itself.")
        }
        Some(HolderState::Late) => {
            format!("Wait: a renewal is overdue, and the lease ends in {left} if none comes.")
        }
        Some(HolderState::Renewing) | None => {
            format!(
                "Wait for its release when the work is done. If the holder stops renewing, the lease ends in {left}."
            )
        }
    };
    step(StepName::Wait, text, "Nothing is interrupted, and never do two work at the same time.")
}

const TWO_MAY_RUN: &str = "Two may run: the next claim is granted at once, even if the work of this holder has not ended. Be sure that it has.";

fn orders(facts: &Facts<'_>, by: &HeldBy, is_gone: bool) -> Vec<StepBody> {
    let about = |mut step: StepBody, command: String| {
        (step.command, step.token) = (Some(command), Some(TokenText(by.token)));
        step
    };
    let evict_now = |text: &str, consequence: &str, options: &[&str]| {
        let options = [&["--now", "--two-may-run"], options].concat();
        about(step(StepName::EvictNow, text, consequence), facts.order("evict", by, &options))
    };
    if by.kept {
        let text = "Open it before that time, once you know that the work may be repeated.";
        return vec![evict_now(text, "The next claim is granted at once.", &[])];
    }
    if is_gone {
        let text = "Evict the holder now: its process does not exist any more.";
        let consequence = "The next claim is granted at once. The process that held it has ended; what it started may still run.";
        return vec![evict_now(text, consequence, &[])];
    }
    if has_no_end(by) {
        return vec![evict_now(
            "Evict the holder now, once you know that its work has ended.",
            TWO_MAY_RUN,
            &[],
        )];
    }
    let at_once = evict_now(
        "Evict the holder now, once you know that its work has ended.",
        TWO_MAY_RUN,
        &["--even-if-alive"],
    );
    if by.evicting {
        return vec![at_once];
    }
    let ask = step(
        StepName::Ask,
        "Ask the holder to finish.",
        "The holder is told and keeps the lease. It may finish early, or not.",
    );
    let evict = step(
        StepName::Evict,
        "Evict the holder at the end of its lease, once you know that it is dead or stuck.",
        format!(
            "The lease is not renewed any more: it ends within {}, and a holder at work stops before that. Nobody is granted earlier.",
            span(by.remaining)
        ),
    );
    vec![
        about(ask, facts.order("ask", by, &["--by", "30s"])),
        about(evict, facts.order("evict", by, &[])),
        at_once,
    ]
}

fn foreign(facts: &Facts<'_>, lock: &ForeignLock) -> Vec<StepBody> {
    let text = match lock.remaining {
        Some(left) => format!(
            "Wait: a lock of another program holds it, and expires in {} unless that extends it.",
            span(left)
        ),
        None => "Wait for the other program to release its lock: it has no expiry.".to_owned(),
    };
    let wait = step(StepName::Wait, text, "Nothing is interrupted.");
    if !facts.takes_orders {
        return vec![wait];
    }
    let hash = lock.value_hash.to_string();
    let options = ["--foreign", "--value-hash", &hash, "--two-may-run", "--reason", "WHY"];
    let mut remove = step(
        StepName::EvictForeign,
        "Remove the lock of the other program, once you know that it has ended.",
        "Two may run: the other program is not told.",
    );
    (remove.command, remove.value_hash) = (Some(facts.command("evict", &options)), Some(hash));
    vec![wait, remove]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_core::{FencingToken, FinishRequest, Holder, ValueHash};

    use super::*;

    fn held(remaining_s: u64) -> HeldBy {
        let mut by = HeldBy::new(Arc::new(Holder::new("host", 7, "")), FencingToken::new(123).unwrap(), 1);
        (by.remaining, by.ttl) = (Duration::from_secs(remaining_s), Some(Duration::from_secs(120)));
        by
    }

    fn report(by: Option<HeldBy>) -> Snapshot {
        let mut snapshot = Snapshot::empty("report/42".parse().unwrap());
        snapshot.holders.extend(by);
        snapshot
    }

    fn facts(snapshot: &Snapshot) -> Facts<'_> {
        Facts {
            snapshot,
            gone: &[],
            oldest_wait_ms: Some(WAIT_NOTICED_MS),
            is_stuck: false,
            is_unusual: false,
            is_deadlocked: false,
            takes_orders: true,
        }
    }

    fn names(steps: &Steps) -> Vec<StepName> {
        steps.all.iter().map(|step| step.step).collect()
    }

    /// The next step, and all of them.
    fn of(snapshot: &Snapshot) -> (StepName, Vec<StepName>) {
        let steps = steps(&facts(snapshot));
        (steps.next.as_ref().unwrap().step, names(&steps))
    }

    #[test]
    fn each_holder_has_its_next_step() {
        use StepName::{Ask, Evict, EvictNow, Wait};
        let runbook = vec![Wait, Ask, Evict, EvictNow];
        let (mut evicting, mut kept, mut endless, mut asked) = (held(50), held(50), held(0), held(100));
        (evicting.evicting, kept.kept, endless.remaining) = (true, true, NO_END);
        asked.asked = Some(FinishRequest::new(Duration::from_secs(20), "ann", "deploy"));
        let mut asked_long_ago = asked.clone();
        asked_long_ago.asked = Some(FinishRequest::new(Duration::ZERO, "ann", "deploy"));
        let table = [
            ("renewing", held(110), Ask, runbook.clone()),
            ("late", held(40), Evict, runbook.clone()),
            ("silent, and soon over", held(12), Wait, runbook.clone()),
            ("evicting", evicting, Wait, vec![Wait, EvictNow]),
            ("kept", kept, Wait, vec![Wait, EvictNow]),
            ("without an end", endless, EvictNow, vec![Wait, EvictNow]),
            ("asked", asked, Wait, runbook.clone()),
            ("asked, and its time is over", asked_long_ago, Evict, runbook),
        ];
        for (what, by, next, all) in table {
            assert_eq!(of(&report(Some(by))), (next, all), "{what}");
        }
        let snapshot = report(Some(held(110)));
        let gone = steps(&Facts { gone: &[0], oldest_wait_ms: None, ..facts(&snapshot) });
        assert_eq!((gone.next.as_ref().unwrap().step, names(&gone)), (EvictNow, vec![Wait, EvictNow]));
        assert!(gone.next.unwrap().consequence.contains("has ended"));
    }

    #[test]
    fn pauses_foreign_locks_and_what_cannot_be_read() {
        use StepName::{EvictForeign, Inspect, Resume, Wait};
        let mut paused = report(None);
        paused.paused_for = Some(Duration::from_secs(60));
        assert_eq!(of(&paused), (Resume, vec![Resume]));
        let mut foreign = report(None);
        let lock = ForeignLock::new("lock:report/42", "string", ValueHash::of(b"x"));
        foreign.foreign = vec![lock.clone()];
        assert_eq!(of(&foreign), (EvictForeign, vec![Wait, EvictForeign]));
        foreign.foreign = vec![lock.expiring(Some(Duration::from_secs(5)))];
        assert_eq!(of(&foreign).0, Wait);
        assert_eq!(
            of(&Snapshot::unreadable("report/42".parse().unwrap(), "no number")),
            (Inspect, vec![Inspect])
        );
        assert_eq!(of(&report(None)), (Inspect, vec![Inspect]), "claims wait, and nobody holds it");
        let snapshot = report(Some(held(110)));
        let without = steps(&Facts { takes_orders: false, ..facts(&snapshot) });
        assert_eq!((without.next.as_ref().unwrap().step, names(&without)), (Wait, vec![Wait, Inspect]));
    }

    #[test]
    fn what_needs_nothing_has_no_steps() {
        let snapshot = report(Some(held(110)));
        let calm = || Facts { oldest_wait_ms: Some(WAIT_NOTICED_MS - 1), ..facts(&snapshot) };
        assert!(steps(&calm()).next.is_none());
        assert!(steps(&Facts { is_stuck: true, ..calm() }).next.is_some());
        assert!(steps(&Facts { is_unusual: true, ..calm() }).next.is_some());
        assert!(steps(&Facts { is_deadlocked: true, ..calm() }).next.is_some());
    }

    #[test]
    fn commands_are_whole_and_quoted() {
        let mut snapshot = report(Some(held(110)));
        snapshot.resource = leasehold_core::Resource::new("report", "it's $(rm)").unwrap();
        let steps = steps(&facts(&snapshot));
        let commands: Vec<_> = steps.all.iter().filter_map(|step| step.command.as_deref()).collect();
        let expected = [
            r"leasehold ask 'report/it'\''s $(rm)' --token 123 --by 30s --reason WHY",
            r"leasehold evict 'report/it'\''s $(rm)' --token 123 --reason WHY",
            r"leasehold evict 'report/it'\''s $(rm)' --token 123 --now --two-may-run --even-if-alive --reason WHY",
        ];
        assert_eq!(commands, expected);
        assert!(steps.all.iter().skip(1).all(|step| step.token.is_some_and(|token| token.0.get() == 123)));
    }
}
