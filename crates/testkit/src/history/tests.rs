//! Hand-made histories: the checker must refuse each bad one, by its rule, and accept its honest twin.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use leasehold_core::{
    Blocked, Claim, ClaimRef, CommandOutcome, Effect, Error, ErrorKind, Eviction, FencingToken, GoneReason,
    Grant, Handover, Holder, OperatorAction, OperatorCommand, OwnerToken, ReleaseRequest, Released,
    RenewRequest, Renewal, Renewed, Resource, Result, Share, Timestamp, Verdict,
};

use super::{Call, History, Rule, Stamp};
use crate::verbs::{Answer, Ask};

const TTL: Duration = Duration::from_millis(1_000);

/// A history in the making. Times are milliseconds; each call takes from `.0` to `.1`.
#[derive(Default)]
struct Tale {
    history: History,
    order: u64,
}

type Span = (u64, u64);

fn resource() -> Resource {
    Resource::new("tale", "1").unwrap()
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

fn placed() -> Result<Verdict> {
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

impl Tale {
    fn stamp(&mut self, at: u64) -> Stamp {
        self.order += 1;
        Stamp { at: Timestamp::from_nanos(at * 1_000_000), order: self.order }
    }

    fn call(mut self, span: Span, ask: Ask, answer: Answer) -> Tale {
        let began = self.stamp(span.0);
        let ended = self.stamp(span.1);
        self.history.calls.push(Call { began, ask, answer: Some((ended, answer)) });
        self
    }

    fn acquire(self, span: Span, claim: Claim, answer: Result<Verdict>) -> Tale {
        self.call(span, Ask::Acquire(claim), Answer::Acquire(answer))
    }

    /// The caller left, or still waits.
    fn dropped(mut self, at: u64, claim: Claim) -> Tale {
        let began = self.stamp(at);
        self.history.calls.push(Call { began, ask: Ask::Acquire(claim), answer: None });
        self
    }

    fn renew(self, span: Span, name: &str, answer: Result<Renewal>) -> Tale {
        let held = RenewRequest::new(reference(name), TTL);
        self.call(span, Ask::Renew(vec![held]), Answer::Renew(vec![answer]))
    }

    fn kept(self, span: Span, name: &str, number: u64) -> Tale {
        self.renew(span, name, Ok(Renewal::Renewed(Renewed::new(token(number), TTL))))
    }

    fn release(self, span: Span, name: &str, answer: Result<Released>) -> Tale {
        self.call(span, Ask::Release(ReleaseRequest::new(reference(name))), Answer::Release(answer))
    }

    fn tombstone(self, span: Span, name: &str, keep: Duration) -> Tale {
        let request = ReleaseRequest::new(reference(name)).with_tombstone(keep);
        self.call(span, Ask::Release(request), Answer::Release(Ok(Released::Now)))
    }

    fn order(
        self,
        span: Span,
        command: OperatorAction,
        meaning: Option<u64>,
        answer: CommandOutcome,
    ) -> Tale {
        let mut order = OperatorCommand::new(resource(), command, "someone", "somehow");
        order.token = meaning.map(token);
        self.call(span, Ask::Order(order), Answer::Order(Ok(answer)))
    }

    #[track_caller]
    fn holds(&self) {
        self.holds_with(Duration::ZERO);
    }

    #[track_caller]
    fn holds_with(&self, slack: Duration) {
        if let Err(violations) = self.history.check(slack) {
            panic!("this can have happened, yet: {violations:#?}");
        }
    }

    #[track_caller]
    fn breaks(&self, rule: Rule) {
        let violations = self.history.check(Duration::ZERO).expect_err("this cannot have happened");
        assert!(
            violations.iter().any(|violation| violation.rule == rule),
            "{rule:?} is not among {violations:#?}"
        );
    }
}

fn tale() -> Tale {
    Tale::default()
}

#[test]
fn an_empty_history_holds() {
    tale().holds();
}

#[test]
fn one_after_the_other_holds() {
    tale()
        .acquire((0, 10), claim("ann"), granted(1))
        .kept((300, 310), "ann", 1)
        .release((400, 410), "ann", Ok(Released::Now))
        .acquire((420, 430), claim("bob"), granted(2))
        .release((500, 510), "bob", Ok(Released::Now))
        .holds();
}

#[test]
fn two_at_once_are_too_many() {
    tale()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((100, 110), claim("bob"), granted(2))
        .breaks(Rule::Weights);
}

#[test]
fn the_second_may_come_once_the_first_has_run_out() {
    // Executed at 0 at the earliest, so it may be over at 1000.
    tale().acquire((0, 10), claim("ann"), granted(1)).acquire((990, 1_000), claim("bob"), granted(2)).holds();
    tale()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((980, 999), claim("bob"), granted(2))
        .breaks(Rule::Weights);
    tale()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((980, 999), claim("bob"), granted(2))
        .holds_with(
            Duration::from_millis(10), // on clocks that drift apart
        );
}

#[test]
fn a_renewal_vouches_for_all_the_time_before_it() {
    let renewed = tale().acquire((0, 10), claim("ann"), granted(1)).kept((900, 910), "ann", 1);
    renewed.acquire((1_500, 1_510), claim("bob"), granted(2)).breaks(Rule::Weights);
    // One that came to nothing vouches for nothing.
    let failed = tale().acquire((0, 10), claim("ann"), granted(1)).renew((900, 910), "ann", Err(lost()));
    failed.acquire((1_500, 1_510), claim("bob"), granted(2)).holds();
}

#[test]
fn a_farewell_under_way_may_have_been_executed() {
    let tale_of = |answer| {
        let begun = tale().acquire((0, 10), claim("ann"), granted(1)).release((100, 500), "ann", answer);
        begun.acquire((110, 120), claim("bob"), granted(2))
    };
    tale_of(Ok(Released::Now)).holds();
    tale_of(Err(lost())).holds();
    tale_of(Err(refused())).breaks(Rule::Weights);
}

#[test]
fn a_farewell_that_went_unanswered_may_strike_a_later_grant() {
    tale()
        .release((0, 10), "ann", Err(lost()))
        .acquire((20, 30), claim("ann"), granted(1))
        .acquire((100, 110), claim("bob"), granted(2))
        .holds();
    // An answered one is done with.
    tale()
        .release((0, 10), "ann", Ok(Released::AlreadyGone))
        .acquire((20, 30), claim("ann"), granted(1))
        .acquire((100, 110), claim("bob"), granted(2))
        .breaks(Rule::Weights);
}

#[test]
fn permits_add_up() {
    let permit = |name| claim_of(name, Share::new(2, 5).unwrap());
    let two =
        || tale().acquire((0, 10), permit("ann"), granted(1)).acquire((20, 30), permit("bob"), granted(2));
    two().holds();
    two().acquire((40, 50), permit("cy"), granted(3)).breaks(Rule::Weights);
    let more = two().order(
        (32, 34),
        OperatorAction::Resize { capacity: NonZeroU32::new(6).unwrap() },
        None,
        CommandOutcome::Done,
    );
    more.acquire((40, 50), permit("cy"), granted(3)).holds();
}

#[test]
fn those_who_hold_together_agree_on_the_capacity() {
    let (three, four) = (Share::new(1, 3).unwrap(), Share::new(1, 4).unwrap());
    let both = || tale().acquire((0, 10), claim_of("ann", three), granted(1));
    both().acquire((20, 30), claim_of("bob", four), granted(2)).breaks(Rule::Capacity);
    both().acquire((20, 30), claim_of("bob", three), granted(2)).holds();
}

#[test]
fn eviction_and_succession_make_room() {
    let held = || tale().acquire((0, 10), claim("ann"), granted(1));
    let evict = OperatorAction::Evict(Eviction::Now);
    let bob = || claim("bob");
    held().order((20, 30), evict, Some(1), CommandOutcome::Done).acquire((40, 50), bob(), granted(2)).holds();
    let other =
        held().order((20, 30), evict, Some(7), CommandOutcome::HolderChanged { token: Some(token(1)) });
    other.acquire((40, 50), bob(), granted(2)).breaks(Rule::Weights);
    let at_expiry =
        held().order((20, 30), OperatorAction::Evict(Eviction::AtExpiry), None, CommandOutcome::Done);
    at_expiry.acquire((40, 50), bob(), granted(2)).breaks(Rule::Weights);
    held().acquire((40, 50), bob().taking_over(Handover::from(owner("ann"))), granted(2)).holds();
}

#[test]
fn a_token_is_of_one_grant() {
    tale()
        .acquire((0, 10), claim("ann"), granted(1))
        .release((20, 30), "ann", Ok(Released::Now))
        .acquire((40, 50), claim("bob"), granted(1))
        .breaks(Rule::Tokens);
}

#[test]
fn tokens_grow_in_real_time() {
    let first =
        || tale().acquire((0, 10), claim("ann"), granted(5)).release((20, 30), "ann", Ok(Released::Now));
    first().acquire((40, 50), claim("bob"), granted(4)).breaks(Rule::Tokens);
    // Its first attempt went unanswered and may have been granted before Ann's.
    let maybe = tale().dropped(0, claim("bob")).acquire((5, 10), claim("ann"), granted(5));
    maybe.release((20, 30), "ann", Ok(Released::Now)).acquire((40, 50), claim("bob"), granted(4)).holds();
    let never =
        tale().acquire((0, 2), claim("bob"), Err(refused())).acquire((5, 10), claim("ann"), granted(5));
    never
        .release((20, 30), "ann", Ok(Released::Now))
        .acquire((40, 50), claim("bob"), granted(4))
        .breaks(Rule::Tokens);
}

#[test]
fn tokens_of_shared_grants_need_not_grow() {
    let read = |name| claim_of(name, Share::READ);
    tale().acquire((0, 10), read("ann"), granted(5)).acquire((20, 30), read("bob"), granted(4)).holds();
}

#[test]
fn an_owner_has_one_seat() {
    let read = |name| claim_of(name, Share::READ);
    tale()
        .acquire((0, 10), read("ann"), granted(1))
        .acquire((20, 30), read("ann"), granted(2))
        .breaks(Rule::OneSeat);
    tale().acquire((0, 10), read("ann"), granted(1)).acquire((2_000, 2_010), read("ann"), granted(2)).holds();
}

/// Ann holds, Bob stands in line; Ann leaves and Cy comes.
fn bob_stands_before_cy_comes(bobs: impl FnOnce(Tale) -> Tale) -> Tale {
    let tale = tale().acquire((0, 10), claim("ann"), granted(1)).acquire((20, 30), claim("bob"), placed());
    let tale = bobs(tale).release((100, 110), "ann", Ok(Released::Now));
    tale.acquire((120, 130), claim("cy"), granted(2))
}

#[test]
fn nobody_overtakes_a_place() {
    bob_stands_before_cy_comes(|tale| tale).breaks(Rule::Line);
    bob_stands_before_cy_comes(|tale| tale.release((40, 50), "bob", Ok(Released::Now))).holds();
    bob_stands_before_cy_comes(|tale| tale.release((40, 50), "bob", Err(lost()))).holds();
    bob_stands_before_cy_comes(|tale| tale.release((40, 50), "bob", Err(refused()))).breaks(Rule::Line);
    bob_stands_before_cy_comes(|tale| tale.dropped(40, claim("bob"))).holds();
}

#[test]
fn a_place_counts_as_long_as_it_is_kept() {
    let late = |keep: &dyn Fn(Tale) -> Tale| {
        let tale = tale().acquire((0, 10), claim("ann"), granted(1)).kept((600, 610), "ann", 1);
        let tale = keep(tale.acquire((620, 630), claim("bob"), placed()).kept((1_200, 1_210), "ann", 1));
        tale.release((1_700, 1_710), "ann", Ok(Released::Now)).acquire(
            (1_720, 1_730),
            claim("cy"),
            granted(2),
        )
    };
    late(&|tale| tale).holds();
    let queued = || Ok(Renewal::Queued { remaining: TTL });
    late(&|tale| tale.renew((1_300, 1_310), "bob", queued())).breaks(Rule::Line);
    late(&|tale| tale.acquire((1_300, 1_310), claim("bob"), placed())).breaks(Rule::Line);
}

#[test]
fn a_place_that_may_have_been_lost_is_a_new_one() {
    // Cy came while Bob's first place may have run out; Bob's second is behind Cy's.
    let tale = tale().acquire((0, 10), claim("ann"), granted(1)).acquire((20, 30), claim("bob"), placed());
    let tale = tale.kept((800, 810), "ann", 1).acquire((1_100, 1_110), claim("cy"), placed());
    let tale = tale.acquire((1_120, 1_130), claim("bob"), placed()).release(
        (1_140, 1_150),
        "ann",
        Ok(Released::Now),
    );
    tale.acquire((1_160, 1_170), claim("cy"), granted(2)).holds();
}

#[test]
fn who_fits_beside_the_line_may_pass_it() {
    let permit = |name, weight| claim_of(name, Share::new(weight, 5).unwrap());
    let tale_of = |cy| {
        let tale = tale().acquire((0, 10), permit("ann", 3), granted(1)).acquire(
            (20, 30),
            permit("bob", 3),
            placed(),
        );
        tale.release((40, 50), "ann", Ok(Released::Now)).acquire((60, 70), permit("cy", cy), granted(2))
    };
    tale_of(2).holds();
    tale_of(3).breaks(Rule::Line);
}

#[test]
fn an_heir_passes_the_line() {
    let tale = tale().acquire((0, 10), claim("ann"), granted(1)).acquire((20, 30), claim("bob"), placed());
    tale.acquire((40, 50), claim("cy").taking_over(Handover::from(owner("ann"))), granted(2)).holds();
}

#[test]
fn nothing_outlives_its_farewell() {
    let left =
        || tale().acquire((0, 10), claim("ann"), granted(1)).release((20, 30), "ann", Ok(Released::Now));
    left().kept((40, 50), "ann", 1).breaks(Rule::Outlived);
    left().acquire((40, 50), claim("ann"), granted(1)).breaks(Rule::Outlived);
    left().acquire((40, 50), claim("ann"), granted(2)).holds();
    left().renew((40, 50), "ann", Ok(Renewal::Gone { why: GoneReason::NotThere })).holds();
    // A renewal that was under way before the farewell ended may have come first.
    let begun = tale().acquire((0, 10), claim("ann"), granted(1)).kept((15, 50), "ann", 1);
    begun.release((20, 30), "ann", Ok(Released::Now)).holds();
}

#[test]
fn nothing_outlives_its_heir_or_its_eviction() {
    let heir = claim("bob").taking_over(Handover::from(owner("ann")));
    let handed = tale().acquire((0, 10), claim("ann"), granted(1)).acquire((20, 30), heir, granted(2));
    handed.kept((40, 50), "ann", 1).breaks(Rule::Outlived);
    let evict = OperatorAction::Evict(Eviction::Now);
    let evicted = || tale().acquire((0, 10), claim("ann"), granted(1));
    evicted()
        .order((20, 30), evict, Some(1), CommandOutcome::Done)
        .kept((40, 50), "ann", 1)
        .breaks(Rule::Outlived);
    let other = CommandOutcome::HolderChanged { token: None };
    evicted().order((20, 30), evict, Some(1), other).kept((40, 50), "ann", 1).holds();
}

#[test]
fn the_buried_stay_buried() {
    let buried = || tale().tombstone((0, 10), "ann", TTL * 3);
    buried().acquire((20, 30), claim("ann"), granted(1)).breaks(Rule::Cancelled);
    buried().acquire((20, 30), claim("ann"), placed()).breaks(Rule::Cancelled);
    buried().acquire((20, 30), claim("ann"), Ok(Verdict::Cancelled)).holds();
    buried().acquire((3_000, 3_010), claim("ann"), granted(1)).holds();
    buried().acquire((20, 30), claim("bob"), granted(1)).holds();
    // A shorter tombstone may have taken its place.
    buried().tombstone((20, 30), "ann", TTL).acquire((1_100, 1_110), claim("ann"), granted(1)).holds();
}

#[test]
fn what_has_ended_stays_ended() {
    tale().acquire((0, 10), claim("ann"), granted(1)).kept((1_010, 1_020), "ann", 1).breaks(Rule::Revived);
    tale().acquire((0, 10), claim("ann"), granted(1)).kept((1_009, 1_020), "ann", 1).holds();
    tale()
        .acquire((0, 10), claim("ann"), granted(1))
        .acquire((1_010, 1_020), claim("ann"), granted(1))
        .breaks(Rule::Revived);
    // A renewal that nobody answered may have kept it alive.
    let doubtful = tale().acquire((0, 10), claim("ann"), granted(1)).renew((500, 510), "ann", Err(lost()));
    doubtful.kept((1_300, 1_310), "ann", 1).holds();
}
