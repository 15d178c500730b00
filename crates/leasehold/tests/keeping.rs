//! Held leases: renewals, doubt, loss, limits and operator requests.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{Fault, TestBed, millis, seconds};
use leasehold::{
    Client, Clock, CommandOutcome, EndReason, Environment, ErrorKind, EventKind, Eviction, Memory,
    OperatorAction, OperatorCommand, Released, State, Timestamp, WallTime, testing::ManualTime,
};
use leasehold_core::clock::Task;

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_it_is_held() {
    let bed = TestBed::new();
    let lease = bed.client().lease("report", "42").acquire().await.unwrap();
    for _ in 0..20 {
        bed.advance(seconds(10)).await;
        lease.check().unwrap();
        assert!(lease.remaining() >= seconds(19), "{:?}", lease.remaining());
    }
    assert!(bed.client().lease("report", "42").try_acquire().await.unwrap().is_none());
    let renewals = bed.probe.renewed.load(std::sync::atomic::Ordering::SeqCst);
    assert!((20..=24).contains(&renewals), "every third of the ttl, a little early: {renewals}");
    assert_eq!(lease.release().await.unwrap(), Released::Now);
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn without_renewals_a_lease_ends_when_a_sixth_of_the_ttl_is_left_and_before_another_claim_is_granted() {
    let bed = TestBed::new();
    let (mine, theirs) = (bed.client(), bed.client());
    let lease = mine.lease("report", "42").renew(false).acquire().await.unwrap();
    let ended = tokio::spawn(lease.ended());
    bed.advance(millis(24_600)).await;
    assert_eq!(lease.state(), State::Held);
    bed.advance(millis(100)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::Expired));
    assert!(ended.is_finished());
    assert!(
        theirs.lease("report", "42").try_acquire().await.unwrap().is_none(),
        "not before the ttl is over"
    );
    bed.advance(millis(5_300)).await;
    let next = theirs.lease("report", "42").try_acquire().await.unwrap().expect("free now");
    assert!(next.token() > lease.token());
    assert_eq!(lease.release().await.unwrap(), Released::AlreadyGone, "a stale release changes nothing");
    next.check().unwrap();
}

#[tokio::test]
async fn failing_renewals_make_a_lease_doubtful_then_held_again() {
    let bed = TestBed::new();
    let lease = bed.client().lease("report", "42").acquire().await.unwrap();
    bed.probe.set_fault(Fault::Unavailable);
    bed.advance(seconds(11)).await;
    assert!(matches!(lease.state(), State::Doubtful { left } if left > seconds(12) && left < seconds(15)));
    lease.check().unwrap();
    bed.probe.set_fault(Fault::None);
    bed.advance(seconds(3)).await;
    assert_eq!(lease.state(), State::Held);
    assert!(lease.remaining() > seconds(25));
}

#[tokio::test]
async fn without_replies_a_lease_is_lost_at_its_stop_and_stays_lost() {
    for fault in [Fault::Unavailable, Fault::Hangs] {
        let bed = TestBed::new();
        let client = bed.client();
        let mut events = client.events();
        let lease = client.lease("report", "42").acquire().await.unwrap();
        let stop = lease.cancellation();
        let work = {
            let lease = lease.view();
            tokio::spawn(async move { lease.hold(std::future::pending::<()>()).await })
        };
        bed.probe.set_fault(fault);
        bed.advance(millis(24_500)).await;
        assert!(lease.check().is_ok() && !stop.is_cancelled() && !work.is_finished());
        bed.advance(millis(250)).await;
        assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost);
        assert!(stop.is_cancelled());
        assert_eq!(work.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
        // The backend answers again, and still has the lease. That changes nothing.
        bed.probe.set_fault(Fault::None);
        bed.advance(seconds(2)).await;
        assert_eq!(lease.state(), State::Ended(EndReason::Expired));
        let mut seen = Vec::new();
        while let Some(event) = events.try_next() {
            seen.push(event.kind);
        }
        let lost = seen.iter().filter(|kind| matches!(kind, EventKind::Lost { why: EndReason::Expired, .. }));
        assert_eq!(lost.count(), 1, "{fault:?}: {seen:?}");
        assert!(seen.iter().any(|kind| matches!(kind, EventKind::RenewalFailed { .. })), "{fault:?}");
    }
}

