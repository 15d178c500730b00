//! Waiting: the local line, turns, strict order, wake-ups, and what happens when the backend fails meanwhile.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::sync::{Arc, Mutex, atomic::Ordering::SeqCst};

use common::{Mood, Stage, millis, seconds};
use leasehold::{
    Attempt, Client, Effect, ErrorKind, EventKind, Lease, OperatorAction, OperatorCommand, Result,
};
use tokio::task::JoinHandle;

type Waiter = JoinHandle<Result<Lease>>;

fn wait_for(client: &Client, id: &str) -> Waiter {
    tokio::spawn(client.lease("report", id).wait_forever().acquire())
}

#[tokio::test]
async fn ten_thousand_waiters_of_one_client_ask_the_backend_as_often_as_one() {
    let stage = Stage::new();
    let (holder, client) = (stage.client(), stage.client());
    let held = holder.lease("report", "42").acquire().await.unwrap();
    let before = stage.probe.asked();
    let waiters: Vec<Waiter> = (0..10_000).map(|_| wait_for(&client, "42")).collect();
    stage.pass(seconds(60)).await;
    let many = stage.probe.asked() - before;
    waiters.iter().for_each(Waiter::abort);
    stage.settle().await;

    let before = stage.probe.asked();
    let one = wait_for(&client, "42");
    stage.pass(seconds(60)).await;
    let alone = stage.probe.asked() - before;
    one.abort();
    assert!(many <= alone + 3, "{many} asks for ten thousand, {alone} for one");
    assert!(alone < 40, "and one does not ask often: {alone}");
    held.release().await.unwrap();
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn a_seat_is_handed_over_in_one_call_with_a_higher_token() {
    let stage = Stage::new();
    let client = stage.client();
    let mut events = client.events();
    let first = client.lease("report", "42").acquire().await.unwrap();
    let second = wait_for(&client, "42");
    let third = wait_for(&client, "42");
    stage.settle().await;
    let before = stage.probe.calls();
    let token = first.token();
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert_eq!(stage.probe.calls() - before, 1, "one call releases and grants");
    assert!(second.token() > token);
    drop(second); // dropped, not released: handed over all the same
    let third = third.await.unwrap().unwrap();
    assert_eq!(stage.probe.calls() - before, 2);
    third.release().await.unwrap();
    let mut handed_over = 0;
    while let Some(event) = events.try_next() {
        handed_over += u32::from(matches!(event.kind, EventKind::Acquired { handed_over: true, .. }));
    }
    assert_eq!(handed_over, 2);
    assert!(stage.is_clean().await);
}

/// Each client's tasks acquire, note their name, and release, until all is done.
async fn turns(stage: &Stage, fair: bool) -> Vec<&'static str> {
    let (ours, theirs) = (stage.client(), stage.client());
    let order = Arc::new(Mutex::new(Vec::new()));
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let mut tasks = Vec::new();
    for (client, name, count) in [(&ours, "ours", 40), (&theirs, "theirs", 3)] {
        for _ in 0..count {
            let request = client.lease("report", "42").wait_forever();
            let request = if fair { request.fair() } else { request };
            let order = Arc::clone(&order);
            tasks.push(tokio::spawn(async move {
                let lease = request.acquire().await.unwrap();
                order.lock().unwrap().push(name);
                lease.release().await.unwrap();
            }));
            stage.settle().await;
        }
    }
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    assert_eq!(order.len(), 43);
    order
}

