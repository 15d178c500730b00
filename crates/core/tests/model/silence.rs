//! Waiters that do not answer: they are passed over, and keep their place.

use std::time::Duration;

use leasehold_core::{
    ClientId, Handover, OperatorAction, OperatorCommand, RenewRequest, Share, Verdict,
    admission::{ANSWER_WITHIN, WINDOW},
};

use crate::both::{Both, claim, owner, reference, resource};

const LONG: Duration = Duration::from_secs(60);
const MOMENT: Duration = Duration::from_millis(1);

impl Both {
    /// Joins the queue as a claim of this client.
    fn wait_in_queue(&mut self, number: u8, share: Share, client: u64) -> Verdict {
        let mut claim = claim(number, share, LONG).queued();
        claim.client = ClientId::from_number(client);
        self.acquire(&claim)
    }

    fn is_granted(&mut self, number: u8, client: u64) -> bool {
        matches!(self.wait_in_queue(number, Share::WHOLE, client), Verdict::Granted(_))
    }

    /// A verb that changes nothing by itself.
    fn notice_time(&mut self) {
        self.leave(u8::MAX - 1);
    }

    fn renew_place(&mut self, number: u8) {
        self.renew(&RenewRequest::new(reference(number), LONG));
    }

    /// Claim 0 holds the resource; the others wait, one for each client.
    fn with_waiters(clients: &[u64]) -> Both {
        let mut both = Both::new();
        both.acquire(&claim(0, Share::WHOLE, LONG));
        for (number, client) in (1..).zip(clients) {
            assert!(!both.is_granted(number, *client));
        }
        both.pass(LONG / 10);
        both
    }
}

#[test]
fn a_waiter_that_does_not_answer_is_passed_over_after_a_second() {
    let mut both = Both::with_waiters(&[1, 2]);
    both.leave(0);
    both.pass(ANSWER_WITHIN - MOMENT);
    assert!(!both.is_granted(2, 2), "the first one may still answer");
    both.pass(MOMENT);
    assert!(both.is_granted(2, 2));
}

#[test]
fn a_blocked_claim_is_told_when_the_one_ahead_is_passed_over() {
    let mut both = Both::with_waiters(&[1, 2]);
    both.leave(0);
    both.pass(MOMENT);
    let Verdict::Blocked(blocked) = both.wait_in_queue(2, Share::WHOLE, 2) else { panic!("it is blocked") };
    assert_eq!(blocked.changes_in, Some(ANSWER_WITHIN - MOMENT));
}

#[test]
fn a_silent_waiter_that_answers_stands_where_it_stood() {
    let mut both = Both::with_waiters(&[1, 2, 3]);
    both.leave(0);
    both.pass(ANSWER_WITHIN);
    assert!(both.is_granted(2, 2));
    assert_eq!(both.look().queue.iter().map(|place| place.silent).collect::<Vec<_>>(), [true, false]);
    both.renew_place(1);
    assert!(both.look().queue.iter().all(|place| !place.silent));
    both.leave(2);
    assert!(!both.is_granted(3, 3), "it arrived after the one that was silent");
    assert!(both.is_granted(1, 1), "it lost a turn, not its place");
}

#[test]
fn the_second_counts_from_the_first_call() {
    let mut both = Both::with_waiters(&[1, 2, 3]);
    both.leave(0);
    both.pass(ANSWER_WITHIN / 2);
    both.renew_place(3); // finds room, too
    both.pass(ANSWER_WITHIN / 2);
    assert!(both.is_granted(2, 2));
}

#[test]
fn renewing_a_place_is_an_answer() {
    let mut both = Both::with_waiters(&[1, 2]);
    both.leave(0);
    both.pass(ANSWER_WITHIN / 2);
    both.renew_place(1);
    both.pass(ANSWER_WITHIN / 2);
    assert!(!both.is_granted(2, 2), "the first one was heard half a second ago");
    assert!(both.model.called().any(|called| called == owner(1)), "and it was called again");
    both.pass(ANSWER_WITHIN / 2);
    assert!(both.is_granted(2, 2));
}

