//! Time: a reboot ends every lease, containers of one host agree on the time, and hosts cannot share a file.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{process::Command, time::Duration};

use common::{
    TTL, claim, granted, is_privileged, open, read_line, report, resource, role, start_command, try_open,
};
use leasehold::testing::ManualTime;
use leasehold_core::{
    Backend, BackendExt as _, Clock as _, Effect, ErrorKind, OperatorAction, Query, ReleaseRequest,
    RenewRequest, Renewal, Share, Verdict,
};
use leasehold_sqlite::{Config, Sqlite};
use std::sync::Arc;

#[tokio::test]
async fn the_other_process() {
    let Some((_, file)) = role() else { return };
    let backend = open(Config::new(file));
    let seen = backend.inspect(&Query::One(resource("held"))).await.unwrap().into_snapshots().remove(0);
    report(seen.holders[0].remaining.as_millis());
    let Verdict::Blocked(_) = backend.acquire_one(&claim("held")).await.unwrap() else {
        panic!("it is held")
    };
    report("blocked");
    read_line();
}

#[tokio::test]
async fn a_reboot_ends_every_lease_and_tokens_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::new(directory.path().join("leases.db"));
    let before = open(config.clone().pretend_boot("one"));
    let (held, queued) = (claim("held"), claim("held").queued());
    let token = granted(&before, &held).await.token;
    assert!(matches!(before.acquire_one(&queued).await.unwrap(), Verdict::Blocked(_)));
    before.release_one(&ReleaseRequest::new(claim("held").reference()).with_tombstone(TTL)).await.unwrap();
    drop(before);

    let after = open(config.pretend_boot("two"));
    let renewed = after
        .renew(&[RenewRequest::new(held.reference(), TTL), RenewRequest::new(queued.reference(), TTL)])
        .await;
    assert!(renewed.iter().all(|renewal| matches!(renewal, Ok(Renewal::Gone { .. }))), "{renewed:?}");
    let seen = after.inspect(&Query::One(resource("held"))).await.unwrap().into_snapshots().remove(0);
    assert_eq!((seen.holder_count, seen.queue_length, seen.last_token), (0, 0, Some(token)));
    assert!(granted(&after, &claim("held")).await.token > token);
}

/// A pause and `keep_for` are promises of a date, so they survive a reboot.
#[tokio::test]
async fn a_pause_and_a_kept_resource_stay_closed_over_a_reboot() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::new(directory.path().join("leases.db"));
    let time = ManualTime::new();
    let open = |boot| Sqlite::open(config.clone().pretend_boot(boot), Arc::new(time.clone())).unwrap();
    let hour = Duration::from_secs(3600);
    let before = open("one");
    let done = claim("done today");
    granted(&before, &done).await;
    before.release_one(&ReleaseRequest::new(done.reference()).keeping(hour * 2)).await.unwrap();
    let pause = OperatorAction::Pause { lasting: hour * 3 };
    let command = leasehold_core::OperatorCommand::new(resource("paused"), pause, "me", "a test");
    before.order(&command).await.unwrap();
    drop(before);

    time.jump(hour); // the wall clock; the boot clock of the new boot may be anything
    let after = open("two");
    let Verdict::Blocked(kept) = after.acquire_one(&claim("done today")).await.unwrap() else {
        panic!("open")
    };
    assert_eq!((kept.holders[0].kept, kept.changes_in), (true, Some(hour)));
    let Verdict::Blocked(paused) = after.acquire_one(&claim("paused")).await.unwrap() else { panic!("open") };
    assert_eq!((paused.paused, paused.changes_in), (true, Some(hour * 2)));
    drop(after);

    time.jump(hour + hour / 2);
    let later = open("three");
    granted(&later, &claim("done today")).await;
    assert!(matches!(later.acquire_one(&claim("paused")).await.unwrap(), Verdict::Blocked(_)));
}

/// A wall clock that went back does not keep anything closed for longer than was asked.
#[tokio::test]
async fn a_wall_clock_that_went_back_extends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::new(directory.path().join("leases.db"));
    let (late, early) = (ManualTime::new(), ManualTime::new());
    late.jump(Duration::from_secs(86_400 * 365));
    let hour = Duration::from_secs(3600);
    let before = Sqlite::open(config.clone().pretend_boot("one"), Arc::new(late)).unwrap();
    let done = claim("done");
    let token = granted(&before, &done).await.token;
    before.release_one(&ReleaseRequest::new(done.reference()).keeping(hour)).await.unwrap();
    drop(before);
    let after = Sqlite::open(config.pretend_boot("two"), Arc::new(early.clone())).unwrap();
    let Verdict::Blocked(kept) = after.acquire_one(&claim("done")).await.unwrap() else { panic!("open") };
    assert_eq!(kept.changes_in, Some(hour));
    early.jump(hour);
    let next = granted(&after, &claim("done")).await.token;
    assert!(next > token && next.get() > early.wall().as_micros(), "tokens do not go back with the clock");
}

#[tokio::test]
async fn two_boots_at_once_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::new(directory.path().join("leases.db"));
    let here = open(config.clone().pretend_boot("one"));
    granted(&here, &claim("held")).await;
    let error = try_open(config.pretend_boot("two")).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::None));
    assert!(error.to_string().contains("another boot"), "{error}");
    assert!(
        matches!(here.acquire_one(&claim("held")).await.unwrap(), Verdict::Blocked(_)),
        "the lease is not lost"
    );
}

/// In a time namespace the boot clock is days ahead. The lease is not shorter there.
#[tokio::test]
async fn containers_with_shifted_clocks_agree_on_time() {
    if !is_privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    let mut held = claim("held");
    held.share = Share::WHOLE;
    granted(&backend, &held).await;
    let mut shifted = Command::new("unshare");
    shifted.args(["--time", "--boottime", "864000", "--monotonic", "864000", "--fork", "--kill-child", "--"]);
    shifted.arg(std::env::current_exe().unwrap());
    let container = start_command(shifted, "shifted", &file);
    let remaining: u64 = container.next_line().parse().unwrap();
    assert!(remaining <= 30_000 && remaining > 10_000, "{remaining} ms");
    assert_eq!(container.next_line(), "blocked");
}
