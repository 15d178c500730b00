//! What looks like a leak. Pure: what was seen goes in, findings come out.

use std::{collections::BTreeMap, time::Duration};

use leasehold::{HeldBy, Holder, Leak, Resource, Snapshot, Timestamp};
use serde::Serialize;

use crate::{
    text,
    view::{self, WhoView},
};

/// Of one kind, so many have to be held before their median says what is usual.
const USUAL_FROM: usize = 5;
/// Far over the usual: this many times the median, and never less than a minute.
const FAR_OVER: u32 = 10;
const FAR_OVER_MIN: Duration = Duration::from_secs(60);

/// Something that looks like a leak.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    /// A stable name, for programs.
    pub(crate) leak: &'static str,
    /// The resource, or the key of the store.
    pub(crate) name: String,
    pub(crate) holder: Option<WhoView>,
    #[serde(skip)]
    pub(crate) who: String,
    pub(crate) token: Option<String>,
    pub(crate) lasting_ms: Option<u64>,
    pub(crate) say: String,
}

impl Finding {
    fn of(
        leak: &'static str,
        resource: &Resource,
        holder: &Holder,
        lasting: Duration,
        say: String,
    ) -> Finding {
        Finding {
            leak,
            name: resource.to_string(),
            holder: Some(WhoView::of(holder)),
            who: text::holder(holder),
            token: None,
            lasting_ms: Some(view::millis(lasting)),
            say,
        }
    }

    fn held(leak: &'static str, resource: &Resource, held: &HeldBy, say: String) -> Finding {
        let finding = Finding::of(leak, resource, &held.holder, held.held_for, say);
        Finding { token: Some(held.token.to_string()), ..finding }
    }

    /// A key that would never end, ours or another library's.
    pub(crate) fn endless(leak: &'static str, found: Leak) -> Finding {
        let idle = found.idle.map_or(String::new(), |idle| format!(", not used for {}", text::span(idle)));
        let say = format!("a {} without a ttl{idle}: it never ends by itself", text::printable(&found.form));
        let lasting_ms = found.idle.map(view::millis);
        Finding { leak, name: found.key, holder: None, who: String::new(), token: None, lasting_ms, say }
    }
}

/// Those who are there: what is only kept closed is nobody's fault.
fn holders(all: &[Snapshot]) -> impl Iterator<Item = (&Resource, &HeldBy)> {
    all.iter()
        .flat_map(|seen| seen.holders.iter().map(|held| (&seen.resource, held)))
        .filter(|(_, held)| !held.kept)
}

/// Holders over a stated time, or far over what is usual for their kind.
pub(crate) fn over_time(all: &[Snapshot], over: Duration) -> Vec<Finding> {
    let mut by_kind: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for (resource, held) in holders(all) {
        by_kind.entry(resource.kind()).or_default().push(held.held_for);
    }
    let usual = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        (times.len() >= USUAL_FROM).then(|| times[times.len() / 2])
    };
    let usual: BTreeMap<_, _> = by_kind.iter_mut().map(|(kind, times)| (*kind, usual(times))).collect();
    let judge = |(resource, held): (&Resource, &HeldBy)| {
        let median = usual.get(resource.kind()).copied().flatten();
        let far = median.map(|median| (median, (median * FAR_OVER).max(FAR_OVER_MIN)));
        let say = match far {
            _ if held.held_for > over => format!("held for longer than {}", text::span(over)),
            Some((median, far)) if held.held_for > far => {
                format!("held far longer than is usual for {}: {}", resource.kind(), text::span(median))
            }
            _ => return None,
        };
        Some(Finding::held("over_time", resource, held, say))
    };
    holders(all).filter_map(judge).collect()
}

/// Holders on this host whose process is gone.
pub(crate) fn process_gone(all: &[Snapshot], host: &str, lives: impl Fn(u32) -> bool) -> Vec<Finding> {
    let here = holders(all).filter(|(_, held)| held.holder.host == host && held.holder.pid != 0);
    let gone = here.filter(|(_, held)| !lives(held.holder.pid));
    gone.map(|(resource, held)| {
        let say = format!("its process is gone; it ends by itself in {}", text::span(held.remaining));
        Finding::held("process_gone", resource, held, say)
    })
    .collect()
}

/// The head of a line that could be granted: it has only to ask.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) resource: Resource,
    holder: Holder,
    arrived: Timestamp,
    waited: Duration,
}

