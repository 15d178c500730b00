//! The rules of `leasehold leaks`. They are pure functions from snapshots to suspected leaks.

mod keys;

use std::{collections::BTreeMap, time::Duration};

use leasehold::{ForeignLock, HeldBy, Holder, Leak, Resource, Snapshot, Timestamp};
use serde::Serialize;

use crate::{
    foreign, text,
    this_host::ProcessTable,
    view::{self, ProcessView},
};

/// A kind needs this many holders before their median counts.
const MEDIAN_FROM: usize = 5;
/// "Far over the median" is this many times the median, and at least `FAR_OVER_MIN`.
const FAR_OVER: u32 = 10;
const FAR_OVER_MIN: Duration = Duration::from_secs(60);

/// The rule that finds the lock of another program.
const FOREIGN: &str = "foreign_no_ttl";

/// A lease, a waiter or a key that looks like a leak.
#[derive(Debug, Serialize)]
pub(crate) struct SuspectedLeak {
    /// The rule that found it: a stable name, for programs.
    pub(crate) leak: &'static str,
    /// The name of the resource, or the key in the store.
    pub(crate) name: String,
    pub(crate) holder: Option<ProcessView>,
    /// The holder or the waiter as text, for the table.
    #[serde(skip)]
    pub(crate) holder_text: String,
    pub(crate) token: Option<String>,
    pub(crate) lasting_ms: Option<u64>,
    pub(crate) say: String,
    /// The words of the order that clears it, without the program and the reason.
    #[serde(skip)]
    pub(crate) order: Vec<String>,
    /// The same as a command line to copy.
    pub(crate) command: Option<String>,
}

/// The words of an order to this resource.
fn order(verb: &str, resource: &Resource, options: &[&str]) -> Vec<String> {
    let name = resource.to_string();
    let words = [&[verb, name.as_str()], options].concat();
    words.into_iter().map(str::to_owned).collect()
}

/// The words of the order that ends this lease at once.
fn evict_now(resource: &Resource, held: &HeldBy) -> Vec<String> {
    order("evict", resource, &["--token", &held.token.to_string(), "--now", "--two-may-run"])
}

impl SuspectedLeak {
    fn of(
        leak: &'static str,
        resource: &Resource,
        holder: &Holder,
        lasting: Duration,
        say: String,
    ) -> SuspectedLeak {
        SuspectedLeak {
            leak,
            name: resource.to_string(),
            holder: Some(ProcessView::of(holder)),
            holder_text: text::holder(holder),
            token: None,
            lasting_ms: Some(view::millis(lasting)),
            say,
            order: Vec::new(),
            command: None,
        }
    }

    fn held(leak: &'static str, resource: &Resource, held: &HeldBy, say: String) -> SuspectedLeak {
        let leak = SuspectedLeak::of(leak, resource, &held.holder, held.held_for, say);
        SuspectedLeak { token: Some(held.token.to_string()), ..leak }
    }

    fn ordered(self, order: Vec<String>) -> SuspectedLeak {
        SuspectedLeak { order, ..self }
    }

    /// Something that is not known to belong to a process.
    fn unowned(leak: &'static str, name: String, say: String) -> SuspectedLeak {
        SuspectedLeak {
            leak,
            name,
            holder: None,
            holder_text: String::new(),
            token: None,
            lasting_ms: None,
            say,
            order: Vec::new(),
            command: None,
        }
    }

    /// The lock of another program that holds this resource.
    fn foreign(resource: &Resource, lock: &ForeignLock, say: String) -> SuspectedLeak {
        let order = foreign::evict_words(resource, lock);
        SuspectedLeak::unowned(FOREIGN, resource.to_string(), say).ordered(order)
    }

    /// Whether it is the lock of another program.
    pub(crate) fn is_foreign(&self) -> bool {
        self.leak == FOREIGN
    }

    /// A key of another library without a ttl, which holds no resource of leasehold.
    pub(crate) fn of_other_library(found: Leak) -> SuspectedLeak {
        let say =
            format!("{}: end its program, then delete the key with its own tools", never_expires(&found));
        let lasting_ms = found.idle.map(view::millis);
        SuspectedLeak { lasting_ms, ..SuspectedLeak::unowned(FOREIGN, found.key, say) }
    }

