//! Checks of primitives that are made of several claims, for every backend that can have them: upgradeable readers,
//! countdown latches and barriers.
//!
//! Each check gets two backends that lead to the same store, as two processes have them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold::{Backend, Client, CountDownLatch, ErrorKind, FencingToken, Query, Resource};
use tokio::task::JoinSet;

use crate::calls::{TEST_TIMEOUT, eventually, in_time};

/// Two clients, as of two processes.
pub type TwoBackends = [Arc<dyn Backend>; 2];

fn clients(backends: &TwoBackends) -> [Client; 2] {
    backends.clone().map(Client::new)
}

async fn queue_length(client: &Client, resource: &Resource) -> u32 {
    let page = client.inspect(&Query::One(resource.clone())).await.expect("it can be looked at");
    page.into_snapshots().pop().map_or(0, |seen| seen.queue_length)
}

/// An upgrade waits for the readers before it, holds off those after it, and leaves no gap for a writer.
///
/// # Panics
/// If it does not.
pub async fn an_upgrade_waits_for_readers_and_leaves_no_gap(backends: &TwoBackends) {
    let [ann, bob] = clients(backends);
    let (here, there) = (ann.rwlock("index", "gap").upgradable(), bob.rwlock("index", "gap").upgradable());
    let reader = in_time("reading", here.upgradable_read().acquire()).await.expect("it is free");
    let plain = in_time("reading", there.read().acquire()).await.expect("readers share it");
    assert!(there.upgradable_read().try_acquire().await.expect("an answer").is_none(), "one at a time");
    assert!(there.write().try_acquire().await.expect("an answer").is_none(), "no writer beside readers");
    let writer = tokio::spawn(async move { there.write().wait(TEST_TIMEOUT).acquire().await });
    let resource = reader.resource().clone();
    let upgrade = reader.upgrade();
    let leaves = async {
        eventually("the upgrade waits", || async { queue_length(&bob, &resource).await == 1 }).await;
        let late = bob.rwlock("index", "gap").read().try_acquire().await.expect("an answer");
        assert!(late.is_none(), "a reader that comes later waits behind the upgrade");
        plain.release().await.expect("it is released");
    };
    let (upgraded, ()) = in_time("the upgrade", async { tokio::join!(upgrade, leaves) }).await;
    let upgraded = upgraded.expect("the readers have left");
    let token = upgraded.token();
    assert!(!writer.is_finished(), "no writer came in between");
    assert!(here.read().try_acquire().await.expect("an answer").is_none(), "it is exclusive");
    in_time("work", upgraded.hold(async {})).await.expect("it holds");
    upgraded.downgrade().await.expect("it is a reader again");
    let beside = here.read().try_acquire().await.expect("an answer").expect("readers share it");
    beside.release().await.expect("it is released");
    reader.release().await.expect("it is released");
    let written = in_time("the writer", writer).await.expect("no panic").expect("its turn has come");
    assert!(written.token() > token, "tokens of upgrades and of writers are of one order");
    let again = written.downgrade().await.expect("it held");
    again.downgrade().await.expect("a plain reader").release().await.expect("it is released");
}

/// An upgrade that gives up leaves the reader as it was, and lets other readers in.
///
/// # Panics
/// If it does not.
pub async fn an_upgrade_that_gives_up_leaves_a_reader(backends: &TwoBackends) {
    let [ann, bob] = clients(backends);
    let lock = ann.rwlock("index", "give-up").upgradable();
    let request = lock.upgradable_read().wait(Duration::from_millis(300));
    let reader = request.acquire().await.expect("it is free");
    let plain = bob.rwlock("index", "give-up").read().acquire().await.expect("readers share it");
    let error = in_time("the upgrade", reader.upgrade()).await.expect_err("a reader stays");
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    reader.check().expect("it still reads");
    let another = in_time("reading", bob.rwlock("index", "give-up").read().acquire()).await;
    another.expect("readers are let in again").release().await.expect("it is released");
    // The same when the caller gives up: the future is dropped.
    let resource = reader.resource().clone();
    tokio::select! {
        _ = reader.upgrade() => panic!("a reader stays"),
        () = eventually("the upgrade waits", || async { queue_length(&bob, &resource).await == 1 }) => {}
    }
    reader.check().expect("it still reads");
    eventually("the place in the queue is given up", || async { queue_length(&bob, &resource).await == 0 })
        .await;
    plain.release().await.expect("it is released");
    let upgraded = in_time("the upgrade", reader.upgrade()).await.expect("no reader is left");
    drop(upgraded);
    let late = bob.rwlock("index", "give-up").read().wait(TEST_TIMEOUT).acquire();
    in_time("reading", late)
        .await
        .expect("a dropped upgrade lets readers in")
        .release()
        .await
        .expect("released");
    reader.release().await.expect("it is released");
}