#[tokio::test]
async fn a_client_takes_turns_but_not_for_ever_while_others_wait() {
    let stage = Stage::new();
    let order = turns(&stage, false).await;
    let first_of_theirs = order.iter().position(|name| *name == "theirs").unwrap();
    assert!(first_of_theirs > 1, "turns are taken: {order:?}");
    let longest = order.split(|name| *name == "theirs").map(<[_]>::len).take(2).max().unwrap();
    assert!(longest <= 17, "at most 16 hand-overs in a row while others wait: {order:?}");
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn fair_claims_are_granted_in_order_of_arrival_across_processes() {
    let stage = Stage::new();
    let order = turns(&stage, true).await;
    assert!(
        order[..40].iter().all(|name| *name == "ours") && order[40..].iter().all(|name| *name == "theirs")
    );
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn a_paused_resource_refuses_the_hand_over() {
    let stage = Stage::new();
    let (client, operator) = (stage.client(), stage.client());
    let held = client.lease("report", "42").acquire().await.unwrap();
    let waiter = wait_for(&client, "42");
    stage.settle().await;
    let pause = OperatorAction::Pause { lasting: seconds(60) };
    operator.order(&OperatorCommand::new(held.resource().clone(), pause, "eve", "deploy")).await.unwrap();
    held.release().await.unwrap();
    stage.pass(seconds(50)).await;
    assert!(!waiter.is_finished());
    stage.pass(seconds(15)).await;
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn a_waiter_in_another_process_is_woken_by_the_release() {
    let stage = Stage::new();
    let (ours, theirs) = (stage.client(), stage.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "42");
    stage.settle().await;
    held.release().await.unwrap();
    stage.settle().await; // no time passes
    assert!(waiter.is_finished());
    let lease = waiter.await.unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_gets_what_a_dead_holder_left_soon_after_it_expires() {
    let stage = Stage::new();
    let theirs = stage.client();
    let dead = stage.client().lease("report", "42").renew(false).acquire().await.unwrap();
    std::mem::forget(dead);
    let waiter = wait_for(&theirs, "42");
    stage.pass(millis(29_990)).await;
    assert!(!waiter.is_finished());
    stage.pass(millis(50)).await;
    assert!(waiter.is_finished());
}

#[tokio::test]
async fn local_waiters_do_not_wait_for_a_lost_holder_to_notice() {
    let stage = Stage::new();
    let client = stage.client();
    let held = client.lease("report", "42").renew(false).acquire().await.unwrap();
    let waiter = wait_for(&client, "42");
    stage.pass(seconds(31)).await;
    let next = waiter.await.unwrap().unwrap();
    assert!(next.token() > held.token() && held.check().is_err());
    drop(held); // late, and harmless
    stage.settle().await;
    next.check().unwrap();
    assert!(stage.client().lease("report", "42").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_wait_that_runs_out_says_who_holds_it() {
    let stage = Stage::new();
    let (ours, theirs) = (stage.client(), stage.client());
    let held = ours.lease("report", "42").label("nightly").acquire().await.unwrap();
    for client in [&theirs, &ours] {
        let ahead = wait_for(client, "42");
        stage.settle().await;
        let request = client.lease("report", "42").wait(seconds(3));
        let gives_up = tokio::spawn(request.acquire());
        stage.pass(seconds(4)).await;
        let error = gives_up.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contended);
        if std::ptr::eq(client, &raw const theirs) {
            assert_eq!(error.busy().unwrap().holders[0].holder.label, "nightly", "{error}");
            assert!(error.to_string().contains("nightly"), "{error}");
        }
        ahead.abort();
        stage.settle().await;
    }
    let Attempt::Busy(busy) = theirs.lease("report", "42").attempt().await.unwrap() else {
        panic!("it is held")
    };
    assert_eq!(busy.holders[0].token, held.token());
    assert!(busy.retry_after.unwrap() <= seconds(30));
}

#[tokio::test]
async fn attempts_are_counted_and_leave_no_place() {
    let stage = Stage::new();
    let (ours, theirs) = (stage.client(), stage.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let before = stage.probe.asked();
    let tries = tokio::spawn(theirs.lease("report", "42").attempts(4).acquire());
    stage.settle().await;
    assert_eq!(theirs.look("report", "42").await.unwrap().queue_length, 0);
    stage.pass(seconds(2)).await;
    assert_eq!(tries.await.unwrap().unwrap_err().kind(), ErrorKind::Contended);
    assert_eq!(stage.probe.asked() - before, 4);
    held.release().await.unwrap();
}

#[tokio::test]
async fn the_next_waiter_inherits_the_place_of_a_cancelled_one() {
    let stage = Stage::new();
    let (ours, theirs, others) = (stage.client(), stage.client(), stage.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let head = wait_for(&theirs, "42");
    stage.settle().await;
    let heir = wait_for(&theirs, "42");
    let rival = wait_for(&others, "42");
    stage.settle().await;
    head.abort();
    stage.settle().await;
    assert_eq!(theirs.look("report", "42").await.unwrap().queue_length, 2);
    held.release().await.unwrap();
    stage.settle().await;
    assert!(heir.is_finished() && !rival.is_finished(), "the heir is ahead of the rival");
    heir.await.unwrap().unwrap().release().await.unwrap();
    rival.await.unwrap().unwrap().release().await.unwrap();
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn an_outage_during_the_wait_is_ridden_out_if_it_is_short() {
    let stage = Stage::new();
    let (ours, theirs) = (stage.client(), stage.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "42");
    stage.settle().await;
    stage.probe.mood(Mood::Down);
    stage.pass(seconds(5)).await;
    stage.probe.mood(Mood::Well);
    stage.pass(seconds(3)).await;
    held.release().await.unwrap();
    stage.pass(seconds(3)).await;
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_that_gives_up_during_an_outage_fails_alone() {
    for mood in [Mood::Deaf, Mood::Down, Mood::Mute] {
        let stage = Stage::new();
        let client = stage.client();
        stage.probe.mood(mood);
        let impatient = tokio::spawn(client.lease("report", "42").wait(seconds(1)).acquire());
        stage.pass(millis(900)).await;
        let patient = tokio::spawn(client.lease("report", "42").wait(seconds(60)).acquire());
        stage.pass(millis(2100)).await;
        assert_eq!(impatient.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable, "{mood:?}");
        assert!(!patient.is_finished(), "{mood:?}: it has 60 seconds of its own");
        stage.probe.mood(Mood::Well);
        stage.pass(seconds(16)).await;
        patient.await.unwrap().unwrap().release().await.unwrap();
        stage.pass(seconds(10)).await;
        assert!(stage.is_clean().await, "{mood:?}");
    }
}

#[tokio::test]
async fn a_waiter_that_comes_during_an_outage_is_given_all_the_time_that_an_outage_is_given() {
    let stage = Stage::new();
    let client = stage.client();
    stage.probe.mood(Mood::Down);
    let early = wait_for(&client, "42");
    stage.pass(seconds(6)).await;
    let late = wait_for(&client, "42");
    stage.pass(seconds(6)).await;
    assert!(early.is_finished(), "after ten seconds without the backend");
    assert_eq!(early.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!late.is_finished(), "it has waited for six");
    stage.probe.mood(Mood::Well);
    stage.pass(seconds(3)).await;
    late.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_wait_that_ends_in_line_during_an_outage_says_that_the_backend_was_away() {
    let stage = Stage::new();
    let client = stage.client();
    stage.probe.mood(Mood::Down);
    let _head = wait_for(&client, "42");
    stage.settle().await;
    let second = tokio::spawn(client.lease("report", "42").wait(seconds(2)).acquire());
    stage.pass(seconds(3)).await;
    let error = second.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "it never asked");
}

#[tokio::test]
async fn what_will_not_pass_fails_everyone_in_line_at_once() {
    let stage = Stage::new();
    let client = stage.client();
    stage.probe.mood(Mood::Down);
    let waiters: Vec<Waiter> = (0..5).map(|_| wait_for(&client, "42")).collect();
    stage.settle().await;
    stage.probe.mood(Mood::Denies);
    stage.pass(seconds(3)).await;
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Denied);
    }
}

#[tokio::test]
async fn a_long_outage_fails_everyone_in_line_with_the_same_error() {
    let stage = Stage::new();
    let (ours, theirs) = (stage.client(), stage.client());
    let _held = ours.lease("report", "42").acquire().await.unwrap();
    let waiters: Vec<Waiter> = (0..50).map(|_| wait_for(&theirs, "42")).collect();
    stage.settle().await;
    stage.probe.mood(Mood::Down);
    // The place is asked for again within five seconds, and the outage is given ten from then on.
    stage.pass(seconds(18)).await;
    for waiter in waiters {
        assert!(waiter.is_finished(), "one after the other would take minutes");
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let refused = theirs.lease("report", "42").try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "a try does not wait for better times");
}

#[tokio::test]
async fn a_lost_reply_is_asked_for_again_and_found() {
    let stage = Stage::new();
    let client = stage.client();
    stage.probe.mood(Mood::Mute);
    let pending = tokio::spawn(client.lease("report", "42").acquire());
    stage.settle().await;
    stage.probe.mood(Mood::Well);
    stage.pass(seconds(1)).await;
    let lease = pending.await.unwrap().unwrap();
    assert_eq!(lease.token().get(), 1, "the same grant, not another one");
    lease.release().await.unwrap();
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn a_semaphore_and_readers_wait_in_order_of_arrival() {
    let stage = Stage::new();
    let client = stage.client();
    let three = client.semaphore("export", "acme", 3);
    let held = three.permits(2).acquire().await.unwrap();
    let heavy = tokio::spawn(three.permits(3).wait_forever().acquire());
    stage.settle().await;
    assert!(three.permits(1).try_acquire().await.unwrap().is_none(), "a light one does not overtake");
    let light = tokio::spawn(three.permits(1).wait_forever().acquire());
    stage.settle().await;
    held.release().await.unwrap();
    stage.settle().await;
    assert!(heavy.is_finished() && !light.is_finished());
    heavy.await.unwrap().unwrap().release().await.unwrap();
    light.await.unwrap().unwrap().release().await.unwrap();

    let index = client.rwlock("index", "main");
    let (a, b) = (index.read().acquire().await.unwrap(), index.read().acquire().await.unwrap());
    let writer = tokio::spawn(index.write().wait_forever().acquire());
    stage.settle().await;
    let late = tokio::spawn(index.read().wait_forever().acquire());
    stage.settle().await;
    a.release().await.unwrap();
    b.release().await.unwrap();
    let written = writer.await.unwrap().unwrap();
    assert!(!late.is_finished(), "a reader does not pass a waiting writer");
    let read = written.downgrade().await.unwrap();
    stage.settle().await;
    assert!(late.is_finished(), "readers come in after the downgrade");
    read.release().await.unwrap();
    late.await.unwrap().unwrap().release().await.unwrap();
    assert!(stage.is_clean().await);
    assert!(stage.probe.waits.load(SeqCst) > 0);
}