    /// A key of leasehold without a ttl: the lock of another program under our key, a lease that lost its ttl,
    /// or a record that holds nothing.
    pub(crate) fn without_ttl(found: Leak, all: &[Snapshot]) -> SuspectedLeak {
        let never = never_expires(&found);
        let lasting_ms = found.idle.map(view::millis);
        for snapshot in all {
            if let Some(lock) = snapshot.foreign.iter().find(|lock| lock.key == found.key) {
                let say = format!("held by a lock of another program: {never}");
                return SuspectedLeak { lasting_ms, ..SuspectedLeak::foreign(&snapshot.resource, lock, say) };
            }
        }
        let resource = keys::resource_in(&found.key);
        let snapshot = all.iter().find(|snapshot| Some(&snapshot.resource) == resource.as_ref());
        let holder = |snapshot| Some((snapshot, keys::holder_of_key(snapshot, &found.key)?));
        let (say, order) = match snapshot.and_then(holder) {
            Some((snapshot, held)) => (never, evict_now(&snapshot.resource, held)),
            None if snapshot.is_some() => (format!("{never}; see leasehold show RESOURCE"), Vec::new()),
            None => (
                format!("{never}; it holds nothing: the next claim gives it a ttl, or delete it"),
                Vec::new(),
            ),
        };
        SuspectedLeak { lasting_ms, ..SuspectedLeak::unowned("no_ttl", found.key, say).ordered(order) }
    }
}

fn never_expires(found: &Leak) -> String {
    let idle = found.idle.map_or(String::new(), |idle| format!(", last used {} ago", text::span(idle)));
    format!("a {} without a ttl{idle}: it never expires", text::printable(&found.form))
}

/// Locks of other programs that hold a resource and have no end, without those whose key was found already.
pub(crate) fn foreign_without_end(all: &[Snapshot], found: &[Leak]) -> Vec<SuspectedLeak> {
    let is_new = |lock: &&ForeignLock| !found.iter().any(|leak| leak.key == lock.key);
    let endless = all.iter().flat_map(|snapshot| {
        let locks = snapshot.foreign.iter().filter(|lock| lock.remaining.is_none()).filter(is_new);
        locks.map(|lock| (&snapshot.resource, lock))
    });
    let leak = |(resource, lock)| {
        let say = format!("held by {}: it never expires", foreign::name(lock));
        SuspectedLeak::foreign(resource, lock, say)
    };
    endless.map(leak).collect()
}

/// Resources whose data in the store is corrupt.
pub(crate) fn unreadable(all: &[Snapshot]) -> Vec<SuspectedLeak> {
    let corrupt = all.iter().filter_map(|snapshot| Some((snapshot, snapshot.unreadable.as_ref()?)));
    let leak = |(snapshot, why): (&Snapshot, &String)| {
        let say = format!("cannot be read: {why}");
        SuspectedLeak::unowned("unreadable", snapshot.resource.to_string(), say)
    };
    corrupt.map(leak).collect()
}

/// All holders. A resource that is only kept closed after a release is left out: it has no holder.
fn holders(all: &[Snapshot]) -> impl Iterator<Item = (&Resource, &HeldBy)> {
    all.iter()
        .flat_map(|snapshot| snapshot.holders.iter().map(|held| (&snapshot.resource, held)))
        .filter(|(_, held)| !held.kept)
}

/// Holders that have held for longer than `over`, or far longer than the median of their kind.
pub(crate) fn over_time(all: &[Snapshot], over: Duration) -> Vec<SuspectedLeak> {
    let mut by_kind: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for (resource, held) in holders(all) {
        by_kind.entry(resource.kind()).or_default().push(held.held_for);
    }
    let usual = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        (times.len() >= MEDIAN_FROM).then(|| times[times.len() / 2])
    };
    let usual: BTreeMap<_, _> = by_kind.iter_mut().map(|(kind, times)| (*kind, usual(times))).collect();
    let judge = |(resource, held): (&Resource, &HeldBy)| {
        let median = usual.get(resource.kind()).copied().flatten();
        let far = median.map(|median| (median, (median * FAR_OVER).max(FAR_OVER_MIN)));
        let say = match far {
            _ if held.held_for > over => format!("held for longer than {}", text::span(over)),
            Some((median, far)) if held.held_for > far => {
                format!(
                    "held far longer than the median of kind {}, which is {}",
                    resource.kind(),
                    text::span(median)
                )
            }
            _ => return None,
        };
        let ask = order("ask", resource, &["--token", &held.token.to_string(), "--by", "30s"]);
        Some(SuspectedLeak::held("over_time", resource, held, say).ordered(ask))
    };
    holders(all).filter_map(judge).collect()
}

