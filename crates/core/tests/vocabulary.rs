//! Shares, holders, errors, time: the small words.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{error::Error as _, sync::Arc, time::Duration};

use leasehold_core::{
    Busy, Claim, ClaimRef, Effect, Error, ErrorKind, FencingToken, HeldBy, Holder, OwnerToken,
    ReleaseRequest, RenewRequest, Resource, Share, Timestamp, Verb, WallTime,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_share_is_at_least_one_and_at_most_all(weight: u32, capacity: u32) {
        match Share::new(weight, capacity) {
            Ok(share) => {
                prop_assert!(1 <= weight && weight <= capacity);
                prop_assert_eq!((share.weight(), share.capacity()), (weight, capacity));
                prop_assert_eq!(share.is_exclusive(), weight == capacity);
            }
            Err(error) => {
                prop_assert!(weight == 0 || weight > capacity);
                prop_assert_eq!(error.kind(), ErrorKind::Invalid);
            }
        }
    }

    #[test]
    fn a_holder_reads_back(host: String, pid: u32, label: String) {
        let holder = Holder::new(&host, pid, &label);
        prop_assert_eq!(holder.to_string().parse::<Holder>().unwrap(), holder);
    }

    #[test]
    fn a_holder_is_safe_to_print_and_short(host in any::<String>(), label in ".{0,400}") {
        let holder = Holder::new(&host, 1, &label);
        prop_assert!(!holder.to_string().contains(|c: char| c.is_control()));
        prop_assert!(holder.host.len() <= Holder::TEXT_MAX && holder.label.len() <= Holder::TEXT_MAX);
    }

    #[test]
    fn any_text_is_a_holder(text: String) {
        let holder: Holder = text.parse().unwrap();
        prop_assert!(!holder.to_string().contains(|c: char| c.is_control()));
    }

    #[test]
    fn moments_add_up(nanos in 0u64..1 << 62, by in 0u64..1 << 40) {
        let (moment, by) = (Timestamp::from_nanos(nanos), Duration::from_nanos(by));
        prop_assert_eq!(moment.after(by).before(by), moment);
        prop_assert_eq!(moment.until(moment.after(by)), by);
        prop_assert_eq!(moment.after(by).until(moment), Duration::ZERO, "what is past is not ahead");
    }
}

#[test]
fn the_named_shares_are_what_they_say() {
    let parts = |share: Share| (share.weight(), share.capacity(), share.is_exclusive(), format!("{share:?}"));
    assert_eq!(parts(Share::WHOLE), (1, 1, true, "1 of 1".to_owned()));
    assert_eq!(parts(Share::READ), (1, u32::MAX, false, "read".to_owned()));
    assert_eq!(parts(Share::WRITE), (u32::MAX, u32::MAX, true, "write".to_owned()));
    let error = Share::new(6, 5).unwrap_err().to_string();
    assert_eq!(error, "6 of 5 is not a share: the weight must be from 1 to the capacity");
}

#[test]
fn time_stops_at_its_ends() {
    assert_eq!(Timestamp::NEVER.after(Duration::MAX), Timestamp::NEVER);
    assert_eq!(Timestamp::from_nanos(5).before(Duration::MAX), Timestamp::from_nanos(0));
    assert_eq!(Timestamp::from_nanos(5).after(Duration::MAX), Timestamp::NEVER);
    assert_eq!(
        WallTime::from_micros(u64::MAX).after(Duration::from_secs(1)),
        WallTime::from_micros(u64::MAX)
    );
    let seven = WallTime::from_micros(7_000_000);
    assert_eq!(seven.to_system_time(), std::time::UNIX_EPOCH + Duration::from_secs(7));
}

#[test]
fn a_holder_is_shown_as_people_say_it() {
    assert_eq!(Holder::new("web-1", 42, "nightly report").to_string(), "42@web-1 nightly report");
    assert_eq!(Holder::new("web-1", 42, "").to_string(), "42@web-1");
    assert_eq!(Holder::new("a host@b", 1, " x\n\u{1b}[31my ").to_string(), "1@a-host-b x  [31my");
    let stranger: Holder = "someone's own value".parse().unwrap();
    assert_eq!((stranger.pid, stranger.label.as_str()), (0, "someone's own value"));
    let long = Holder::new(&"h".repeat(1000), 1, &"é".repeat(1000));
    assert_eq!((long.host.len(), long.label.len()), (256, 256));
}

#[test]
fn a_tombstone_outlasts_any_request() {
    assert_eq!(ReleaseRequest::tombstone_ttl(Duration::from_secs(1)), Duration::from_secs(180));
    assert_eq!(ReleaseRequest::tombstone_ttl(Duration::from_secs(90)), Duration::from_secs(180));
    assert_eq!(ReleaseRequest::tombstone_ttl(Duration::from_secs(3600)), Duration::from_secs(7200));
}

fn owner() -> OwnerToken {
    OwnerToken::from_bytes(*b"0123456789abcdef")
}

#[test]
fn nothing_that_is_logged_shows_a_whole_owner_token() {
    let resource = Resource::new("report", "42").unwrap();
    let reference = ClaimRef { resource: resource.clone(), owner: owner() };
    let holder = Arc::new(Holder::new("h", 1, ""));
    let claim = Claim::new(resource, owner(), Share::WHOLE, Duration::from_secs(1), holder);
    let claim = claim.taking_over(leasehold_core::Handover::from(owner()));
    let held = RenewRequest::new(reference.clone(), Duration::from_secs(1));
    let shown = format!("{reference:?} {claim:?} {held:?} {:?}", ReleaseRequest::new(reference.clone()));
    assert!(!shown.contains(&owner().reveal()) && shown.contains(&owner().prefix()));
}