impl Head {
    /// Of a resource that was looked at now.
    pub(crate) fn of(seen: &Snapshot, now: Timestamp) -> Option<Head> {
        let first = seen.queue.first()?;
        let held: u64 = seen.holders.iter().map(|held| u64::from(held.weight)).sum();
        let listed = seen.holders.len() == seen.holder_count as usize;
        let room = listed && held + u64::from(first.weight) <= u64::from(seen.capacity);
        (room && seen.paused_for.is_none()).then(|| Head {
            resource: seen.resource.clone(),
            holder: Holder::clone(&first.holder),
            arrived: now.before(first.waited),
            waited: first.waited,
        })
    }

    /// Whether it is the same place, not another one of the same process.
    pub(crate) fn is_still(&self, later: &Head) -> bool {
        const SLACK: Duration = Duration::from_millis(500);
        let apart = self.arrived.until(later.arrived).max(later.arrived.until(self.arrived));
        self.resource == later.resource && self.holder == later.holder && apart < SLACK
    }

    pub(crate) fn finding(&self, idle: Duration) -> Finding {
        let say = format!("the head of the line could have had it for {} and does not ask", text::span(idle));
        Finding::of("dead_head", &self.resource, &self.holder, self.waited, say)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{FencingToken, QueueEntry};
    use std::sync::Arc;

    fn held(name: &str, pid: u32, seconds: u64) -> Snapshot {
        let mut seen = Snapshot::empty(name.parse().unwrap());
        let who = Arc::new(Holder::new("here", pid, ""));
        let mut by = HeldBy::new(who, FencingToken::new(7).unwrap(), 1);
        by.held_for = Duration::from_secs(seconds);
        (seen.capacity, seen.holder_count) = (1, 1);
        seen.holders.push(by);
        seen
    }

    fn waits(mut seen: Snapshot, waited: u64) -> Snapshot {
        let who = Arc::new(Holder::new("there", 9, "w"));
        seen.queue.push(QueueEntry::new(who, 1, Duration::from_secs(waited), Duration::from_secs(5)));
        (seen.capacity, seen.queue_length) = (1, 1);
        seen
    }

    fn names(found: &[Finding]) -> Vec<&str> {
        found.iter().map(|finding| finding.name.as_str()).collect()
    }

    #[test]
    fn over_time_is_over_the_limit_or_far_over_the_median() {
        let hour = Duration::from_secs(3600);
        let few = [held("report/1", 1, 3601), held("report/2", 1, 3599)];
        assert_eq!(names(&over_time(&few, hour)), ["report/1"]);
        let mut many: Vec<_> = (0..5).map(|n| held(&format!("report/{n}"), 1, 10)).collect();
        many.push(held("report/slow", 1, 101));
        many.push(held("import/slow", 1, 101)); // of another kind, of which there is but one
        assert_eq!(names(&over_time(&many, hour)), ["report/slow"]);
        many[5].holders[0].held_for = Duration::from_secs(99);
        assert!(over_time(&many, hour).is_empty());
        many[5].holders[0].held_for = hour * 2;
        many[5].holders[0].kept = true;
        assert!(over_time(&many, hour).is_empty(), "what is kept closed is nobody's");
    }

    #[test]
    fn only_processes_of_this_host_can_be_told_dead() {
        let all = [held("report/1", 1, 5), held("report/2", 2, 5), held("report/3", 0, 5)];
        assert_eq!(names(&process_gone(&all, "here", |pid| pid == 1)), ["report/2"]);
        assert!(process_gone(&all, "elsewhere", |_| false).is_empty());
    }

    #[test]
    fn a_dead_head_is_the_same_place_with_room_before_it() {
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let free = Snapshot::empty("report/1".parse().unwrap());
        assert!(Head::of(&waits(held("report/1", 1, 5), 3), at(100)).is_none(), "someone holds it");
        let first = Head::of(&waits(free.clone(), 3), at(100)).unwrap();
        let same = Head::of(&waits(free.clone(), 13), at(110)).unwrap();
        let another = Head::of(&waits(free.clone(), 2), at(110)).unwrap();
        assert!(first.is_still(&same) && !first.is_still(&another));
        let mut paused = waits(free, 3);
        paused.paused_for = Some(Duration::from_secs(1));
        assert!(Head::of(&paused, at(100)).is_none());
    }
}
