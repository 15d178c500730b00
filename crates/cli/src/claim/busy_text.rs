//! Sentences about what holds a resource, for a run that waits or gives up.

use std::time::Duration;

use leasehold::{Busy, HeldBy};

use crate::{
    holder_state::{HolderState, holder_state},
    text::{self, span},
    view,
};

/// `held by 7@host nightly (renewing; free within 29s if it dies)`
pub(super) fn held_by(by: &HeldBy) -> String {
    let (who, left) = (text::holder(&by.holder), span(by.remaining));
    if view::left(by).is_none() {
        return format!("held by {who} (its lease has lost its expiry and has no end)");
    }
    if by.kept {
        return format!("closed for {left} more after the release by {who}");
    }
    let last_renewed = || span(by.ttl.unwrap_or_default().saturating_sub(by.remaining));
    let state = match holder_state(by) {
        _ if by.evicting => format!("evicted; free within {left}"),
        None => format!("free within {left} if it dies"),
        Some(HolderState::Renewing) => format!("renewing; free within {left} if it dies"),
        Some(HolderState::Late) => {
            format!("late, last renewed {} ago; free within {left} unless it renews", last_renewed())
        }
        Some(HolderState::Silent) => {
            format!("silent for {}; free within {left} unless it renews", last_renewed())
        }
    };
    format!("held by {who} ({state})")
}

/// `held by another program's lock (key lock:x, no expiry)`
pub(super) fn held_by_foreign(key: &str, remaining: Option<Duration>) -> String {
    let key = text::printable(key);
    match remaining {
        Some(left) => format!("held by another program's lock (key {key}, {} left)", span(left)),
        None => format!("held by another program's lock (key {key}, no expiry)"),
    }
}

/// Why a claim was not granted. A paused resource is described by [`text::paused`].
pub(super) fn busy(busy: &Busy) -> String {
    let mut line = match (busy.holders.first(), &busy.foreign) {
        (Some(by), _) => held_by(by),
        (None, Some(lock)) => held_by_foreign(&lock.key, lock.remaining),
        (None, None) => "another claim holds it".to_owned(),
    };
    if busy.holders.len() > 1 {
        line.push_str(&format!(" and {} more", busy.holders.len() - 1));
    }
    if busy.ahead > 0 {
        line.push_str(&format!(", {} ahead in the queue", busy.ahead));
    }
    line
}

/// `, we are next` or `, 2 ahead of us`
pub(super) fn ahead(ahead: Option<usize>) -> String {
    match ahead {
        None => String::new(),
        Some(0) => ", we are next".to_owned(),
        Some(ahead) => format!(", {ahead} ahead of us"),
    }
}

/// `5m 3s`
pub(crate) fn human(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold::{FencingToken, Holder};

    use super::*;

    #[test]
    fn a_holder_is_described_with_its_state() {
        let mut by =
            HeldBy::new(Arc::new(Holder::new("web-1", 42, "nightly")), FencingToken::new(7).unwrap(), 1);
        by.remaining = Duration::from_secs(29);
        assert_eq!(held_by(&by), "held by 42@web-1 nightly (free within 29s if it dies)");
        by.ttl = Some(Duration::from_secs(30));
        assert_eq!(held_by(&by), "held by 42@web-1 nightly (renewing; free within 29s if it dies)");
        by.remaining = Duration::from_secs(12);
        let late = "held by 42@web-1 nightly (late, last renewed 18s ago; free within 12s unless it renews)";
        assert_eq!(held_by(&by), late);
        by.remaining = Duration::from_secs(4);
        let silent = "held by 42@web-1 nightly (silent for 26s; free within 4.0s unless it renews)";
        assert_eq!(held_by(&by), silent);
        by.evicting = true;
        assert_eq!(held_by(&by), "held by 42@web-1 nightly (evicted; free within 4.0s)");
        by.kept = true;
        assert_eq!(held_by(&by), "closed for 4.0s more after the release by 42@web-1 nightly");
        let mut endless = by.clone();
        endless.remaining = Duration::from_secs(365 * 86_400);
        assert_eq!(
            held_by(&endless),
            "held by 42@web-1 nightly (its lease has lost its expiry and has no end)"
        );
        let of = |holders: Vec<HeldBy>, ahead| {
            let mut of = Busy::default();
            (of.holders, of.ahead) = (holders, ahead);
            busy(&of)
        };
        assert_eq!(of(vec![], 0), "another claim holds it");
        assert!(of(vec![by.clone(), by], 2).ends_with("nightly and 1 more, 2 ahead in the queue"));
    }
}