#[test]
fn an_error_carries_what_it_was_given() {
    let resource = Resource::new("report", "42").unwrap();
    let cause = std::io::Error::other("connection reset");
    let plain = Error::new(ErrorKind::Unavailable, "no answer");
    assert_eq!(
        (plain.effect(), plain.verb(), plain.backend(), plain.resource()),
        (Effect::None, None, None, None)
    );
    assert!(plain.source().is_none());
    let error = plain.with_effect(Effect::Unknown).at(Verb::Acquire, "redis").on(&resource).because(cause);
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert_eq!((error.verb(), error.backend()), (Some(Verb::Acquire), Some("redis")));
    assert_eq!(error.resource(), Some(&resource));
    assert_eq!(error.to_string(), "report/42: no answer (redis acquire)");
    assert_eq!(error.source().unwrap().to_string(), "connection reset");
    let debug = format!("{error:?}");
    assert_eq!(debug, "Unavailable, effect Unknown: report/42: no answer (redis acquire): connection reset");
}

#[test]
fn a_clone_of_an_error_is_its_own() {
    let first = Error::new(ErrorKind::Unavailable, "no answer");
    let second = first.clone().with_effect(Effect::Unknown);
    assert_eq!((first.effect(), second.effect()), (Effect::None, Effect::Unknown));
    assert_eq!(first.to_string(), second.to_string());
    fn everywhere<T: Send + Sync + Clone + std::error::Error + 'static>(_: &T) {}
    everywhere(&first);
}

const KINDS: [ErrorKind; 12] = [
    ErrorKind::Contended,
    ErrorKind::Lost,
    ErrorKind::Invalid,
    ErrorKind::Mismatch,
    ErrorKind::Unsupported,
    ErrorKind::GuaranteeTooWeak,
    ErrorKind::Unavailable,
    ErrorKind::Denied,
    ErrorKind::Corrupt,
    ErrorKind::StaleToken,
    ErrorKind::ShutDown,
    ErrorKind::Limit,
];

#[test]
fn kinds_have_stable_names_of_their_own() {
    let names = KINDS.map(ErrorKind::as_str);
    let due = "contended lost invalid mismatch unsupported guarantee_too_weak unavailable denied corrupt stale_token shut_down limit";
    assert_eq!(names.join(" "), due);
    let verbs =
        [Verb::Acquire, Verb::Renew, Verb::Release, Verb::Wait, Verb::Inspect, Verb::Order].map(Verb::as_str);
    assert_eq!(verbs.join(" "), "acquire renew release wait inspect order");
}

#[test]
fn what_may_work_later_is_retryable() {
    let retryable = KINDS.into_iter().filter(|kind| Error::new(*kind, "").is_retryable());
    assert_eq!(retryable.collect::<Vec<_>>(), [ErrorKind::Contended, ErrorKind::Unavailable]);
}

fn busy(remaining: Duration, ahead: u32, paused: bool) -> Busy {
    let mut by = HeldBy::new(Arc::new(Holder::new("web-1", 42, "report")), FencingToken::new(1).unwrap(), 1);
    by.remaining = remaining;
    let mut busy = Busy::default();
    (busy.holders, busy.ahead, busy.paused) = (vec![by], ahead, paused);
    busy
}

#[test]
fn a_contended_error_names_the_holder_and_the_time_left() {
    let says =
        |ms, ahead, paused| Error::contended(busy(Duration::from_millis(ms), ahead, paused)).to_string();
    assert_eq!(says(20, 0, false), "held by 42@web-1 report for 20ms more");
    assert_eq!(says(3_000, 2, false), "held by 42@web-1 report for 3s more, 2 ahead in the queue");
    assert_eq!(says(1_550, 0, false), "held by 42@web-1 report for 1.5s more");
    assert_eq!(says(3_000, 0, true), "an operator has paused it");
    assert_eq!(Error::contended(Busy::default()).to_string(), "another claim holds it");
    let error = Error::contended(busy(Duration::from_secs(1), 3, false));
    assert_eq!((error.kind(), error.busy().unwrap().ahead), (ErrorKind::Contended, 3));
    assert!(error.capacity().is_none() && error.stale_token().is_none());
}

#[test]
fn a_mismatch_says_what_others_use_it_as() {
    let error = Error::mismatch(3, 1);
    assert_eq!((error.kind(), error.capacity()), (ErrorKind::Mismatch, Some(3)));
    let text = error.to_string();
    assert!(
        text.starts_with("others use it as a semaphore of 3, this claim as an exclusive lease: agree on one"),
        "{text}"
    );
    assert!(Error::mismatch(u32::MAX, 1).to_string().contains("as a read-write lock"));
}

#[test]
fn a_stale_token_is_named_with_the_highest() {
    let (old, new) = (FencingToken::new(3).unwrap(), FencingToken::new(9).unwrap());
    let error = Error::stale(old, new);
    assert_eq!((error.kind(), error.stale_token()), (ErrorKind::StaleToken, Some((old, new))));
    assert_eq!(error.to_string(), "token 3 is stale: 9 has been seen");
}
