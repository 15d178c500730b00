//! Upgradeable readers and latches on manual time: what is lost, and what a dead process leaves behind.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{Fault, TestBed, seconds};
use leasehold::{Attempt, ErrorKind};

#[tokio::test]
async fn an_upgraded_reader_that_is_lost_is_told_before_another_one_writes() {
    let bed = TestBed::new();
    let (client, other) = (bed.client(), bed.client());
    let lock = client.rwlock("index", "main").upgradable();
    let reader = lock.upgradable_read().acquire().await.unwrap();
    let upgraded = reader.upgrade().await.unwrap();
    let token = upgraded.token();
    bed.probe.set_fault(Fault::Unavailable);
    let work = upgraded.hold(std::future::pending::<()>());
    let (lost, ()) = tokio::join!(work, bed.advance(seconds(31)));
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(upgraded.check().unwrap_err().kind(), ErrorKind::Lost);
    bed.probe.set_fault(Fault::None);
    let writing = tokio::spawn(other.rwlock("index", "main").upgradable().write().acquire());
    bed.advance(seconds(1)).await;
    assert!(writing.await.unwrap().unwrap().token() > token);
    drop(upgraded);
    assert_eq!(reader.upgrade().await.unwrap_err().kind(), ErrorKind::Lost, "and it does not come back");
}

/// A reader holds, and a plain writer waits for it. Only the wait limit of the upgrade ends that.
#[tokio::test]
async fn a_plain_writer_that_waits_makes_an_upgrade_give_up_and_nobody_is_let_in_beside_the_reader() {
    let bed = TestBed::new();
    let (client, other) = (bed.client(), bed.client());
    let reader = client.rwlock("index", "main").upgradable().upgradable_read().acquire().await.unwrap();
    let waits = tokio::spawn(other.rwlock("index", "main").write().wait(seconds(60)).acquire());
    bed.advance(seconds(1)).await;
    let (upgrade, ()) = tokio::join!(reader.upgrade(), bed.advance(seconds(11)));
    assert_eq!(upgrade.unwrap_err().kind(), ErrorKind::Contended);
    assert!(!waits.is_finished(), "the reader is still there");
    reader.release().await.unwrap();
    bed.advance(seconds(1)).await;
    waits.await.unwrap().unwrap().release().await.unwrap();
}

/// A process died between taking its permit and keeping it.
#[tokio::test]
async fn a_part_whose_process_died_is_not_counted_and_can_be_counted_by_another() {
    let bed = TestBed::new();
    let client = bed.client();
    let taken = client.semaphore("import", "42", 2).permits(1).note("a").ttl(seconds(5)).renew(false);
    let Attempt::Granted(dead) = taken.attempt().await.unwrap() else { panic!("it is free") };
    let latch = client.count_down_latch("import", "42", 2);
    assert_eq!(latch.count().await.unwrap(), 2, "a permit that is only held does not count");
    assert_eq!(latch.count_down("b").await.unwrap(), 1);
    let again = latch.clone();
    let counting = tokio::spawn(async move { again.count_down("a").await });
    bed.advance(seconds(2)).await;
    assert!(!counting.is_finished(), "the other one may still count it");
    std::mem::forget(dead);
    bed.advance(seconds(10)).await;
    assert_eq!(counting.await.unwrap().unwrap(), 0);
    // After a day, its parts are forgotten.
    bed.advance(seconds(24 * 3600 + 60)).await;
    assert_eq!(latch.count().await.unwrap(), 2);
}