/// Many upgradeable readers and writers of two processes: they exclude each other, and their tokens grow.
///
/// # Panics
/// If they do not.
pub async fn upgrades_exclude_each_other(backends: &TwoBackends) {
    let inside = Arc::new(tokio::sync::Mutex::new(None::<FencingToken>));
    let mut tasks = JoinSet::new();
    for number in 0..6 {
        let client = Client::new(Arc::clone(&backends[number % 2]));
        let inside = Arc::clone(&inside);
        tasks.spawn(async move {
            let lock = client.rwlock("index", "many").upgradable();
            let enter = async |token: FencingToken| {
                let mut last = inside.try_lock().expect("nobody else writes");
                assert!(last.replace(token) < Some(token), "tokens grow");
                tokio::task::yield_now().await;
            };
            for round in 0..4 {
                if (number + round) % 3 == 0 {
                    let writer = lock.write().wait(TEST_TIMEOUT).acquire().await.expect("its turn comes");
                    enter(writer.token()).await;
                    writer.release().await.expect("it is released");
                } else {
                    let reader =
                        lock.upgradable_read().wait(TEST_TIMEOUT).acquire().await.expect("its turn comes");
                    let upgraded = reader.upgrade().await.expect("nobody else reads for long");
                    enter(upgraded.token()).await;
                    upgraded.downgrade().await.expect("it held");
                    reader.release().await.expect("it is released");
                }
                let plain = lock.read().wait(TEST_TIMEOUT).acquire().await.expect("its turn comes");
                plain.release().await.expect("it is released");
            }
        });
    }
    while let Some(done) = in_time("all of them", tasks.join_next()).await {
        done.expect("no task fails");
    }
}

/// Every part counts once, however many processes count it at the same time.
///
/// # Panics
/// If it does not.
pub async fn a_latch_counts_every_part_once(backends: &TwoBackends) {
    let [ann, bob] = clients(backends);
    let latch = |client: &Client| client.count_down_latch("import", "once", 3);
    assert_eq!(latch(&ann).count().await.expect("an answer"), 3);
    assert_eq!(latch(&ann).count_down("a").await.expect("it counts"), 2);
    assert_eq!(latch(&bob).count_down("a").await.expect("it was counted"), 2);
    let waits = {
        let latch = latch(&bob);
        tokio::spawn(async move { latch.wait().await })
    };
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let latch = latch([&ann, &bob][number % 2]);
        let part = ["b", "a"][number / 4];
        tasks.spawn(async move { (part, latch.count_down(part).await) });
    }
    while let Some(done) = in_time("counting", tasks.join_next()).await {
        let (part, left) = done.expect("no panic");
        let left = left.expect("it counts");
        assert!(left == 1 || (part == "a" && left == 2), "{left} are left after {part}");
    }
    assert_eq!(latch(&bob).count().await.expect("an answer"), 1);
    assert!(!waits.is_finished(), "one part is left");
    assert_eq!(latch(&ann).count_down("c").await.expect("it counts"), 0);
    in_time("the latch", waits).await.expect("no panic").expect("it is open");
    in_time("the latch", latch(&ann).wait()).await.expect("it stays open");
    assert_eq!(latch(&bob).count_down("b").await.expect("it was counted"), 0);
    let stranger = in_time("counting", latch(&bob).count_down("d")).await.expect_err("all are counted");
    assert_eq!(stranger.kind(), ErrorKind::Invalid, "{stranger}");
    let other = ann.count_down_latch("import", "once", 4).count_down("e").await.expect_err("another size");
    assert_eq!(other.kind(), ErrorKind::Mismatch, "{other}");
    let too_many = ann.count_down_latch("import", "large", CountDownLatch::PARTS_MAX + 1).count().await;
    assert_eq!(too_many.expect_err("too many parts").kind(), ErrorKind::Invalid);
}

/// Nobody passes a round of a barrier before all have arrived in it.
///
/// # Panics
/// If somebody does.
pub async fn a_barrier_lets_all_through_together(backends: &TwoBackends) {
    let arrived = Arc::new(tokio::sync::Mutex::new(BTreeSet::new()));
    let mut tasks = JoinSet::new();
    for party in 0..4_u64 {
        let client = Client::new(Arc::clone(&backends[usize::from(party % 2 == 1)]));
        let arrived = Arc::clone(&arrived);
        tasks.spawn(async move {
            let barrier = client.barrier("step", "all", 4);
            for round in 0..2 {
                arrived.lock().await.insert((round, party));
                barrier.arrive(round, &format!("party-{party}")).await.expect("all arrive");
                let arrived = arrived.lock().await;
                assert!((0..4).all(|other| arrived.contains(&(round, other))), "{arrived:?}");
            }
        });
    }
    while let Some(done) = in_time("all rounds", tasks.join_next()).await {
        done.expect("no task fails");
    }
}

/// All checks that this backend can pass. A backend without latches must refuse them.
///
/// # Panics
/// If one of them fails.
pub async fn all(backends: &TwoBackends) {
    // Boxed: without optimisation, the futures of all checks together are too large for the stack of a test.
    Box::pin(an_upgrade_waits_for_readers_and_leaves_no_gap(backends)).await;
    Box::pin(an_upgrade_that_gives_up_leaves_a_reader(backends)).await;
    Box::pin(upgrades_exclude_each_other(backends)).await;
    if backends[0].info().capabilities.keep_for {
        Box::pin(a_latch_counts_every_part_once(backends)).await;
        Box::pin(a_barrier_lets_all_through_together(backends)).await;
    } else {
        let latch = Client::new(Arc::clone(&backends[0])).count_down_latch("import", "none", 2);
        assert_eq!(latch.count_down("a").await.expect_err("no latches").kind(), ErrorKind::Unsupported);
    }
}