#[test]
fn the_claims_of_a_client_fall_silent_together() {
    let mut both = Both::with_waiters(&[1, 1, 1, 2]);
    both.leave(0);
    both.pass(ANSWER_WITHIN);
    assert!(both.is_granted(4, 2), "one second for all three");
}

#[test]
fn a_claim_that_was_heard_a_moment_ago_is_not_silent_with_its_client() {
    let mut both = Both::with_waiters(&[1, 1, 2]);
    both.leave(0);
    both.pass(MOMENT);
    both.renew_place(2);
    both.pass(ANSWER_WITHIN - MOMENT);
    assert!(!both.is_granted(3, 2));
    assert!(both.is_granted(2, 1));
}

#[test]
fn a_claim_that_answers_late_does_not_silence_its_client() {
    let mut both = Both::with_waiters(&[1, 1, 2]);
    both.leave(0);
    both.pass(ANSWER_WITHIN * 2);
    assert!(both.is_granted(1, 1), "nobody had noticed that it was late");
    both.leave(1);
    both.pass(MOMENT);
    assert!(!both.is_granted(3, 2), "the second claim of the client is not silent");
    assert!(both.is_granted(2, 1));
}

#[test]
fn after_the_first_silence_the_whole_window_is_called() {
    let clients: Vec<u64> = (1..=100).collect();
    let mut both = Both::with_waiters(&clients);
    both.leave(0);
    both.pass(ANSWER_WITHIN);
    both.notice_time();
    assert_eq!(both.model.called().count(), WINDOW);
    both.pass(ANSWER_WITHIN);
    both.notice_time();
    both.pass(ANSWER_WITHIN);
    both.notice_time();
    assert_eq!(
        both.model.called().count(),
        0,
        "a hundred dead waiters of different clients cost three seconds"
    );
}

#[test]
fn a_waiter_that_was_heard_just_now_is_not_called_with_the_window() {
    let mut both = Both::with_waiters(&[1, 2, 3]);
    both.leave(0);
    both.pass(ANSWER_WITHIN);
    both.renew_place(3);
    assert_eq!(
        both.model.called().collect::<Vec<_>>(),
        [owner(2)],
        "claim 3 would only ask, again and again"
    );
}

#[test]
fn a_pause_calls_nobody() {
    let mut both = Both::with_waiters(&[1, 2]);
    let pause = OperatorAction::Pause { lasting: LONG };
    both.order(&OperatorCommand::new(resource(), pause, "someone", "somehow"));
    both.leave(0);
    both.pass(ANSWER_WITHIN);
    assert_eq!(both.model.called().count(), 0);
    both.order(&OperatorCommand::new(resource(), OperatorAction::Resume, "someone", "somehow"));
    assert_eq!(both.model.called().collect::<Vec<_>>(), [owner(1)]);
}

#[test]
fn a_successor_of_a_silent_claim_is_heard() {
    let mut both = Both::with_waiters(&[1, 2, 1]);
    both.leave(0);
    both.pass(ANSWER_WITHIN);
    assert!(both.is_granted(2, 2));
    both.acquire(&claim(9, Share::WHOLE, LONG).queued().taking_over(Handover::from(owner(1))));
    both.leave(2);
    assert!(both.is_granted(9, 1));
}

#[test]
fn dead_waiters_for_permits_cost_one_second_together() {
    let mut both = Both::new();
    let share = Share::new(1, 3).unwrap();
    for number in 0..3 {
        both.acquire(&claim(number, share, LONG));
    }
    for number in 3..8 {
        both.wait_in_queue(number, share, u64::from(number));
    }
    both.pass(LONG / 10);
    for number in 0..3 {
        both.leave(number);
    }
    both.pass(ANSWER_WITHIN);
    for number in 6..8 {
        assert!(matches!(both.wait_in_queue(number, share, 9), Verdict::Granted(_)));
    }
}