#[tokio::test]
async fn after_a_suspend_longer_than_the_lease_the_first_check_reports_the_loss() {
    let bed = TestBed::new();
    let lease = bed.client().lease("report", "42").acquire().await.unwrap();
    bed.time.jump(seconds(31)); // no timer fires
    assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_freeze_that_only_the_calendar_clock_shows_ends_the_lease() {
    let bed = TestBed::new();
    let lease = bed.client().lease("report", "42").acquire().await.unwrap();
    bed.time.step_wall(seconds(20));
    lease.check().unwrap();
    bed.time.step_wall(seconds(5));
    assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_freeze_is_noticed_after_the_calendar_clock_was_set_back() {
    let bed = TestBed::new();
    bed.time.step_wall(seconds(3600)); // the clock is an hour fast
    let lease = bed.client().lease("report", "42").acquire().await.unwrap();
    bed.time.step_wall_back(seconds(3600));
    bed.advance(seconds(20)).await;
    lease.check().unwrap();
    bed.time.step_wall(seconds(31)); // a frozen virtual machine: only the calendar clock has moved
    assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn an_evicted_lease_is_lost_at_its_next_renewal() {
    let bed = TestBed::new();
    let (client, operator) = (bed.client(), bed.client());
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let evict = OperatorAction::Evict(Eviction::Now);
    let command =
        OperatorCommand::new(lease.resource().clone(), evict, "eve", "it hangs").for_token(lease.token());
    assert_eq!(operator.order(&command).await.unwrap(), CommandOutcome::Done);
    assert_eq!(
        operator.order(&command).await.unwrap(),
        CommandOutcome::HolderChanged { token: None },
        "a newer holder is never evicted"
    );
    lease.check().unwrap(); // an eviction without delay accepts that two may run for a moment
    bed.advance(seconds(10)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::Evicted));
}

#[tokio::test]
async fn an_eviction_at_expiry_lets_the_lease_run_out() {
    let bed = TestBed::new();
    let (client, operator) = (bed.client(), bed.client());
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let evict = OperatorAction::Evict(Eviction::AtExpiry);
    let command =
        OperatorCommand::new(lease.resource().clone(), evict, "eve", "deploy").for_token(lease.token());
    operator.order(&command).await.unwrap();
    bed.advance(seconds(12)).await;
    lease.check().unwrap();
    assert!(operator.lease("report", "42").try_acquire().await.unwrap().is_none());
    bed.advance(seconds(13)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::Evicted));
    assert!(
        operator.lease("report", "42").try_acquire().await.unwrap().is_none(),
        "the holder is told first"
    );
    bed.advance(seconds(6)).await;
    assert!(operator.lease("report", "42").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn the_holder_receives_the_finish_request_of_an_operator() {
    let bed = TestBed::new();
    let (client, operator) = (bed.client(), bed.client());
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let asked = tokio::spawn(lease.asked());
    let ask = OperatorCommand::new(
        lease.resource().clone(),
        OperatorAction::Ask { within: seconds(60) },
        "eve",
        "deploy",
    );
    operator.order(&ask).await.unwrap();
    bed.advance(seconds(10)).await;
    let asked = asked.await.unwrap().expect("asked");
    assert_eq!((&*asked.by, &*asked.why), ("eve", "deploy"));
    assert!(asked.within >= seconds(49) && asked.within <= seconds(60), "{:?}", asked.within);
    lease.check().unwrap();
    let unasked = client.lease("report", "43").acquire().await.unwrap();
    let never = tokio::spawn(unasked.asked());
    unasked.release().await.unwrap();
    assert_eq!(never.await.unwrap(), None);
}

#[tokio::test]
async fn max_hold_ends_a_lease_that_could_be_renewed() {
    let bed = TestBed::new();
    let client = bed.client();
    let lease = client.lease("report", "42").max_hold(seconds(60)).acquire().await.unwrap();
    bed.advance(seconds(59)).await;
    lease.check().unwrap();
    bed.advance(seconds(1)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::MaxHold));
    assert!(
        bed.client().lease("report", "42").try_acquire().await.unwrap().is_none(),
        "the backend has it until its ttl ends"
    );
    bed.advance(seconds(30)).await;
    assert!(bed.client().lease("report", "42").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_lease_that_requires_progress_ends_without_it() {
    let bed = TestBed::new();
    let client = bed.client();
    let lease = client.lease("report", "42").progress_within(seconds(40)).acquire().await.unwrap();
    for _ in 0..5 {
        bed.advance(seconds(30)).await;
        lease.progress();
    }
    bed.advance(seconds(39)).await;
    lease.check().unwrap();
    bed.advance(seconds(2)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::NoProgress));
}

#[tokio::test]
async fn extend_renews_at_once_and_changes_the_ttl_of_later_renewals() {
    let bed = TestBed::new();
    let lease = bed.client().lease("report", "42").acquire().await.unwrap();
    lease.extend(seconds(90)).await.unwrap();
    assert!(lease.remaining() > seconds(88));
    assert_eq!(lease.ttl(), seconds(90));
    bed.advance(seconds(25)).await;
    assert!(lease.remaining() < seconds(65));
    bed.advance(seconds(6)).await;
    assert!(lease.remaining() > seconds(85), "{:?}", lease.remaining());
    assert_eq!(lease.extend(millis(1)).await.unwrap_err().kind(), ErrorKind::Invalid);
    // A shorter ttl never shortens the time that is granted.
    lease.extend(seconds(1)).await.unwrap();
    assert!(lease.remaining() > seconds(80));
}

#[tokio::test]
async fn a_hundred_leases_are_renewed_in_few_calls() {
    let bed = TestBed::new();
    let client = bed.client();
    let mut held = Vec::new();
    for id in 0..100 {
        held.push(client.lease("report", &id.to_string()).acquire().await.unwrap());
    }
    bed.advance(seconds(60)).await;
    assert!(held.iter().all(|lease| lease.check().is_ok()));
    let (calls, renewed) = (&bed.probe.renews, &bed.probe.renewed);
    let (calls, renewed) =
        (calls.load(std::sync::atomic::Ordering::SeqCst), renewed.load(std::sync::atomic::Ordering::SeqCst));
    assert!(renewed >= 500, "{renewed}");
    assert!(calls * 20 <= renewed, "{calls} calls for {renewed} renewals");
}

#[tokio::test]
async fn a_lease_moves_to_another_process_with_its_token() {
    let bed = TestBed::new();
    let (here, there) = (bed.client(), bed.client());
    let lease = here.lease("upload", "7").acquire().await.unwrap();
    let (token, view) = (lease.token(), lease.view());
    let text = lease.detach().unwrap().reveal();
    assert_eq!(view.state(), State::Ended(EndReason::Detached));
    bed.advance(seconds(20)).await;
    let adopted = there.adopt(text.parse().unwrap()).await.unwrap();
    assert_eq!(adopted.token(), token);
    bed.advance(seconds(60)).await;
    adopted.check().unwrap();
    adopted.release().await.unwrap();
    assert_eq!(there.adopt(text.parse().unwrap()).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!("1|zz".parse::<leasehold::Detached>().is_err());
}

#[tokio::test]
async fn release_keeping_keeps_the_resource_closed_after_the_release() {
    let bed = TestBed::new();
    let client = bed.client();
    let lease = client.lease("cron", "tick").acquire().await.unwrap();
    bed.advance(seconds(10)).await;
    assert_eq!(lease.release_keeping(seconds(60)).await.unwrap(), Released::Now);
    bed.advance(seconds(49)).await;
    assert!(client.lease("cron", "tick").try_acquire().await.unwrap().is_none());
    bed.advance(seconds(2)).await;
    let again = client.lease("cron", "tick").try_acquire().await.unwrap().unwrap();
    bed.advance(seconds(2)).await;
    assert_eq!(again.release_keeping(seconds(1)).await.unwrap(), Released::Now);
    assert!(
        client.lease("cron", "tick").try_acquire().await.unwrap().is_some(),
        "that time has passed already"
    );
}

#[tokio::test]
async fn at_least_keeps_the_resource_closed_after_the_release() {
    let bed = TestBed::new();
    let client = bed.client();
    let lease = client.lease("cron", "tick").at_least(seconds(60)).acquire().await.unwrap();
    bed.advance(seconds(10)).await;
    assert_eq!(lease.release().await.unwrap(), Released::Now);
    bed.advance(seconds(49)).await;
    assert!(client.lease("cron", "tick").try_acquire().await.unwrap().is_none());
    bed.advance(seconds(2)).await;
    assert!(client.lease("cron", "tick").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_leader_that_loses_the_lead_runs_for_it_again_until_the_work_is_done() {
    let bed = TestBed::new();
    let client = bed.client();
    let election = client.election("scheduler", "eu");
    let tokens = std::cell::RefCell::new(Vec::new());
    let lead = election.lead("host-a", async |lead| {
        tokens.borrow_mut().push(lead.token());
        if tokens.borrow().len() == 1 {
            std::future::pending::<()>().await;
        }
    });
    let operator = async {
        bed.advance(seconds(1)).await;
        let resource = "scheduler/eu".parse().unwrap();
        let command = OperatorCommand::new(
            resource,
            OperatorAction::Evict(Eviction::Now),
            "anna",
            "to see who is next",
        );
        client.order(&command).await.unwrap();
        bed.advance(seconds(60)).await;
    };
    let (led, ()) = tokio::join!(lead, operator);
    led.unwrap();
    let tokens = tokens.into_inner();
    assert!(tokens.len() == 2 && tokens[0] < tokens[1], "{tokens:?}");
    assert!(bed.is_clean().await);
}

/// Manual time that counts the timers. With the memory backend, which answers at once, only the driver makes some: one
/// each time that it runs.
#[derive(Clone, Debug)]
struct CountedTimers(ManualTime, Arc<AtomicU64>);

impl Clock for CountedTimers {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
    fn wall(&self) -> WallTime {
        self.0.wall()
    }
}

impl Environment for CountedTimers {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
    fn sleep(&self, duration: Duration) -> Task {
        self.1.fetch_add(1, SeqCst);
        self.0.sleep(duration)
    }
    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

#[tokio::test]
async fn leases_that_come_and_go_do_not_wake_the_driver() {
    for ttl in [seconds(1), seconds(30)] {
        let environment = CountedTimers(ManualTime::new(), Arc::default());
        let memory = Memory::in_environment(Arc::new(environment.clone()));
        let client = Client::builder(Arc::new(memory)).environment(Arc::new(environment.clone())).build();
        for _ in 0..1000 {
            let lease = client.lease("report", "42").ttl(ttl).acquire().await.unwrap();
            tokio::task::yield_now().await; // the driver runs now if it was woken
            assert_eq!(lease.release().await.unwrap(), Released::Now);
            tokio::task::yield_now().await;
        }
        let runs = environment.1.load(SeqCst);
        assert!((1..=3).contains(&runs), "ttl {ttl:?}: the driver ran {runs} times for 1000 leases");
        // It is there for a lease that is held.
        let lease = client.lease("report", "42").ttl(ttl).acquire().await.unwrap();
        environment.0.advance(ttl * 5).await;
        lease.check().unwrap();
    }
}
