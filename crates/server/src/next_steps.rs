//! What can be done about a resource, and what to do now: the same options as in `leasehold why`.
//!
//! 1. Those about each holder whose process has ended, the one with the most time left first: wait, evict now.
//! 2. If an operator has paused the resource: resume it.
//! 3. Then those about the other holder with the most time left, because it keeps the resource for longest: wait, ask, evict at the end of
//!    its lease, evict now.
//! 4. Then those about locks of other programs.
//!
//! The next step is the mildest one that helps. It never makes two holders work at the same time: that needs somebody who knows that the
//! work has ended.

use std::time::Duration;

use leasehold_api::{
    fields::TokenText,
    overview::{GONE_MAX, StepBody, StepName},
};
use leasehold_core::{ForeignLock, HeldBy, Holder, HolderState, Snapshot};
use leasehold_support::text::{printable, quoted, span};

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
    /// The positions of holders whose processes have ended, the one with the most time left first.
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

    /// The holders whose processes have ended.
    fn gone(&self) -> impl Iterator<Item = &HeldBy> {
        self.gone.iter().filter_map(|position| self.snapshot.holders.get(*position))
    }

    /// Of the other holders, the one that keeps the resource for longest.
    fn holder(&self) -> Option<&HeldBy> {
        let holders = self.snapshot.holders.iter().enumerate();
        let there = holders.filter(|(position, _)| !self.gone.contains(position));
        there.map(|(_, by)| by).max_by_key(|by| by.remaining)
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
        let step = inspect(facts, "Its data in the store cannot be read. See what is stored there.", "show");
        return Steps { next: Some(step.clone()), all: vec![step] };
    }
    let mut all: Vec<StepBody> = Vec::new();
    for by in facts.gone().take(GONE_MAX) {
        all.extend(of_holder(facts, by, true));
    }
    all.extend(resume(facts));
    if let Some(by) = facts.holder() {
        all.extend(of_holder(facts, by, false));
    }
    for lock in &facts.snapshot.foreign {
        all.extend(foreign(facts, lock));
    }
    if all.is_empty() || !facts.takes_orders {
        all.push(inspect(facts, "See who holds it, who waits, and until when.", "why"));
    }
    let (wanted, token) = next(facts);
    let is_next = |step: &&StepBody| step.step == wanted && (token.is_none() || step.token == token);
    let next = all.iter().find(is_next).or(all.first()).cloned();
    Steps { all, next }
}

/// Which step comes next, and the grant that it is for.
fn next(facts: &Facts<'_>) -> (StepName, Option<TokenText>) {
    let of = |by: &HeldBy, is_gone| (next_of(facts, by, is_gone), Some(TokenText(by.token)));
    // The first of them has the most time left: if it can be waited for, all can.
    let gone = facts.gone().next();
    if let Some(next) = gone.map(|by| of(by, true)).filter(|(step, _)| *step != StepName::Wait) {
        return next;
    }
    if facts.snapshot.paused_for.is_some() {
        return (StepName::Resume, None);
    }
    if let Some(by) = gone {
        return of(by, true);
    }
    if let Some(lock) = facts.snapshot.foreign.first() {
        return (if lock.remaining.is_some() { StepName::Wait } else { StepName::EvictForeign }, None);
    }
    facts.holder().map_or((StepName::Inspect, None), |by| of(by, false))
}

/// What to do about this holder.
fn next_of(facts: &Facts<'_>, by: &HeldBy, is_gone: bool) -> StepName {
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
        "An operator paused it; the pause ends in {}. Resume it earlier if its reason is gone.",
        span(left)
    );
    let mut step =
        step(StepName::Resume, text, "Claims are granted again at once, the first in the queue first.");
    step.command = facts.takes_orders.then(|| facts.command("resume", &options));
    step.token = newest.map(TokenText);
    Some(step)
}

/// What can be done about this holder.
fn of_holder(facts: &Facts<'_>, by: &HeldBy, is_gone: bool) -> Vec<StepBody> {
    let mut all = vec![wait(by, is_gone)];
    if facts.takes_orders {
        all.extend(orders(facts, by, is_gone));
    }
    all
}

/// `nightly (pid 12 on a)`
fn named(by: &Holder) -> String {
    let Holder { host, pid, label, .. } = by;
    let process = match (*pid, host.is_empty()) {
        (0, true) => String::new(),
        (0, false) => format!("a process on {host}"),
        (pid, true) => format!("pid {pid}"),
        (pid, false) => format!("pid {pid} on {host}"),
    };
    let name = match (label.is_empty(), process.is_empty()) {
        (true, true) => "the holder".to_owned(),
        (true, false) => process,
        (false, true) => label.clone(),
        (false, false) => format!("{label} ({process})"),
    };
    printable(&name)
}

/// That it ends by itself.
fn wait(by: &HeldBy, is_gone: bool) -> StepBody {
    let (left, name) = (span(by.remaining), named(&by.holder));
    let text = match by.state() {
        _ if by.kept => format!("Wait: {name} has released it, and it opens by itself in {left}."),
        _ if has_no_end(by) => format!("Wait until {name} releases it: the lease has no end."),
        _ if is_gone => {
            format!("Wait: the process of {name} does not exist any more, and its lease ends in {left}.")
        }
        _ if by.evicting => format!("Wait: {name} is being evicted, and its lease ends in {left}."),
        _ if by.asked.is_some() => format!("Wait: {name} has been asked to finish."),
        Some(HolderState::Silent) => {
            format!("Wait: {name} has stopped renewing, and its lease ends in {left}.")
        }
        Some(HolderState::Late) => {
            format!("Wait: a renewal of {name} is overdue, and its lease ends in {left} if none comes.")
        }
        Some(HolderState::Renewing) | None => {
            format!("Wait until {name} has done its work. If it stops renewing, its lease ends in {left}.")
        }
    };
    let mut wait = step(StepName::Wait, text, "Nothing is interrupted, and two never work at the same time.");
    wait.token = Some(TokenText(by.token));
    wait
}

