//! Histories written by hand: the checker must find the rule that each bad history breaks, and accept the
//! similar good one.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use leasehold_core::{
    Blocked, Claim, ClaimRef, CommandOutcome, Effect, Error, ErrorKind, Eviction, FencingToken, GoneReason,
    Grant, Handover, Holder, OperatorAction, OperatorCommand, OwnerToken, ReleaseRequest, Released,
    RenewRequest, Renewal, Renewed, Resource, Result, Share, Timestamp, Verdict,
};

use super::{Call, History, Rule, Stamp};
use crate::verbs::{VerbReply, VerbRequest};

const TTL: Duration = Duration::from_millis(1_000);

/// Builds a history. Times are milliseconds.
#[derive(Default)]
struct HistoryBuilder {
    history: History,
    order: u64,
}

/// When a call began and ended.
type CallMillis = (u64, u64);

fn resource() -> Resource {
    Resource::new("history", "1").unwrap()
}

fn owner(name: &str) -> OwnerToken {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    OwnerToken::from_bytes(bytes)
}

fn reference(name: &str) -> ClaimRef {
    ClaimRef { resource: resource(), owner: owner(name) }
}

fn claim(name: &str) -> Claim {
    claim_of(name, Share::WHOLE)
}

fn claim_of(name: &str, share: Share) -> Claim {
    let mut claim =
        Claim::new(resource(), owner(name), share, TTL, Arc::new(Holder::new("host", 1, name))).queued();
    claim.place_ttl = TTL;
    claim
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn granted(number: u64) -> Result<Verdict> {
    Ok(Verdict::Granted(Grant::new(token(number), TTL)))
}

fn queued() -> Result<Verdict> {
    let mut blocked = Blocked::default();
    blocked.queued = true;
    Ok(Verdict::Blocked(blocked))
}

fn lost() -> Error {
    Error::new(ErrorKind::Unavailable, "the reply was lost").with_effect(Effect::Unknown)
}

fn refused() -> Error {
    Error::new(ErrorKind::Unavailable, "refused")
}

impl HistoryBuilder {
    fn stamp(&mut self, at: u64) -> Stamp {
        self.order += 1;
        Stamp { at: Timestamp::from_nanos(at * 1_000_000), order: self.order }
    }

    fn call(mut self, millis: CallMillis, request: VerbRequest, reply: VerbReply) -> HistoryBuilder {
        let began = self.stamp(millis.0);
        let ended = self.stamp(millis.1);
        self.history.calls.push(Call { began, request, reply: Some((ended, reply)) });
        self
    }

    fn acquire(self, millis: CallMillis, claim: Claim, answer: Result<Verdict>) -> HistoryBuilder {
        self.call(millis, VerbRequest::Acquire(vec![claim]), VerbReply::Acquire(vec![answer]))
    }

    /// An acquire without a reply: the caller dropped it, or still waits.
    fn dropped(mut self, at: u64, claim: Claim) -> HistoryBuilder {
        let began = self.stamp(at);
        self.history.calls.push(Call { began, request: VerbRequest::Acquire(vec![claim]), reply: None });
        self
    }

    fn renew(self, millis: CallMillis, name: &str, answer: Result<Renewal>) -> HistoryBuilder {
        let held = RenewRequest::new(reference(name), TTL);
        self.call(millis, VerbRequest::Renew(vec![held]), VerbReply::Renew(vec![answer]))
    }

    fn renewed(self, millis: CallMillis, name: &str, number: u64) -> HistoryBuilder {
        self.renew(millis, name, Ok(Renewal::Renewed(Renewed::new(token(number), TTL))))
    }

    fn release(self, millis: CallMillis, name: &str, answer: Result<Released>) -> HistoryBuilder {
        self.call(
            millis,
            VerbRequest::Release(vec![ReleaseRequest::new(reference(name))]),
            VerbReply::Release(vec![answer]),
        )
    }

    fn tombstone(self, millis: CallMillis, name: &str, keep: Duration) -> HistoryBuilder {
        let request = ReleaseRequest::new(reference(name)).with_tombstone(keep);
        self.call(millis, VerbRequest::Release(vec![request]), VerbReply::Release(vec![Ok(Released::Now)]))
    }

    fn order(
        self,
        millis: CallMillis,
        command: OperatorAction,
        meant_token: Option<u64>,
        answer: CommandOutcome,
    ) -> HistoryBuilder {
        let mut order = OperatorCommand::new(resource(), command, "someone", "somehow");
        order.token = meant_token.map(token);
        self.call(millis, VerbRequest::Order(order), VerbReply::Order(Ok(answer)))
    }

    #[track_caller]
    fn assert_possible(&self) {
        self.assert_possible_with(Duration::ZERO);
    }

    #[track_caller]
    fn assert_possible_with(&self, slack: Duration) {
        if let Err(violations) = self.history.check(slack) {
            panic!("the history is possible, but the checker found: {violations:#?}");
        }
    }

    #[track_caller]
    fn assert_breaks(&self, rule: Rule) {
        let violations = self.history.check(Duration::ZERO).expect_err("the history is impossible");
        assert!(
            violations.iter().any(|violation| violation.rule == rule),
            "{rule:?} is not among {violations:#?}"
        );
    }
}

fn history() -> HistoryBuilder {
    HistoryBuilder::default()
}

#[test]
fn an_empty_history_is_possible() {
    history().assert_possible();
}

#[test]
fn grants_one_after_the_other_are_possible() {
    history()
        .acquire((0, 10), claim("ann"), granted(1))
        .renewed((300, 310), "ann", 1)
        .release((400, 410), "ann", Ok(Released::Now))
        .acquire((420, 430), claim("bob"), granted(2))
        .release((500, 510), "bob", Ok(Released::Now))
        .assert_possible();
}

#[test]
fn two_exclusive_grants_at_once_break_the_weights() {
    history()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((100, 110), claim("bob"), granted(2))
        .assert_breaks(Rule::Weights);
}

#[test]
fn a_second_grant_is_possible_once_the_first_has_expired() {
    // The first grant happened at 0 at the earliest, so it may have expired at 1000.
    history()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((990, 1_000), claim("bob"), granted(2))
        .assert_possible();
    history()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((980, 999), claim("bob"), granted(2))
        .assert_breaks(Rule::Weights);
    history()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((980, 999), claim("bob"), granted(2))
        .assert_possible_with(
            Duration::from_millis(10), // on clocks that drift apart
        );
}

#[test]
fn a_renewal_proves_that_the_grant_was_alive_before_it() {
    let renewed = history().acquire((0, 10), claim("ann"), granted(1)).renewed((900, 910), "ann", 1);
    renewed.acquire((1_500, 1_510), claim("bob"), granted(2)).assert_breaks(Rule::Weights);
    // A failed renewal proves nothing.
    let failed = history().acquire((0, 10), claim("ann"), granted(1)).renew((900, 910), "ann", Err(lost()));
    failed.acquire((1_500, 1_510), claim("bob"), granted(2)).assert_possible();
}

#[test]
fn a_release_without_a_reply_yet_may_have_been_executed() {
    let history_with = |answer| {
        let begun = history().acquire((0, 10), claim("ann"), granted(1)).release((100, 500), "ann", answer);
        begun.acquire((110, 120), claim("bob"), granted(2))
    };
    history_with(Ok(Released::Now)).assert_possible();
    history_with(Err(lost())).assert_possible();
    history_with(Err(refused())).assert_breaks(Rule::Weights);
}

#[test]
fn an_unanswered_release_may_end_a_later_grant() {
    history()
        .release((0, 10), "ann", Err(lost()))
        .acquire((20, 30), claim("ann"), granted(1))
        .acquire((100, 110), claim("bob"), granted(2))
        .assert_possible();
    // An answered release has no later effect.
    history()
        .release((0, 10), "ann", Ok(Released::AlreadyGone))
        .acquire((20, 30), claim("ann"), granted(1))
        .acquire((100, 110), claim("bob"), granted(2))
        .assert_breaks(Rule::Weights);
}

#[test]
fn permits_add_up() {
    let permit = |name| claim_of(name, Share::new(2, 5).unwrap());
    let two =
        || history().acquire((0, 10), permit("ann"), granted(1)).acquire((20, 30), permit("bob"), granted(2));
    two().assert_possible();
    two().acquire((40, 50), permit("cy"), granted(3)).assert_breaks(Rule::Weights);
    let more = two().order(
        (32, 34),
        OperatorAction::Resize { capacity: NonZeroU32::new(6).unwrap() },
        None,
        CommandOutcome::Done,
    );
    more.acquire((40, 50), permit("cy"), granted(3)).assert_possible();
}

#[test]
fn holders_at_the_same_time_have_the_same_capacity() {
    let (three, four) = (Share::new(1, 3).unwrap(), Share::new(1, 4).unwrap());
    let both = || history().acquire((0, 10), claim_of("ann", three), granted(1));
    both().acquire((20, 30), claim_of("bob", four), granted(2)).assert_breaks(Rule::Capacity);
    both().acquire((20, 30), claim_of("bob", three), granted(2)).assert_possible();
}

#[test]
fn an_eviction_and_a_handover_end_the_earlier_grant() {
    let held = || history().acquire((0, 10), claim("ann"), granted(1));
    let evict = OperatorAction::Evict(Eviction::Now);
    let bob = || claim("bob");
    held()
        .order((20, 30), evict, Some(1), CommandOutcome::Done)
        .acquire((40, 50), bob(), granted(2))
        .assert_possible();
    let other =
        held().order((20, 30), evict, Some(7), CommandOutcome::HolderChanged { token: Some(token(1)) });
    other.acquire((40, 50), bob(), granted(2)).assert_breaks(Rule::Weights);
    let at_expiry =
        held().order((20, 30), OperatorAction::Evict(Eviction::AtExpiry), None, CommandOutcome::Done);
    at_expiry.acquire((40, 50), bob(), granted(2)).assert_breaks(Rule::Weights);
    held().acquire((40, 50), bob().taking_over(Handover::from(owner("ann"))), granted(2)).assert_possible();
}

#[test]
fn two_grants_cannot_have_the_same_token() {
    history()
        .acquire((0, 10), claim("ann"), granted(1))
        .release((20, 30), "ann", Ok(Released::Now))
        .acquire((40, 50), claim("bob"), granted(1))
        .assert_breaks(Rule::Tokens);
}

#[test]
fn tokens_grow_in_real_time() {
    let first =
        || history().acquire((0, 10), claim("ann"), granted(5)).release((20, 30), "ann", Ok(Released::Now));
    first().acquire((40, 50), claim("bob"), granted(4)).assert_breaks(Rule::Tokens);
    // Bob's first acquire went unanswered and may have been granted before Ann's.
    let maybe = history().dropped(0, claim("bob")).acquire((5, 10), claim("ann"), granted(5));
    maybe
        .release((20, 30), "ann", Ok(Released::Now))
        .acquire((40, 50), claim("bob"), granted(4))
        .assert_possible();
    let never =
        history().acquire((0, 2), claim("bob"), Err(refused())).acquire((5, 10), claim("ann"), granted(5));
    never
        .release((20, 30), "ann", Ok(Released::Now))
        .acquire((40, 50), claim("bob"), granted(4))
        .assert_breaks(Rule::Tokens);
}

#[test]
fn tokens_of_shared_grants_need_not_grow() {
    let read = |name| claim_of(name, Share::READ);
    history()
        .acquire((0, 10), read("ann"), granted(5))
        .acquire((20, 30), read("bob"), granted(4))
        .assert_possible();
}

#[test]
fn an_owner_has_one_grant() {
    let read = |name| claim_of(name, Share::READ);
    history()
        .acquire((0, 10), read("ann"), granted(1))
        .acquire((20, 30), read("ann"), granted(2))
        .assert_breaks(Rule::OneGrant);
    history()
        .acquire((0, 10), read("ann"), granted(1))
        .acquire((2_000, 2_010), read("ann"), granted(2))
        .assert_possible();
}

/// Ann holds, Bob queues; Ann releases, and Cy comes and is granted.
fn bob_queues_before_cy_is_granted(bobs: impl FnOnce(HistoryBuilder) -> HistoryBuilder) -> HistoryBuilder {
    let history =
        history().acquire((0, 10), claim("ann"), granted(1)).acquire((20, 30), claim("bob"), queued());
    let history = bobs(history).release((100, 110), "ann", Ok(Released::Now));
    history.acquire((120, 130), claim("cy"), granted(2))
}

#[test]
fn no_claim_overtakes_the_queue() {
    bob_queues_before_cy_is_granted(|history| history).assert_breaks(Rule::QueueOrder);
    bob_queues_before_cy_is_granted(|history| history.release((40, 50), "bob", Ok(Released::Now)))
        .assert_possible();
    bob_queues_before_cy_is_granted(|history| history.release((40, 50), "bob", Err(lost())))
        .assert_possible();
    bob_queues_before_cy_is_granted(|history| history.release((40, 50), "bob", Err(refused())))
        .assert_breaks(Rule::QueueOrder);
    bob_queues_before_cy_is_granted(|history| history.dropped(40, claim("bob"))).assert_possible();
}

#[test]
fn a_place_counts_as_long_as_it_is_kept() {
    let late = |keep: &dyn Fn(HistoryBuilder) -> HistoryBuilder| {
        let history = history().acquire((0, 10), claim("ann"), granted(1)).renewed((600, 610), "ann", 1);
        let history =
            keep(history.acquire((620, 630), claim("bob"), queued()).renewed((1_200, 1_210), "ann", 1));
        history.release((1_700, 1_710), "ann", Ok(Released::Now)).acquire(
            (1_720, 1_730),
            claim("cy"),
            granted(2),
        )
    };
    late(&|history| history).assert_possible();
    let still_queued = || Ok(Renewal::Queued { remaining: TTL });
    late(&|history| history.renew((1_300, 1_310), "bob", still_queued())).assert_breaks(Rule::QueueOrder);
    late(&|history| history.acquire((1_300, 1_310), claim("bob"), queued())).assert_breaks(Rule::QueueOrder);
}

#[test]
fn a_place_that_may_have_expired_is_a_new_place() {
    // Cy came when Bob's first place may have expired. Bob's second place is behind Cy's.
    let history =
        history().acquire((0, 10), claim("ann"), granted(1)).acquire((20, 30), claim("bob"), queued());
    let history = history.renewed((800, 810), "ann", 1).acquire((1_100, 1_110), claim("cy"), queued());
    let history = history.acquire((1_120, 1_130), claim("bob"), queued()).release(
        (1_140, 1_150),
        "ann",
        Ok(Released::Now),
    );
    history.acquire((1_160, 1_170), claim("cy"), granted(2)).assert_possible();
}

#[test]
fn a_claim_that_fits_beside_the_queue_may_pass_it() {
    let permit = |name, weight| claim_of(name, Share::new(weight, 5).unwrap());
    let history_with = |cy| {
        let history = history().acquire((0, 10), permit("ann", 3), granted(1)).acquire(
            (20, 30),
            permit("bob", 3),
            queued(),
        );
        history.release((40, 50), "ann", Ok(Released::Now)).acquire((60, 70), permit("cy", cy), granted(2))
    };
    history_with(2).assert_possible();
    history_with(3).assert_breaks(Rule::QueueOrder);
}

#[test]
fn a_successor_passes_the_queue() {
    let history =
        history().acquire((0, 10), claim("ann"), granted(1)).acquire((20, 30), claim("bob"), queued());
    history
        .acquire((40, 50), claim("cy").taking_over(Handover::from(owner("ann"))), granted(2))
        .assert_possible();
}

#[test]
fn no_grant_outlives_its_release() {
    let left =
        || history().acquire((0, 10), claim("ann"), granted(1)).release((20, 30), "ann", Ok(Released::Now));
    left().renewed((40, 50), "ann", 1).assert_breaks(Rule::Outlived);
    left().acquire((40, 50), claim("ann"), granted(1)).assert_breaks(Rule::Outlived);
    left().acquire((40, 50), claim("ann"), granted(2)).assert_possible();
    left().renew((40, 50), "ann", Ok(Renewal::Gone { why: GoneReason::NotThere })).assert_possible();
    // A renewal that began before the release ended may have been executed first.
    let begun = history().acquire((0, 10), claim("ann"), granted(1)).renewed((15, 50), "ann", 1);
    begun.release((20, 30), "ann", Ok(Released::Now)).assert_possible();
}

#[test]
fn no_grant_outlives_its_successor_or_its_eviction() {
    let successor = claim("bob").taking_over(Handover::from(owner("ann")));
    let handed =
        history().acquire((0, 10), claim("ann"), granted(1)).acquire((20, 30), successor, granted(2));
    handed.renewed((40, 50), "ann", 1).assert_breaks(Rule::Outlived);
    let evict = OperatorAction::Evict(Eviction::Now);
    let evicted = || history().acquire((0, 10), claim("ann"), granted(1));
    evicted()
        .order((20, 30), evict, Some(1), CommandOutcome::Done)
        .renewed((40, 50), "ann", 1)
        .assert_breaks(Rule::Outlived);
    let other = CommandOutcome::HolderChanged { token: None };
    evicted().order((20, 30), evict, Some(1), other).renewed((40, 50), "ann", 1).assert_possible();
}

#[test]
fn an_owner_with_a_tombstone_is_not_granted() {
    let cancelled = || history().tombstone((0, 10), "ann", TTL * 3);
    cancelled().acquire((20, 30), claim("ann"), granted(1)).assert_breaks(Rule::Cancelled);
    cancelled().acquire((20, 30), claim("ann"), queued()).assert_breaks(Rule::Cancelled);
    cancelled().acquire((20, 30), claim("ann"), Ok(Verdict::Cancelled)).assert_possible();
    cancelled().acquire((3_000, 3_010), claim("ann"), granted(1)).assert_possible();
    cancelled().acquire((20, 30), claim("bob"), granted(1)).assert_possible();
    // A shorter tombstone may have replaced it.
    cancelled()
        .tombstone((20, 30), "ann", TTL)
        .acquire((1_100, 1_110), claim("ann"), granted(1))
        .assert_possible();
}

#[test]
fn an_expired_grant_stays_expired() {
    history()
        .acquire((0, 10), claim("ann"), granted(1))
        .renewed((1_010, 1_020), "ann", 1)
        .assert_breaks(Rule::Revived);
    history().acquire((0, 10), claim("ann"), granted(1)).renewed((1_009, 1_020), "ann", 1).assert_possible();
    history()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((1_010, 1_020), claim("ann"), granted(1))
        .assert_breaks(Rule::Revived);
    // An unanswered renewal may have extended the grant.
    let doubtful = history().acquire((0, 10), claim("ann"), granted(1)).renew((500, 510), "ann", Err(lost()));
    doubtful.renewed((1_300, 1_310), "ann", 1).assert_possible();
}
