//! Elections: outages, stopping, and the settings of a candidate.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::sync::{Arc, Mutex};

use common::{Fault, TestBed, seconds};
use leasehold::{Client, ErrorKind, FencingToken, Guarantee, Purpose, Result};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

type Tokens = Arc<Mutex<Vec<FencingToken>>>;

/// A candidate whose work never ends. Each time that it leads, it records its token.
fn lead_for_ever(client: &Client, tokens: &Tokens) -> JoinHandle<Result<()>> {
    let (election, tokens) = (client.election("scheduler", "eu"), Arc::clone(tokens));
    tokio::spawn(async move {
        let lead = election.lead("host", async |lead| {
            tokens.lock().unwrap().push(lead.token());
            std::future::pending::<()>().await;
        });
        lead.await
    })
}

/// The store was away for 33 s: both candidates returned `Unavailable`, and nobody led any more.
#[tokio::test]
async fn an_outage_ends_no_candidate_and_one_leads_when_it_is_over() {
    for fault in [Fault::Unavailable, Fault::Hangs, Fault::LosesReplies] {
        let bed = TestBed::new();
        let tokens = Tokens::default();
        let candidates = [lead_for_ever(&bed.client(), &tokens), lead_for_ever(&bed.client(), &tokens)];
        bed.settle().await;
        assert_eq!(tokens.lock().unwrap().len(), 1, "one leads");
        bed.probe.set_fault(fault);
        bed.advance(seconds(60)).await;
        assert!(candidates.iter().all(|candidate| !candidate.is_finished()), "{fault:?}: they go on");
        bed.probe.set_fault(Fault::None);
        bed.advance(seconds(60)).await;
        let led = tokens.lock().unwrap().clone();
        assert!(led.len() >= 2 && led.is_sorted(), "{fault:?}: one leads again: {led:?}");
        let leader = bed.client().election("scheduler", "eu").observe().unwrap().next().await.unwrap();
        assert_eq!(leader.map(|leader| leader.token), led.last().copied(), "{fault:?}");
        candidates.iter().for_each(JoinHandle::abort);
        bed.advance(seconds(60)).await;
        assert!(bed.is_clean().await, "{fault:?}");
    }
}

#[tokio::test]
async fn an_error_that_will_not_pass_ends_a_candidate() {
    let bed = TestBed::new();
    bed.probe.set_fault(Fault::Denied);
    let candidate = lead_for_ever(&bed.client(), &Tokens::default());
    bed.settle().await;
    assert_eq!(candidate.await.unwrap().unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_stop_lets_the_leader_finish_and_a_candidate_leave() {
    let bed = TestBed::new();
    let stop = CancellationToken::new();
    let start = || {
        let (election, stop) = (bed.client().election("scheduler", "eu"), stop.clone());
        tokio::spawn(async move {
            let work = async |_| {
                stop.cancelled().await;
                tokio::task::yield_now().await; // what is left to do
                "finished"
            };
            election.lead_until(stop.cancelled(), "host", work).await
        })
    };
    let leader = start();
    bed.settle().await;
    let candidate = start();
    bed.settle().await;
    stop.cancel();
    bed.settle().await;
    assert_eq!(leader.await.unwrap().unwrap(), Some("finished"));
    assert_eq!(candidate.await.unwrap().unwrap(), None);
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn a_stop_during_an_outage_ends_a_candidate() {
    let bed = TestBed::new();
    bed.probe.set_fault(Fault::Unavailable);
    let (stop, election) = (CancellationToken::new(), bed.client().election("scheduler", "eu"));
    let stopped = stop.clone();
    let candidate = tokio::spawn(async move {
        election.lead_until(stopped.cancelled(), "host", async |_| std::future::pending::<()>().await).await
    });
    bed.advance(seconds(60)).await;
    assert!(!candidate.is_finished());
    stop.cancel();
    bed.settle().await;
    assert_eq!(candidate.await.unwrap().unwrap(), None);
}

#[tokio::test]
async fn a_candidate_has_a_ttl_a_label_and_a_purpose() {
    let bed = TestBed::with(|probe| probe.with_guarantee(Guarantee::BestEffort));
    let election = bed.client().election("scheduler", "eu").ttl(seconds(5)).label("planner");
    let (ttl, leader) = election
        .lead("host-a", async |lead| (lead.ttl(), election.observe().unwrap().next().await.unwrap().unwrap()))
        .await
        .unwrap();
    assert_eq!((ttl, leader.holder.label.as_str()), (seconds(5), "planner"));
    let strict = election.purpose(Purpose::Correctness);
    let refused = strict.lead("host-a", async |_| ()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::GuaranteeTooWeak);
    strict.fenced().lead("host-a", async |_| ()).await.unwrap();
}
