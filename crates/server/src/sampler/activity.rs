//! How much has happened: changes by minute for the last hour, and how long holds were.
//!
//! Both are kept for each namespace and kind, because that is what a token may be limited to: the numbers of a limited caller are exact,
//! and tell nothing of others. They do not depend on the history, which a busy store fills in a second.

use std::collections::{HashMap, VecDeque};

use leasehold_api::{
    events::ChangeKind,
    overview::{LastHourBody, RATE_MINUTE_MS, RATE_MINUTES_MAX, RatesBody},
};
use leasehold_core::Resource;

use super::changes::Change;
use crate::access::Scope;

/// The most groups. What happens in further ones is counted for callers that may see everything.
const GROUPS_MAX: usize = 1000;
/// How many of the newest holds of a group are remembered.
const HOLDS_MAX: usize = 256;
/// From so few holds nothing is called usual.
const HOLDS_MIN: usize = 20;
/// An hour, in minutes.
const MINUTES: u64 = RATE_MINUTES_MAX as u64;

/// Whether a change of this kind ends a hold.
pub(super) fn is_end(kind: ChangeKind) -> bool {
    matches!(kind, ChangeKind::Released | ChangeKind::Expired | ChangeKind::Ended | ChangeKind::Evicted)
}

/// The part of a key that names its namespace and kind: `acme:report`.
pub(super) fn group_of(resource: &Resource) -> &str {
    resource.key().split('/').next().unwrap_or_default()
}

/// What this server has seen happen.
#[derive(Debug, Default)]
pub(super) struct Activity {
    groups: HashMap<String, Group>,
    /// What happened in groups that are not kept.
    others: Minutes,
}

#[derive(Debug)]
struct Group {
    /// One of its resources: a caller that may see it may see all of them.
    example: Resource,
    minutes: Minutes,
    /// The newest holds that have ended, in milliseconds.
    holds: VecDeque<u64>,
    /// 99 of 100 of them were at most so long.
    usual_ms: Option<u64>,
}

/// Counts by minute, oldest first. Minutes in which nothing happened are not there.
#[derive(Clone, Debug, Default)]
struct Minutes(VecDeque<(u64, Counts)>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    granted: u64,
    released: u64,
    expired: u64,
    ended: u64,
    taken_over: u64,
    evicted: u64,
    evicting: u64,
    asked: u64,
    queued: u64,
}

impl Counts {
    fn count(&mut self, kind: ChangeKind) {
        match kind {
            ChangeKind::Granted => self.granted += 1,
            ChangeKind::TakenOver => {
                self.granted += 1;
                self.taken_over += 1;
            }
            ChangeKind::Released => self.released += 1,
            ChangeKind::Expired => self.expired += 1,
            ChangeKind::Ended => self.ended += 1,
            ChangeKind::Evicted => self.evicted += 1,
            ChangeKind::Evicting => self.evicting += 1,
            ChangeKind::Asked => self.asked += 1,
            ChangeKind::Queued => self.queued += 1,
            _ => {}
        }
    }

    fn add(&mut self, other: &Counts) {
        self.granted += other.granted;
        self.released += other.released;
        self.expired += other.expired;
        self.ended += other.ended;
        self.taken_over += other.taken_over;
        self.evicted += other.evicted;
        self.evicting += other.evicting;
        self.asked += other.asked;
        self.queued += other.queued;
    }
}

impl Minutes {
    fn count(&mut self, minute: u64, kind: ChangeKind) {
        if self.0.back().is_none_or(|(newest, _)| *newest != minute) {
            self.0.push_back((minute, Counts::default()));
            self.forget_before(minute.saturating_sub(MINUTES - 1));
        }
        if let Some((_, counts)) = self.0.back_mut() {
            counts.count(kind);
        }
    }

    fn forget_before(&mut self, minute: u64) {
        while self.0.front().is_some_and(|(oldest, _)| *oldest < minute) {
            self.0.pop_front();
        }
    }
}

impl Group {
    fn held(&mut self, ms: u64) {
        self.holds.push_back(ms);
        if self.holds.len() > HOLDS_MAX {
            self.holds.pop_front();
        }
    }

    fn find_usual(&mut self) {
        if self.holds.len() < HOLDS_MIN {
            return;
        }
        let mut sorted: Vec<u64> = self.holds.iter().copied().collect();
        sorted.sort_unstable();
        let position = (sorted.len() * 99).div_ceil(100) - 1;
        self.usual_ms = sorted.get(position).copied();
    }
}

impl Activity {
    /// Counts these changes, which were found in this minute since the server's start.
    pub(super) fn add(&mut self, minute: u64, changes: &[Change]) {
        let mut with_holds = Vec::new();
        for Change { resource, body, .. } in changes {
            let name = group_of(resource);
            if !self.groups.contains_key(name) {
                self.begin(name, resource, minute);
            }
            let Some(group) = self.groups.get_mut(name) else {
                self.others.count(minute, body.kind);
                continue;
            };
            group.minutes.count(minute, body.kind);
            if let Some(ms) = body.for_ms.filter(|_| is_end(body.kind)) {
                group.held(ms);
                if with_holds.last() != Some(&name) {
                    with_holds.push(name);
                }
            }
        }
        with_holds.sort_unstable();
        with_holds.dedup();
        for name in with_holds {
            if let Some(group) = self.groups.get_mut(name) {
                group.find_usual();
            }
        }
    }

