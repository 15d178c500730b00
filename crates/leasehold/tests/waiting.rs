//! Waiting: the local queue, handovers, strict order, wake-ups, and outages of the backend meanwhile.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    num::NonZeroU32,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
};

use common::{Fault, TestBed, millis, seconds};
use leasehold::{
    Attempt, BackendExt as _, Claim, Client, Effect, ErrorKind, EventKind, Holder, Lease, OperatorAction,
    OperatorCommand, OwnerToken, Resource, Result, Share, Verdict,
};
use leasehold_core::admission::ANSWER_WITHIN;
use tokio::task::JoinHandle;

type Waiter = JoinHandle<Result<Lease>>;

fn wait_for(client: &Client, id: &str) -> Waiter {
    tokio::spawn(client.lease("report", id).wait_forever().acquire())
}

#[tokio::test]
async fn ten_thousand_waiters_of_one_client_ask_the_backend_as_often_as_one() {
    let bed = TestBed::new();
    let (holder, client) = (bed.client(), bed.client());
    let held = holder.lease("report", "42").acquire().await.unwrap();
    let before = bed.probe.acquires_sent();
    let waiters: Vec<Waiter> = (0..10_000).map(|_| wait_for(&client, "42")).collect();
    bed.advance(seconds(60)).await;
    let many = bed.probe.acquires_sent() - before;
    waiters.iter().for_each(Waiter::abort);
    bed.settle().await;

    let before = bed.probe.acquires_sent();
    let one = wait_for(&client, "42");
    bed.advance(seconds(60)).await;
    let alone = bed.probe.acquires_sent() - before;
    one.abort();
    assert!(many <= alone + 3, "{many} requests for ten thousand waiters, {alone} for one");
    assert!(alone < 40, "one waiter does not ask often: {alone}");
    held.release().await.unwrap();
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn a_lease_is_handed_over_in_one_call_with_a_higher_token() {
    let bed = TestBed::new();
    let client = bed.client();
    let mut events = client.events();
    let first = client.lease("report", "42").acquire().await.unwrap();
    let second = wait_for(&client, "42");
    let third = wait_for(&client, "42");
    bed.settle().await;
    let before = bed.probe.calls();
    let token = first.token();
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert_eq!(bed.probe.calls() - before, 1, "one call releases and grants");
    assert!(second.token() > token);
    drop(second); // a dropped lease is handed over too
    let third = third.await.unwrap().unwrap();
    assert_eq!(bed.probe.calls() - before, 2);
    third.release().await.unwrap();
    let mut handed_over = 0;
    while let Some(event) = events.try_next() {
        handed_over += u32::from(matches!(event.kind, EventKind::Acquired { handed_over: true, .. }));
    }
    assert_eq!(handed_over, 2);
    assert!(bed.is_clean().await);
}

/// Tasks of two clients acquire, record the name of their client, and release. Returns the names in the order of grants.
async fn grant_order(bed: &TestBed, fair: bool) -> Vec<&'static str> {
    let (ours, theirs) = (bed.client(), bed.client());
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
            bed.settle().await;
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
async fn a_client_hands_over_locally_but_only_16_times_in_a_row_while_others_wait() {
    let bed = TestBed::new();
    let order = grant_order(&bed, false).await;
    let first_of_theirs = order.iter().position(|name| *name == "theirs").unwrap();
    assert!(first_of_theirs > 1, "the first client hands over locally: {order:?}");
    let longest = order.split(|name| *name == "theirs").map(<[_]>::len).take(2).max().unwrap();
    assert!(longest <= 17, "at most 16 handovers in a row while others wait: {order:?}");
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn fair_claims_are_granted_in_order_of_arrival_across_processes() {
    let bed = TestBed::new();
    let order = grant_order(&bed, true).await;
    assert!(
        order[..40].iter().all(|name| *name == "ours") && order[40..].iter().all(|name| *name == "theirs")
    );
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn a_paused_resource_is_not_handed_over() {
    let bed = TestBed::new();
    let (client, operator) = (bed.client(), bed.client());
    let held = client.lease("report", "42").acquire().await.unwrap();
    let waiter = wait_for(&client, "42");
    bed.settle().await;
    let pause = OperatorAction::Pause { lasting: seconds(60) };
    operator.order(&OperatorCommand::new(held.resource().clone(), pause, "eve", "deploy")).await.unwrap();
    held.release().await.unwrap();
    bed.advance(seconds(50)).await;
    assert!(!waiter.is_finished());
    bed.advance(seconds(15)).await;
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn a_waiter_in_another_process_is_woken_by_the_release() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "42");
    bed.settle().await;
    held.release().await.unwrap();
    bed.settle().await; // no time passes
    assert!(waiter.is_finished());
    let lease = waiter.await.unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_is_granted_soon_after_the_lease_of_a_dead_holder_expires() {
    let bed = TestBed::new();
    let theirs = bed.client();
    let dead = bed.client().lease("report", "42").renew(false).acquire().await.unwrap();
    std::mem::forget(dead);
    let waiter = wait_for(&theirs, "42");
    bed.advance(millis(29_990)).await;
    assert!(!waiter.is_finished());
    bed.advance(millis(50)).await;
    assert!(waiter.is_finished());
}

#[tokio::test]
async fn local_waiters_go_on_when_the_holder_is_lost_and_not_dropped() {
    let bed = TestBed::new();
    let client = bed.client();
    let held = client.lease("report", "42").renew(false).acquire().await.unwrap();
    let waiter = wait_for(&client, "42");
    bed.advance(seconds(31)).await;
    let next = waiter.await.unwrap().unwrap();
    assert!(next.token() > held.token() && held.check().is_err());
    drop(held); // late, and without an effect
    bed.settle().await;
    next.check().unwrap();
    assert!(bed.client().lease("report", "42").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_wait_that_runs_out_names_the_holder() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let held = ours.lease("report", "42").label("nightly").acquire().await.unwrap();
    for client in [&theirs, &ours] {
        let ahead = wait_for(client, "42");
        bed.settle().await;
        let request = client.lease("report", "42").wait(seconds(3));
        let gives_up = tokio::spawn(request.acquire());
        bed.advance(seconds(4)).await;
        let error = gives_up.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contended);
        assert_eq!(error.busy().unwrap().holders[0].holder.label, "nightly", "{error}");
        assert!(error.to_string().contains("nightly"), "{error}");
        ahead.abort();
        bed.settle().await;
    }
    let Attempt::Busy(busy) = theirs.lease("report", "42").attempt().await.unwrap() else {
        panic!("it is held")
    };
    assert_eq!(busy.holders[0].token, held.token());
    assert!(busy.retry_after.unwrap() <= seconds(30));
}

/// A local waiter got neither a holder nor a time, and one of another client the end of its own place in the queue.
#[tokio::test]
async fn a_wait_that_runs_out_says_how_long_the_holder_has() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let ttl = seconds(60);
    let held = ours.lease("report", "42").ttl(ttl).label("nightly").renew(false).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for client in [&ours, &theirs] {
        for ahead in 0..2 {
            let wait = seconds(4 - ahead); // the second one gives up first, so that it has one ahead
            waiters.push((ahead, tokio::spawn(client.lease("report", "42").wait(wait).acquire())));
            bed.settle().await;
        }
    }
    bed.advance(millis(4100)).await;
    for (number, (ahead, waiter)) in waiters.into_iter().enumerate() {
        let error = waiter.await.unwrap().unwrap_err();
        let busy = error.busy().unwrap();
        let [by] = &busy.holders[..] else { panic!("waiter {number}: {busy:?}") };
        assert_eq!((by.holder.label.as_str(), by.token), ("nightly", held.token()), "waiter {number}");
        let left = busy.retry_after.unwrap();
        assert!(left > seconds(50) && left <= seconds(57), "waiter {number}: {left:?}, {error}");
        assert!(by.held_for >= seconds(3) && by.remaining == left, "waiter {number}: {by:?}");
        assert_eq!(u64::from(busy.ahead), ahead, "waiter {number}: {busy:?}");
    }
}

#[tokio::test]
async fn attempts_are_counted_and_take_no_place_in_the_queue() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let before = bed.probe.acquires_sent();
    let tries = tokio::spawn(theirs.lease("report", "42").attempts(4).acquire());
    bed.settle().await;
    assert_eq!(theirs.look("report", "42").await.unwrap().queue_length, 0);
    bed.advance(seconds(2)).await;
    assert_eq!(tries.await.unwrap().unwrap_err().kind(), ErrorKind::Contended);
    assert_eq!(bed.probe.acquires_sent() - before, 4);
    held.release().await.unwrap();
}

#[tokio::test]
async fn the_next_local_waiter_takes_over_the_place_of_a_cancelled_one() {
    let bed = TestBed::new();
    let (ours, theirs, others) = (bed.client(), bed.client(), bed.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let head = wait_for(&theirs, "42");
    bed.settle().await;
    let successor = wait_for(&theirs, "42");
    let rival = wait_for(&others, "42");
    bed.settle().await;
    head.abort();
    bed.settle().await;
    assert_eq!(theirs.look("report", "42").await.unwrap().queue_length, 2);
    held.release().await.unwrap();
    bed.settle().await;
    assert!(
        successor.is_finished() && !rival.is_finished(),
        "the successor has the place ahead of the rival"
    );
    successor.await.unwrap().unwrap().release().await.unwrap();
    rival.await.unwrap().unwrap().release().await.unwrap();
    assert!(bed.is_clean().await);
}

/// The backend refuses the claim that takes over because of its capacity, and leaves the claim before it in the queue.
#[tokio::test]
async fn a_place_that_could_not_be_taken_over_is_released() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let head = wait_for(&theirs, "42");
    bed.settle().await;
    let next = wait_for(&theirs, "42");
    bed.settle().await;
    let resize = OperatorAction::Resize { capacity: NonZeroU32::new(3).unwrap() };
    let command = OperatorCommand::new(held.resource().clone(), resize, "eve", "more load");
    ours.order(&command).await.unwrap();
    head.abort();
    bed.settle().await;
    assert_eq!(next.await.unwrap().unwrap_err().kind(), ErrorKind::Mismatch);
    bed.settle().await;
    assert_eq!(theirs.look("report", "42").await.unwrap().queue_length, 0, "nobody waits any more");
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_survives_a_short_outage() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let held = ours.lease("report", "42").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "42");
    bed.settle().await;
    bed.probe.set_fault(Fault::Unavailable);
    bed.advance(seconds(5)).await;
    bed.probe.set_fault(Fault::None);
    bed.advance(seconds(3)).await;
    held.release().await.unwrap();
    bed.advance(seconds(3)).await;
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_limit_ends_during_an_outage_fails_alone() {
    for fault in [Fault::Hangs, Fault::Unavailable, Fault::LosesReplies] {
        let bed = TestBed::new();
        let client = bed.client();
        bed.probe.set_fault(fault);
        let short = tokio::spawn(client.lease("report", "42").wait(seconds(1)).acquire());
        bed.advance(millis(900)).await;
        let long = tokio::spawn(client.lease("report", "42").wait(seconds(60)).acquire());
        bed.advance(millis(2100)).await;
        assert_eq!(short.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable, "{fault:?}");
        assert!(!long.is_finished(), "{fault:?}: it has 60 seconds of its own");
        bed.probe.set_fault(Fault::None);
        bed.advance(seconds(16)).await;
        long.await.unwrap().unwrap().release().await.unwrap();
        bed.advance(seconds(10)).await;
        assert!(bed.is_clean().await, "{fault:?}");
    }
}

#[tokio::test]
async fn a_waiter_that_comes_during_an_outage_has_ten_seconds_of_its_own() {
    let bed = TestBed::new();
    let client = bed.client();
    bed.probe.set_fault(Fault::Unavailable);
    let early = wait_for(&client, "42");
    bed.advance(seconds(6)).await;
    let late = wait_for(&client, "42");
    bed.advance(seconds(6)).await;
    assert!(early.is_finished(), "after an outage of ten seconds");
    assert_eq!(early.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(!late.is_finished(), "it has seen six seconds of the outage");
    bed.probe.set_fault(Fault::None);
    bed.advance(seconds(3)).await;
    late.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_local_wait_that_ends_during_an_outage_fails_with_unavailable() {
    let bed = TestBed::new();
    let client = bed.client();
    bed.probe.set_fault(Fault::Unavailable);
    let _head = wait_for(&client, "42");
    bed.settle().await;
    let second = tokio::spawn(client.lease("report", "42").wait(seconds(2)).acquire());
    bed.advance(seconds(3)).await;
    let error = second.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "it has sent nothing");
}

#[tokio::test]
async fn an_error_that_will_not_pass_fails_all_local_waiters_at_once() {
    let bed = TestBed::new();
    let client = bed.client();
    bed.probe.set_fault(Fault::Unavailable);
    let waiters: Vec<Waiter> = (0..5).map(|_| wait_for(&client, "42")).collect();
    bed.settle().await;
    bed.probe.set_fault(Fault::Denied);
    bed.advance(seconds(3)).await;
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Denied);
    }
}

