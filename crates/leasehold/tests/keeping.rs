//! A lease is kept alive, doubted, lost, limited and asked for.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{Mood, Stage, millis, seconds};
use leasehold::{
    CommandOutcome, EndReason, ErrorKind, EventKind, Eviction, OperatorAction, OperatorCommand, Released,
    State,
};

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_it_is_held() {
    let stage = Stage::new();
    let lease = stage.client().lease("report", "42").acquire().await.unwrap();
    for _ in 0..20 {
        stage.pass(seconds(10)).await;
        lease.check().unwrap();
        assert!(lease.remaining() >= seconds(19), "{:?}", lease.remaining());
    }
    assert!(stage.client().lease("report", "42").try_acquire().await.unwrap().is_none());
    let renewals = stage.probe.renewed.load(std::sync::atomic::Ordering::SeqCst);
    assert!((20..=24).contains(&renewals), "every third of the ttl, a little early: {renewals}");
    assert_eq!(lease.release().await.unwrap(), Released::Now);
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn without_renewal_the_holder_is_told_when_a_sixth_is_left_and_before_anyone_else_is_granted() {
    let stage = Stage::new();
    let (mine, theirs) = (stage.client(), stage.client());
    let lease = mine.lease("report", "42").renew(false).acquire().await.unwrap();
    let ended = tokio::spawn(lease.ended());
    stage.pass(millis(24_600)).await;
    assert_eq!(lease.state(), State::Held);
    stage.pass(millis(100)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::Expired));
    assert!(ended.is_finished());
    assert!(
        theirs.lease("report", "42").try_acquire().await.unwrap().is_none(),
        "not before the ttl is over"
    );
    stage.pass(millis(5_300)).await;
    let next = theirs.lease("report", "42").try_acquire().await.unwrap().expect("free now");
    assert!(next.token() > lease.token());
    assert_eq!(lease.release().await.unwrap(), Released::AlreadyGone, "a stale release harms nobody");
    next.check().unwrap();
}

#[tokio::test]
async fn failing_renewals_make_a_lease_doubtful_then_held_again() {
    let stage = Stage::new();
    let lease = stage.client().lease("report", "42").acquire().await.unwrap();
    stage.probe.mood(Mood::Down);
    stage.pass(seconds(11)).await;
    assert!(matches!(lease.state(), State::Doubtful { left } if left > seconds(12) && left < seconds(15)));
    lease.check().unwrap();
    stage.probe.mood(Mood::Well);
    stage.pass(seconds(3)).await;
    assert_eq!(lease.state(), State::Held);
    assert!(lease.remaining() > seconds(25));
}

#[tokio::test]
async fn loss_is_signalled_at_the_threshold_when_nothing_answers_and_never_taken_back() {
    for mood in [Mood::Down, Mood::Deaf] {
        let stage = Stage::new();
        let client = stage.client();
        let mut events = client.events();
        let lease = client.lease("report", "42").acquire().await.unwrap();
        let stop = lease.cancellation();
        let work = {
            let lease = lease.view();
            tokio::spawn(async move { lease.hold(std::future::pending::<()>()).await })
        };
        stage.probe.mood(mood);
        stage.pass(millis(24_500)).await;
        assert!(lease.check().is_ok() && !stop.is_cancelled() && !work.is_finished());
        stage.pass(millis(250)).await;
        assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost);
        assert!(stop.is_cancelled());
        assert_eq!(work.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
        // The backend is back, and still has it; that changes nothing.
        stage.probe.mood(Mood::Well);
        stage.pass(seconds(2)).await;
        assert_eq!(lease.state(), State::Ended(EndReason::Expired));
        let mut seen = Vec::new();
        while let Some(event) = events.try_next() {
            seen.push(event.kind);
        }
        let lost = seen.iter().filter(|kind| matches!(kind, EventKind::Lost { why: EndReason::Expired, .. }));
        assert_eq!(lost.count(), 1, "{mood:?}: {seen:?}");
        assert!(seen.iter().any(|kind| matches!(kind, EventKind::RenewalFailed { .. })), "{mood:?}");
    }
}

