//! Several leases at once: what a set tells about its leases, and what ends it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{Fault, TestBed, seconds};
use leasehold::{
    AllRequest, Client, EndReason, ErrorKind, Eviction, OperatorAction, OperatorCommand, Resource,
};

fn both(client: &Client) -> AllRequest {
    client.all([client.lease("account", "a"), client.lease("account", "b")])
}

async fn evict(client: &Client, resource: &str) {
    let action = OperatorAction::Evict(Eviction::Now);
    let command = OperatorCommand::new(resource.parse().unwrap(), action, "anna", "to see what it ends");
    client.order(&command).await.unwrap();
}

/// A pass without an owner is accepted by a fence only once: a second transaction under the same leases was refused.
#[tokio::test]
async fn the_passes_of_a_set_name_their_owners() {
    let bed = TestBed::new();
    let client = bed.client();
    let set = both(&client).and(client.rwlock("rates", "eur").read()).acquire().await.unwrap();
    for id in ["a", "b"] {
        let pass = set.pass("account", id).unwrap();
        let view = set.view("account", id).unwrap();
        assert_eq!(pass, view.pass());
        assert_eq!(pass.owner, Some(view.owner_token().into()), "it can be presented more than once");
        assert_eq!(set.token("account", id), Some(pass.token));
    }
    assert_eq!(set.passes().count(), 2, "a shared lease has no pass");
    assert!(set.pass("rates", "eur").is_none() && set.view("rates", "eur").is_none());
    assert!(set.shared_view("rates", "eur").is_some() && set.shared_view("account", "a").is_none());
    assert!(set.pass("account", "c").is_none());
}

#[tokio::test]
async fn leases_that_differ_in_their_namespace_are_found_by_resource() {
    let bed = TestBed::new();
    let (client, acme) = (bed.client(), bed.client().namespace("acme"));
    let set = client.all([client.lease("account", "a"), acme.lease("account", "a")]).acquire().await.unwrap();
    for name in ["account/a", "acme:account/a"] {
        let resource: Resource = name.parse().unwrap();
        assert_eq!(set.view_of(&resource).unwrap().resource(), &resource);
    }
    assert!(set.view_of(&"other:account/a".parse().unwrap()).is_none());
}

#[tokio::test]
async fn a_set_is_over_when_one_of_its_leases_is() {
    let bed = TestBed::new();
    let (client, operator) = (bed.client(), bed.client());
    let set = both(&client).acquire().await.unwrap();
    let (ended, all) = (tokio::spawn(set.ended()), set.cancellation());
    let (one, other) = (set.view("account", "a").unwrap(), set.view("account", "b").unwrap());
    bed.advance(seconds(60)).await;
    assert!(!ended.is_finished() && !all.is_cancelled());
    evict(&operator, "account/a").await;
    bed.advance(seconds(15)).await;
    assert_eq!(ended.await.unwrap(), ("account/a".parse().unwrap(), EndReason::Evicted));
    assert!(all.is_cancelled() && one.cancellation().is_cancelled() && !other.cancellation().is_cancelled());
    assert!(set.cancellation().is_cancelled(), "also when it is asked for later");
    assert_eq!(set.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((one.ended().await, other.check().is_ok()), (EndReason::Evicted, true));
    drop(set);
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn a_single_attempt_takes_all_or_nothing() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let held = theirs.lease("account", "b").acquire().await.unwrap();
    assert!(both(&ours).try_acquire().await.unwrap().is_none());
    bed.settle().await;
    let other = theirs.lease("account", "a").try_acquire().await.unwrap();
    assert!(other.is_some(), "nothing stays held");
    drop((held, other));
    bed.settle().await;
    let set = both(&ours).try_acquire().await.unwrap().expect("both are free");
    assert_eq!(set.len(), 2);
    let error = both(&theirs).wait(seconds(0)).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.resource()), (ErrorKind::Contended, set.resources().next()));
}

#[tokio::test]
async fn run_drops_the_work_when_a_lease_of_the_set_is_lost() {
    let bed = TestBed::new();
    let (client, operator) = (bed.client(), bed.client());
    let work = tokio::spawn(both(&client).run(async |_| std::future::pending::<()>().await));
    bed.settle().await;
    evict(&operator, "account/b").await;
    bed.advance(seconds(15)).await;
    let error = work.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.resource()), (ErrorKind::Lost, Some(&"account/b".parse().unwrap())));
    assert_eq!(error.ending(), Some(EndReason::Evicted), "a program can tell why");
    assert!(bed.is_clean().await);
}

/// The work is done: an error would make its caller do it again.
#[tokio::test]
async fn run_returns_the_output_of_the_work_also_if_the_release_fails() {
    for fault in [Fault::Unavailable, Fault::LosesReplies, Fault::Denied] {
        let bed = TestBed::new();
        let client = bed.client();
        let fail = || bed.probe.set_fault(fault);
        let committed = async |_| {
            fail();
            "committed"
        };
        assert_eq!(client.lease("report", "42").run(committed).await.unwrap(), "committed", "{fault:?}");
        bed.probe.set_fault(Fault::None);
        bed.advance(seconds(40)).await;
        let committed = async |_| {
            fail();
            "committed"
        };
        assert_eq!(both(&client).run(committed).await.unwrap(), "committed", "{fault:?}");
        bed.probe.set_fault(Fault::None);
        bed.advance(seconds(40)).await;
        assert!(bed.is_clean().await, "{fault:?}: it is released when the backend is back");
    }
}