/// Holders on this host whose process has ended. Processes of other hosts cannot be checked.
pub(crate) fn process_gone(all: &[Snapshot], processes: &ProcessTable) -> Vec<SuspectedLeak> {
    let gone = holders(all).filter(|(_, held)| processes.is_gone(&held.holder));
    gone.map(|(resource, held)| {
        let say = match view::left(held) {
            Some(left) => format!("its process is gone; the lease runs out in {}", text::span(left)),
            None => "its process is gone; the lease does not expire".to_owned(),
        };
        SuspectedLeak::held("process_gone", resource, held, say).ordered(evict_now(resource, held))
    })
    .collect()
}

/// The first waiter of a queue that would be granted the resource if it asked now.
#[derive(Clone, Debug)]
pub(crate) struct IdleQueueHead {
    pub(crate) resource: Resource,
    holder: Holder,
    arrived: Timestamp,
    waited: Duration,
}

impl IdleQueueHead {
    /// The head of the queue of this resource, if there is room for it and the resource is not paused.
    pub(crate) fn of(snapshot: &Snapshot, now: Timestamp) -> Option<IdleQueueHead> {
        let first = snapshot.queue.first()?;
        let held: u64 = snapshot.holders.iter().map(|held| u64::from(held.weight)).sum();
        let listed = snapshot.holders.len() == snapshot.holder_count as usize;
        let room = listed && held + u64::from(first.weight) <= u64::from(snapshot.capacity);
        (room && snapshot.paused_for.is_none()).then(|| IdleQueueHead {
            resource: snapshot.resource.clone(),
            holder: Holder::clone(&first.holder),
            arrived: now.before(first.waited),
            waited: first.waited,
        })
    }

    /// Whether both are the same waiter, and not two waiters of one process one after the other.
    pub(crate) fn is_same_waiter(&self, later: &IdleQueueHead) -> bool {
        // The arrival is computed from a duration that the store measured, so it varies a little.
        const SLACK: Duration = Duration::from_millis(500);
        let apart = self.arrived.until(later.arrived).max(later.arrived.until(self.arrived));
        self.resource == later.resource && self.holder == later.holder && apart < SLACK
    }