#[tokio::test]
async fn a_machine_that_slept_through_the_lease_is_told_by_the_first_check() {
    let stage = Stage::new();
    let lease = stage.client().lease("report", "42").acquire().await.unwrap();
    stage.time.jump(seconds(31)); // no timer fires
    assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_frozen_machine_shows_only_on_the_calendar() {
    let stage = Stage::new();
    let lease = stage.client().lease("report", "42").acquire().await.unwrap();
    stage.time.step_wall(seconds(20));
    lease.check().unwrap();
    stage.time.step_wall(seconds(5));
    assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn what_is_not_ours_is_lost_at_the_next_renewal() {
    let stage = Stage::new();
    let (client, operator) = (stage.client(), stage.client());
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let evict = OperatorAction::Evict(Eviction::Now);
    let order =
        OperatorCommand::new(lease.resource().clone(), evict, "eve", "it hangs").for_token(lease.token());
    assert_eq!(operator.order(&order).await.unwrap(), CommandOutcome::Done);
    assert_eq!(
        operator.order(&order).await.unwrap(),
        CommandOutcome::HolderChanged { token: None },
        "a newer one is never hit"
    );
    lease.check().unwrap(); // two may run: that is what the order says
    stage.pass(seconds(10)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::Evicted));
}

#[tokio::test]
async fn an_eviction_at_expiry_lets_the_lease_run_out() {
    let stage = Stage::new();
    let (client, operator) = (stage.client(), stage.client());
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let evict = OperatorAction::Evict(Eviction::AtExpiry);
    let order =
        OperatorCommand::new(lease.resource().clone(), evict, "eve", "deploy").for_token(lease.token());
    operator.order(&order).await.unwrap();
    stage.pass(seconds(12)).await;
    lease.check().unwrap();
    assert!(operator.lease("report", "42").try_acquire().await.unwrap().is_none());
    stage.pass(seconds(13)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::Evicted));
    assert!(operator.lease("report", "42").try_acquire().await.unwrap().is_none(), "told first");
    stage.pass(seconds(6)).await;
    assert!(operator.lease("report", "42").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn the_holder_hears_what_an_operator_asks() {
    let stage = Stage::new();
    let (client, operator) = (stage.client(), stage.client());
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let asked = tokio::spawn(lease.asked());
    let ask = OperatorCommand::new(
        lease.resource().clone(),
        OperatorAction::Ask { within: seconds(60) },
        "eve",
        "deploy",
    );
    operator.order(&ask).await.unwrap();
    stage.pass(seconds(10)).await;
    let asked = asked.await.unwrap().expect("asked");
    assert_eq!((&*asked.by, &*asked.why), ("eve", "deploy"));
    assert!(asked.within >= seconds(49) && asked.within <= seconds(60), "{:?}", asked.within);
    lease.check().unwrap();
    let quiet = client.lease("report", "43").acquire().await.unwrap();
    let never = tokio::spawn(quiet.asked());
    quiet.release().await.unwrap();
    assert_eq!(never.await.unwrap(), None);
}

#[tokio::test]
async fn max_hold_ends_a_lease_that_could_be_renewed() {
    let stage = Stage::new();
    let client = stage.client();
    let lease = client.lease("report", "42").max_hold(seconds(60)).acquire().await.unwrap();
    stage.pass(seconds(59)).await;
    lease.check().unwrap();
    stage.pass(seconds(1)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::MaxHold));
    assert!(stage.client().lease("report", "42").try_acquire().await.unwrap().is_none(), "it runs out");
    stage.pass(seconds(30)).await;
    assert!(stage.client().lease("report", "42").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn renewal_tied_to_progress_stops_with_it() {
    let stage = Stage::new();
    let client = stage.client();
    let lease = client.lease("report", "42").progress_within(seconds(40)).acquire().await.unwrap();
    for _ in 0..5 {
        stage.pass(seconds(30)).await;
        lease.progress();
    }
    stage.pass(seconds(39)).await;
    lease.check().unwrap();
    stage.pass(seconds(2)).await;
    assert_eq!(lease.state(), State::Ended(EndReason::NoProgress));
}

#[tokio::test]
async fn extend_renews_at_once_and_from_then_on() {
    let stage = Stage::new();
    let lease = stage.client().lease("report", "42").acquire().await.unwrap();
    lease.extend(seconds(90)).await.unwrap();
    assert!(lease.remaining() > seconds(88));
    assert_eq!(lease.ttl(), seconds(90));
    stage.pass(seconds(25)).await;
    assert!(lease.remaining() < seconds(65));
    stage.pass(seconds(6)).await;
    assert!(lease.remaining() > seconds(85), "{:?}", lease.remaining());
    assert_eq!(lease.extend(millis(1)).await.unwrap_err().kind(), ErrorKind::Invalid);
    // A shorter one never shortens what is granted.
    lease.extend(seconds(1)).await.unwrap();
    assert!(lease.remaining() > seconds(80));
}

#[tokio::test]
async fn a_hundred_leases_are_renewed_in_few_calls() {
    let stage = Stage::new();
    let client = stage.client();
    let mut held = Vec::new();
    for id in 0..100 {
        held.push(client.lease("report", &id.to_string()).acquire().await.unwrap());
    }
    stage.pass(seconds(60)).await;
    assert!(held.iter().all(|lease| lease.check().is_ok()));
    let (calls, renewed) = (&stage.probe.renews, &stage.probe.renewed);
    let (calls, renewed) =
        (calls.load(std::sync::atomic::Ordering::SeqCst), renewed.load(std::sync::atomic::Ordering::SeqCst));
    assert!(renewed >= 500, "{renewed}");
    assert!(calls * 20 <= renewed, "{calls} calls for {renewed} renewals");
}

#[tokio::test]
async fn a_lease_moves_to_another_process_with_its_token() {
    let stage = Stage::new();
    let (here, there) = (stage.client(), stage.client());
    let lease = here.lease("upload", "7").acquire().await.unwrap();
    let (token, view) = (lease.token(), lease.view());
    let text = lease.detach().unwrap().reveal();
    assert_eq!(view.state(), State::Ended(EndReason::Detached));
    stage.pass(seconds(20)).await;
    let adopted = there.adopt(text.parse().unwrap()).await.unwrap();
    assert_eq!(adopted.token(), token);
    stage.pass(seconds(60)).await;
    adopted.check().unwrap();
    adopted.release().await.unwrap();
    assert_eq!(there.adopt(text.parse().unwrap()).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!("1|zz".parse::<leasehold::Detached>().is_err());
}

#[tokio::test]
async fn whether_it_stays_closed_may_be_decided_at_the_release() {
    let stage = Stage::new();
    let client = stage.client();
    let lease = client.lease("cron", "tick").acquire().await.unwrap();
    stage.pass(seconds(10)).await;
    assert_eq!(lease.release_keeping(seconds(60)).await.unwrap(), Released::Now);
    stage.pass(seconds(49)).await;
    assert!(client.lease("cron", "tick").try_acquire().await.unwrap().is_none());
    stage.pass(seconds(2)).await;
    let again = client.lease("cron", "tick").try_acquire().await.unwrap().unwrap();
    stage.pass(seconds(2)).await;
    assert_eq!(again.release_keeping(seconds(1)).await.unwrap(), Released::Now);
    assert!(client.lease("cron", "tick").try_acquire().await.unwrap().is_some(), "that time has passed");
}

#[tokio::test]
async fn at_least_keeps_it_closed_after_the_release() {
    let stage = Stage::new();
    let client = stage.client();
    let lease = client.lease("cron", "tick").at_least(seconds(60)).acquire().await.unwrap();
    stage.pass(seconds(10)).await;
    assert_eq!(lease.release().await.unwrap(), Released::Now);
    stage.pass(seconds(49)).await;
    assert!(client.lease("cron", "tick").try_acquire().await.unwrap().is_none());
    stage.pass(seconds(2)).await;
    assert!(client.lease("cron", "tick").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn who_lost_an_election_stands_again_until_the_work_is_done() {
    let stage = Stage::new();
    let client = stage.client();
    let election = client.election("scheduler", "eu");
    let terms = std::cell::RefCell::new(Vec::new());
    let lead = election.lead("host-a", async |lead| {
        terms.borrow_mut().push(lead.token());
        if terms.borrow().len() == 1 {
            std::future::pending::<()>().await;
        }
    });
    let operator = async {
        stage.pass(seconds(1)).await;
        let resource = "scheduler/eu".parse().unwrap();
        let order = OperatorCommand::new(
            resource,
            OperatorAction::Evict(Eviction::Now),
            "anna",
            "to see who is next",
        );
        client.order(&order).await.unwrap();
        stage.pass(seconds(60)).await;
    };
    let (led, ()) = tokio::join!(lead, operator);
    led.unwrap();
    let terms = terms.into_inner();
    assert!(terms.len() == 2 && terms[0] < terms[1], "{terms:?}");
    assert!(stage.is_clean().await);
}