const TWO_MAY_RUN: &str = "Two may run: the next claim is granted at once, even if the work of this holder has not ended. Be sure that it has.";

fn orders(facts: &Facts<'_>, by: &HeldBy, is_gone: bool) -> Vec<StepBody> {
    let name = named(&by.holder);
    let about = |mut step: StepBody, command: String| {
        (step.command, step.token) = (Some(command), Some(TokenText(by.token)));
        step
    };
    let evict_now = |text: String, consequence: &str, options: &[&str]| {
        let options = [&["--now", "--two-may-run"], options].concat();
        about(step(StepName::EvictNow, text, consequence), facts.order("evict", by, &options))
    };
    if by.kept {
        let text =
            format!("Open it before that time, once you know that the work of {name} may be repeated.");
        return vec![evict_now(text, "The next claim is granted at once.", &[])];
    }
    if is_gone {
        let text = format!("Evict {name} now: its process does not exist any more.");
        let consequence = "The next claim is granted at once. The process that held it has ended; what it started may still run.";
        return vec![evict_now(text, consequence, &[])];
    }
    let ended = format!("Evict {name} now, once you know that its work has ended.");
    if has_no_end(by) {
        return vec![evict_now(ended, TWO_MAY_RUN, &[])];
    }
    let at_once = evict_now(ended, TWO_MAY_RUN, &["--even-if-alive"]);
    if by.evicting {
        return vec![at_once];
    }
    let ask = step(
        StepName::Ask,
        format!("Ask {name} to finish."),
        "The holder is told and keeps the lease. It may finish early, or not.",
    );
    let evict = step(
        StepName::Evict,
        format!("Evict {name} at the end of its lease, once you know that it is dead or stuck."),
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
        assert!(steps.all.iter().all(|step| step.token.is_some_and(|token| token.0.get() == 123)));
        assert!(steps.all.iter().all(|step| step.text.contains("pid 7 on host")), "{steps:?}");
    }

    /// A semaphore whose live holder has more time left than the one that has died.
    #[test]
    fn holders_whose_process_has_ended_come_first_each_with_its_token() {
        let holder = |token: u64, remaining_s: u64| {
            let pid = u32::try_from(token).unwrap();
            let holder = Arc::new(Holder::new("vm", pid, "nightly"));
            let mut by = HeldBy::new(holder, FencingToken::new(token).unwrap(), 1);
            (by.remaining, by.ttl) = (Duration::from_secs(remaining_s), Some(Duration::from_secs(30)));
            by
        };
        let mut snapshot = report(Some(holder(1, 29)));
        snapshot.holders.extend([holder(2, 18), holder(3, 20)]);
        let of = |snapshot: &Snapshot, gone: &[usize]| {
            let steps = steps(&Facts { gone, oldest_wait_ms: None, ..facts(snapshot) });
            let told = |step: &StepBody| (step.step, step.token.map(|token| token.0.get()));
            (told(steps.next.as_ref().unwrap()), steps.all.iter().map(told).collect::<Vec<_>>(), steps)
        };
        let (next, all, steps) = of(&snapshot, &[2, 1]);
        assert_eq!(next, (StepName::EvictNow, Some(3)));
        use StepName::{Ask, Evict, EvictNow, Resume, Wait};
        let gone = [(Wait, Some(3)), (EvictNow, Some(3)), (Wait, Some(2)), (EvictNow, Some(2))];
        let live = [(Wait, Some(1)), (Ask, Some(1)), (Evict, Some(1)), (EvictNow, Some(1))];
        assert_eq!(all, [gone.as_slice(), &live].concat());
        for step in &steps.all {
            let token = step.token.unwrap().0;
            assert!(step.text.contains(&format!("nightly (pid {token} on vm)")), "{step:?}");
            assert!(
                step.command.as_ref().is_none_or(|command| command.contains(&format!("--token {token} ")))
            );
        }
        let Steps { next, .. } = steps;
        assert_eq!(
            next.unwrap().text,
            "Evict nightly (pid 3 on vm) now: its process does not exist any more."
        );
        // A pause is no reason to leave it there; but what is soon over needs no order.
        snapshot.paused_for = Some(Duration::from_secs(600));
        assert_eq!(of(&snapshot, &[2, 1]).0, (EvictNow, Some(3)));
        snapshot.holders[1].remaining = SOON;
        snapshot.holders[2].remaining = SOON;
        assert_eq!(of(&snapshot, &[2, 1]).0.0, Resume);
        snapshot.paused_for = None;
        assert_eq!(of(&snapshot, &[2, 1]).0, (Wait, Some(3)));
    }

    #[test]
    fn a_holder_is_named_by_what_it_says_of_itself() {
        let named = |host: &str, pid, label: &str| named(&Holder::new(host, pid, label));
        assert_eq!(named("vm", 12, "nightly"), "nightly (pid 12 on vm)");
        assert_eq!(named("vm", 12, ""), "pid 12 on vm");
        assert_eq!(named("vm", 0, "nightly"), "nightly (a process on vm)");
        assert_eq!(named("", 0, ""), "the holder");
        assert!(!named("vm", 1, "a\u{202e}b").contains('\u{202e}'));
    }
}