    /// Begins a group, if there is room.
    fn begin(&mut self, name: &str, example: &Resource, minute: u64) {
        if self.groups.len() >= GROUPS_MAX {
            let oldest = minute.saturating_sub(MINUTES - 1);
            self.groups
                .retain(|_, group| group.minutes.0.back().is_some_and(|(newest, _)| *newest >= oldest));
        }
        if self.groups.len() < GROUPS_MAX {
            let (example, minutes, holds) = (example.clone(), Minutes::default(), VecDeque::new());
            self.groups.insert(name.to_owned(), Group { example, minutes, holds, usual_ms: None });
        }
    }

    /// Forgets what happened, but not how long holds usually are.
    pub(super) fn forget(&mut self) {
        self.groups.values_mut().for_each(|group| group.minutes.0.clear());
        self.others.0.clear();
    }

    /// How long 99 of 100 holds are at most, by namespace and kind.
    pub(super) fn usual_holds(&self) -> HashMap<String, u64> {
        let usual = self.groups.iter().filter_map(|(name, group)| Some((name.clone(), group.usual_ms?)));
        usual.collect()
    }

    /// What happened in the last hour, of what the caller may see. `first` is the minute of the first sample, `now` the current one.
    pub(super) fn last_hour(&self, scope: Scope<'_>, (first, now): (u64, u64)) -> (LastHourBody, RatesBody) {
        let oldest = first.max(now.saturating_sub(MINUTES - 1)).min(now);
        let width = usize::try_from(now - oldest + 1).unwrap_or(1);
        let mut minutes = vec![Counts::default(); width];
        let groups =
            self.groups.values().filter(|group| scope.has(&group.example)).map(|group| &group.minutes);
        let others = scope.is_everything().then_some(&self.others);
        for (minute, counts) in groups.chain(others).flat_map(|minutes| &minutes.0) {
            let position = minute.checked_sub(oldest).and_then(|position| usize::try_from(position).ok());
            if let Some(sum) = position.and_then(|position| minutes.get_mut(position)) {
                sum.add(counts);
            }
        }
        let mut all = Counts::default();
        minutes.iter().for_each(|counts| all.add(counts));
        let column = |of: fn(&Counts) -> u64| minutes.iter().map(of).collect();
        let rates = RatesBody {
            minute_ms: RATE_MINUTE_MS,
            granted: column(|counts| counts.granted),
            released: column(|counts| counts.released),
            lost: column(|counts| counts.expired + counts.evicted),
            ended: column(|counts| counts.ended),
            queued: column(|counts| counts.queued),
        };
        let last_hour = LastHourBody {
            lost: all.expired + all.evicted,
            expired: all.expired,
            taken_over: all.taken_over,
            evicted: all.evicted,
            evicting: all.evicting,
            asked: all.asked,
            ended: all.ended,
            granted: all.granted,
        };
        (last_hour, rates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::changes::change;

    fn all() -> Scope<'static> {
        Scope::everything()
    }

    #[test]
    fn an_hour_is_counted_by_minute() {
        let mut activity = Activity::default();
        use ChangeKind::*;
        activity.add(3, &[change("report/1", Granted, None), change("a:report/2", Granted, None)]);
        activity.add(5, &[change("report/1", Expired, Some(9)), change("report/1", TakenOver, None)]);
        let (hour, rates) = activity.last_hour(all(), (2, 5));
        assert_eq!((hour.granted, hour.expired, hour.taken_over, hour.lost), (3, 1, 1, 1));
        assert_eq!(
            (rates.granted, rates.lost),
            (vec![0, 2, 0, 1], vec![0, 0, 0, 1]),
            "the last is the minute of now"
        );
        let (hour, rates) = activity.last_hour(all(), (2, 63));
        assert_eq!((hour.granted, rates.granted.len(), rates.granted[1]), (1, 60, 1), "an hour later");
        activity.forget();
        assert_eq!(activity.last_hour(all(), (63, 63)).0.granted, 0);
    }

    #[test]
    fn a_limited_caller_is_told_of_its_own_groups_alone() {
        let mut activity = Activity::default();
        let changes = [
            change("acme:report/1", ChangeKind::Granted, None),
            change("report/1", ChangeKind::Granted, None),
        ];
        activity.add(0, &changes);
        let namespaces = ["acme".to_owned()];
        let (hour, _) = activity.last_hour(Scope::of_namespaces(&namespaces), (0, 0));
        assert_eq!(hour.granted, 1);
    }

    #[test]
    fn more_groups_than_are_kept_are_counted_together() {
        let mut activity = Activity::default();
        for number in 0..GROUPS_MAX + 50 {
            activity.add(1, &[change(&format!("kind-{number}/1"), ChangeKind::Granted, None)]);
        }
        assert_eq!(activity.groups.len(), GROUPS_MAX);
        assert_eq!(activity.last_hour(all(), (0, 1)).0.granted, GROUPS_MAX as u64 + 50);
        activity.add(90, &[change("new/1", ChangeKind::Granted, None)]);
        assert_eq!(activity.groups.len(), 1, "groups of which nothing was seen for an hour make room");
    }

    #[test]
    fn what_is_usual_is_known_after_twenty_holds() {
        let mut activity = Activity::default();
        let ended = |ms| change("report/1", ChangeKind::Released, Some(ms));
        activity.add(0, &(1..20).map(ended).collect::<Vec<_>>());
        assert!(activity.usual_holds().is_empty());
        activity.add(0, &[ended(500)]);
        assert_eq!(activity.usual_holds()["report"], 500);
        activity.add(0, &(0..200).map(|_| ended(7)).collect::<Vec<_>>());
        assert_eq!(activity.usual_holds()["report"], 18, "one of two hundred is no rule");
    }
}
