//! What stands out about a holder: one word each for tables, and a sentence for `show` and `why`.

use leasehold::{HeldBy, Snapshot};

use crate::{
    holder_state::{HolderState, holder_state},
    table::Style,
    text,
    this_host::ProcessTable,
};

/// What stands out about a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    /// Its process has ended; it was on this host.
    Gone,
    /// It should have stopped its work by now.
    Silent,
    /// A renewal is overdue.
    Late,
    /// An operator evicts it at its expiry.
    Evicting,
    /// An operator has asked it to finish.
    Asked,
    /// It has released the resource, which stays closed for a while.
    Kept,
}

impl Mark {
    /// One word for people and for programs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Mark::Gone => "gone",
            Mark::Silent => HolderState::Silent.as_str(),
            Mark::Late => HolderState::Late.as_str(),
            Mark::Evicting => "evicting",
            Mark::Asked => "asked",
            Mark::Kept => "kept",
        }
    }

    pub(crate) const fn style(self) -> Style {
        match self {
            Mark::Gone | Mark::Silent => Style::Bad,
            Mark::Late | Mark::Evicting | Mark::Asked => Style::Warn,
            Mark::Kept => Style::Dim,
        }
    }

    /// What the mark means for this holder.
    pub(crate) fn meaning(self, held: &HeldBy) -> String {
        match self {
            Mark::Gone => "its process on this host is gone".to_owned(),
            Mark::Silent => format!("{}: it is dead, or has stopped its work", overdue(held)),
            Mark::Late => {
                format!("{}: it is slow, stopped, cut off or dead, or it never renews", overdue(held))
            }
            Mark::Evicting => "it is being evicted and is not renewed any more".to_owned(),
            Mark::Asked => "it has been asked to finish".to_owned(),
            Mark::Kept => "it has released the resource, which stays closed".to_owned(),
        }
    }
}

fn overdue(held: &HeldBy) -> String {
    let since = held.ttl.unwrap_or_default().saturating_sub(held.remaining);
    format!("it last renewed {} ago", text::span(since))
}

/// The state of a holder. `None` for a holder that is being evicted: it cannot renew, dead or alive.
pub(crate) fn state(held: &HeldBy) -> Option<HolderState> {
    holder_state(held).filter(|_| !held.evicting)
}

/// All marks of a holder, the worst first.
pub(crate) fn of(held: &HeldBy, processes: &ProcessTable) -> Vec<Mark> {
    let of_state = match state(held) {
        Some(HolderState::Silent) => Some(Mark::Silent),
        Some(HolderState::Late) => Some(Mark::Late),
        Some(HolderState::Renewing) | None => None,
    };
    let is_gone = !held.kept && processes.is_gone(&held.holder);
    let marks = [
        is_gone.then_some(Mark::Gone),
        of_state.filter(|_| !is_gone),
        held.evicting.then_some(Mark::Evicting),
        (held.asked.is_some() && !held.kept).then_some(Mark::Asked),
        held.kept.then_some(Mark::Kept),
    ];
    marks.into_iter().flatten().collect()
}

/// The marks of all listed holders, each once, the worst first.
pub(crate) fn of_all(snapshot: &Snapshot, processes: &ProcessTable) -> Vec<Mark> {
    let mut marks: Vec<_> = snapshot.holders.iter().flat_map(|held| of(held, processes)).collect();
    marks.sort_unstable();
    marks.dedup();
    marks
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{FencingToken, FinishRequest};
    use std::{sync::Arc, time::Duration};

    fn held(remaining: u64) -> HeldBy {
        let holder = Arc::new(leasehold::Holder::new("here", 7, ""));
        let mut by = HeldBy::new(holder, FencingToken::new(1).unwrap(), 1);
        (by.ttl, by.remaining) = (Some(Duration::from_secs(30)), Duration::from_secs(remaining));
        by
    }

    #[test]
    fn each_holder_has_the_marks_of_its_state() {
        let alive = ProcessTable::of("here", |_| true);
        let marks = |held: &HeldBy| of(held, &alive).into_iter().map(Mark::as_str).collect::<Vec<_>>();
        assert_eq!(marks(&held(25)), [""; 0]);
        assert_eq!(marks(&held(10)), ["late"]);
        assert_eq!(marks(&held(2)), ["silent"]);
        let mut evicted = held(2);
        evicted.evicting = true;
        evicted.asked = Some(FinishRequest::new(Duration::ZERO, "anna", "x"));
        assert_eq!(marks(&evicted), ["evicting", "asked"], "an evicted holder cannot renew");
        let mut kept = held(2);
        kept.kept = true;
        assert_eq!(marks(&kept), ["kept"]);
    }

    #[test]
    fn a_holder_whose_process_is_gone_is_not_called_late_too() {
        let dead = ProcessTable::of("here", |_| false);
        assert_eq!(of(&held(2), &dead), [Mark::Gone]);
        let mut kept = held(2);
        kept.kept = true;
        assert_eq!(of(&kept, &dead), [Mark::Kept], "who released it may have ended");
    }
}