#[tokio::test]
async fn a_long_outage_fails_all_local_waiters_with_the_same_error() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let _held = ours.lease("report", "42").acquire().await.unwrap();
    let waiters: Vec<Waiter> = (0..50).map(|_| wait_for(&theirs, "42")).collect();
    bed.settle().await;
    bed.probe.set_fault(Fault::Unavailable);
    // The head asks again within five seconds, and an outage may last ten seconds from then on.
    bed.advance(seconds(18)).await;
    for waiter in waiters {
        assert!(waiter.is_finished(), "one after the other would take minutes");
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let refused = theirs.lease("report", "42").try_acquire().await.unwrap_err();
    assert_eq!(
        refused.kind(),
        ErrorKind::Unavailable,
        "a single attempt does not wait for the end of an outage"
    );
}

#[tokio::test]
async fn after_a_lost_reply_the_next_request_finds_the_grant() {
    let bed = TestBed::new();
    let client = bed.client();
    bed.probe.set_fault(Fault::LosesReplies);
    let pending = tokio::spawn(client.lease("report", "42").acquire());
    bed.settle().await;
    bed.probe.set_fault(Fault::None);
    bed.advance(seconds(1)).await;
    let lease = pending.await.unwrap().unwrap();
    assert_eq!(lease.token().get(), 1, "the same grant");
    lease.release().await.unwrap();
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn a_semaphore_and_readers_wait_in_order_of_arrival() {
    let bed = TestBed::new();
    let client = bed.client();
    let three = client.semaphore("export", "acme", 3);
    let held = three.permits(2).acquire().await.unwrap();
    let heavy = tokio::spawn(three.permits(3).wait_forever().acquire());
    bed.settle().await;
    assert!(three.permits(1).try_acquire().await.unwrap().is_none(), "a small request does not overtake");
    let light = tokio::spawn(three.permits(1).wait_forever().acquire());
    bed.settle().await;
    held.release().await.unwrap();
    bed.settle().await;
    assert!(heavy.is_finished() && !light.is_finished());
    heavy.await.unwrap().unwrap().release().await.unwrap();
    light.await.unwrap().unwrap().release().await.unwrap();

    let index = client.rwlock("index", "main");
    let (a, b) = (index.read().acquire().await.unwrap(), index.read().acquire().await.unwrap());
    let writer = tokio::spawn(index.write().wait_forever().acquire());
    bed.settle().await;
    let late = tokio::spawn(index.read().wait_forever().acquire());
    bed.settle().await;
    a.release().await.unwrap();
    b.release().await.unwrap();
    let written = writer.await.unwrap().unwrap();
    assert!(!late.is_finished(), "a reader does not overtake a waiting writer");
    let read = written.downgrade().await.unwrap();
    bed.settle().await;
    assert!(late.is_finished(), "readers are granted after the downgrade");
    read.release().await.unwrap();
    late.await.unwrap().unwrap().release().await.unwrap();
    assert!(bed.is_clean().await);
    assert!(bed.probe.waits.load(SeqCst) > 0);
}

/// A waiter that will never be heard again: its process was killed.
async fn dead_waiter(bed: &TestBed, number: u8) {
    let holder = Arc::new(Holder::new("dead", u32::from(number), ""));
    let resource = Resource::new("report", "42").unwrap();
    let owner = OwnerToken::from_bytes([number + 1; 16]);
    let claim = Claim::new(resource, owner, Share::WHOLE, seconds(30), holder).queued();
    let verdict = bed.probe.acquire_one(&claim).await.unwrap();
    assert!(matches!(verdict, Verdict::Blocked(blocked) if blocked.queued));
}

#[tokio::test]
async fn a_dead_waiter_at_the_head_costs_a_second_and_the_next_sign_of_life() {
    let bed = TestBed::new();
    let (holder, client) = (bed.client(), bed.client());
    let held = holder.lease("report", "42").acquire().await.unwrap();
    dead_waiter(&bed, 1).await;
    let waiter = wait_for(&client, "42");
    bed.settle().await;
    held.release().await.unwrap();
    bed.advance(ANSWER_WITHIN).await;
    // The place of the live waiter is renewed after a third of its ttl, which is 6 s.
    bed.advance(seconds(2)).await;
    assert!(waiter.is_finished(), "the place of the dead waiter lasts for another three seconds");
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn after_an_expiry_a_dead_waiter_costs_exactly_a_second() {
    let bed = TestBed::new();
    let (holder, client) = (bed.client(), bed.client());
    let held = holder.lease("report", "42").ttl(seconds(5)).renew(false).acquire().await.unwrap();
    bed.advance(seconds(3)).await;
    dead_waiter(&bed, 1).await;
    let waiter = wait_for(&client, "42");
    bed.settle().await;
    bed.advance(seconds(2)).await; // the lease has expired, and the waiter has asked
    bed.advance(millis(100)).await;
    assert!(!waiter.is_finished());
    bed.advance(ANSWER_WITHIN).await;
    assert!(waiter.is_finished(), "it asked when the second was over");
    drop((held, waiter));
}

/// A caller was told the end of a place in the queue, which is not when the resource can be had.
#[tokio::test]
async fn a_paused_resource_says_when_the_pause_ends() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let pause = leasehold::OperatorAction::Pause { lasting: seconds(600) };
    ours.order(&leasehold::OperatorCommand::new("report/42".parse().unwrap(), pause, "ops", "why"))
        .await
        .unwrap();
    let waiting = wait_for(&ours, "42"); // its place ends long before the pause
    bed.settle().await;
    let Attempt::Busy(busy) = theirs.lease("report", "42").attempt().await.unwrap() else {
        panic!("it is paused")
    };
    assert!(busy.paused && busy.retry_after.unwrap() > seconds(590), "{busy:?}");
    waiting.abort();
}