    pub(crate) fn to_leak(&self, idle: Duration) -> SuspectedLeak {
        let say = format!(
            "the first waiter could have been granted for {} and does not ask: it blocks the waiters behind it",
            text::span(idle)
        );
        SuspectedLeak::of("dead_head", &self.resource, &self.holder, self.waited, say)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{FencingToken, QueueEntry, ValueHash};
    use std::sync::Arc;

    fn held(name: &str, pid: u32, seconds: u64) -> Snapshot {
        let mut snapshot = Snapshot::empty(name.parse().unwrap());
        let holder = Arc::new(Holder::new("here", pid, ""));
        let mut by = HeldBy::new(holder, FencingToken::new(7).unwrap(), 1);
        by.held_for = Duration::from_secs(seconds);
        (snapshot.capacity, snapshot.holder_count) = (1, 1);
        snapshot.holders.push(by);
        snapshot
    }

    fn waits(mut snapshot: Snapshot, waited: u64) -> Snapshot {
        let holder = Arc::new(Holder::new("there", 9, "w"));
        snapshot.queue.push(QueueEntry::new(holder, 1, Duration::from_secs(waited), Duration::from_secs(5)));
        (snapshot.capacity, snapshot.queue_length) = (1, 1);
        snapshot
    }

    fn names(found: &[SuspectedLeak]) -> Vec<&str> {
        found.iter().map(|leak| leak.name.as_str()).collect()
    }

    #[test]
    fn over_time_is_over_the_limit_or_far_over_the_median() {
        let hour = Duration::from_secs(3600);
        let few = [held("report/1", 1, 3601), held("report/2", 1, 3599)];
        assert_eq!(names(&over_time(&few, hour)), ["report/1"]);
        let mut many: Vec<_> = (0..5).map(|n| held(&format!("report/{n}"), 1, 10)).collect();
        many.push(held("report/slow", 1, 101));
        many.push(held("import/slow", 1, 101)); // another kind, with a single holder
        assert_eq!(names(&over_time(&many, hour)), ["report/slow"]);
        many[5].holders[0].held_for = Duration::from_secs(99);
        assert!(over_time(&many, hour).is_empty());
        many[5].holders[0].held_for = hour * 2;
        many[5].holders[0].kept = true;
        assert!(over_time(&many, hour).is_empty(), "a resource that is kept closed has no holder");
    }

    #[test]
    fn only_processes_of_this_host_are_found_dead() {
        let all = [held("report/1", 1, 5), held("report/2", 2, 5), held("report/3", 0, 5)];
        let gone = process_gone(&all, &ProcessTable::of("here", |pid| pid == 1));
        assert_eq!(names(&gone), ["report/2"]);
        assert_eq!(gone[0].order.join(" "), "evict report/2 --token 7 --now --two-may-run");
        assert!(process_gone(&all, &ProcessTable::of("elsewhere", |_| false)).is_empty());
    }

    #[test]
    fn an_idle_head_is_the_same_waiter_twice_with_room_for_it() {
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let free = Snapshot::empty("report/1".parse().unwrap());
        assert!(IdleQueueHead::of(&waits(held("report/1", 1, 5), 3), at(100)).is_none(), "it is held");
        let first = IdleQueueHead::of(&waits(free.clone(), 3), at(100)).unwrap();
        let same = IdleQueueHead::of(&waits(free.clone(), 13), at(110)).unwrap();
        let another = IdleQueueHead::of(&waits(free.clone(), 2), at(110)).unwrap();
        assert!(first.is_same_waiter(&same) && !first.is_same_waiter(&another));
        let mut paused = waits(free, 3);
        paused.paused_for = Some(Duration::from_secs(1));
        assert!(IdleQueueHead::of(&paused, at(100)).is_none());
    }

    #[test]
    fn a_key_without_a_ttl_names_the_order_that_clears_it() {
        let key = "lock:v1:{report/42}:owner";
        let leak = || Leak::new(key, "string");
        let order = |all: &[Snapshot]| SuspectedLeak::without_ttl(leak(), all).order.join(" ");
        let mut foreign = Snapshot::empty("report/42".parse().unwrap());
        let hash = ValueHash::of(b"secret");
        foreign.foreign.push(ForeignLock::new(key, "string", hash));
        let found = SuspectedLeak::without_ttl(leak(), std::slice::from_ref(&foreign));
        assert_eq!((found.leak, found.name.as_str()), ("foreign_no_ttl", "report/42"));
        let expected = format!("evict report/42 --foreign --value-hash {hash} --two-may-run");
        assert_eq!(order(&[foreign]), expected);
        assert_eq!(
            order(&[held("report/42", 1, 5)]),
            "evict report/42 --token 7 --now --two-may-run",
            "a lease that lost its ttl"
        );
        assert_eq!(order(&[held("report/43", 1, 5)]), "", "another resource");
        assert!(SuspectedLeak::without_ttl(leak(), &[]).say.contains("it holds nothing"));
    }

    #[test]
    fn a_key_of_etcd_without_a_lease_names_the_holder_without_an_end() {
        let order = |key: &str, all: &[Snapshot]| {
            SuspectedLeak::without_ttl(Leak::new(key, "key"), all).order.join(" ")
        };
        let key = "leasehold/v1/lock/acme:report/42/3f";
        let mut endless = held("acme:report/42", 1, 5);
        assert_eq!(order(key, &[endless.clone()]), "", "the key of a waiter");
        endless.holders[0].remaining = Duration::from_secs(365 * 86_400);
        assert_eq!(order(key, &[endless.clone()]), "evict acme:report/42 --token 7 --now --two-may-run");
        assert_eq!(order("leasehold/v1/own/acme:report/42/3f", &[endless]), "", "no holder has such a key");
    }

    #[test]
    fn a_foreign_lock_without_an_end_is_found_once() {
        let mut foreign = Snapshot::empty("report/42".parse().unwrap());
        let lock = ForeignLock::new("k", "string", ValueHash::of(b"secret"));
        foreign.foreign = vec![lock.clone(), lock.clone().expiring(Some(Duration::from_secs(9)))];
        let found = foreign_without_end(std::slice::from_ref(&foreign), &[]);
        assert_eq!(names(&found), ["report/42"]);
        assert_eq!(found[0].order, foreign::evict_words(&foreign.resource, &lock));
        assert!(foreign_without_end(&[foreign], &[Leak::new("k", "string")]).is_empty(), "its key was found");
    }

    #[test]
    fn a_resource_that_cannot_be_read_is_found() {
        let all =
            [Snapshot::unreadable("report/1".parse().unwrap(), "key x is corrupt"), held("report/2", 1, 5)];
        let found = unreadable(&all);
        assert_eq!(names(&found), ["report/1"]);
        assert_eq!(found[0].say, "cannot be read: key x is corrupt");
    }
}
