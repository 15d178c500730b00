//! A value that leasehold cannot read is named, and hides nothing else.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;

use common::{LONG, claim, granted, open};
use leasehold::{
    Backend, BackendExt as _, ErrorKind, Listing, OperatorAction, OperatorCommand, Page, Query, Resource,
    Share, Snapshot,
};
use leasehold_redis::Redis;
use leasehold_testkit::servers::RedisServer;

async fn list(redis: &Redis, listing: Listing) -> (Vec<Snapshot>, Option<String>) {
    let page = redis.inspect(&Query::Resources(listing)).await.unwrap();
    let Page::Resources { snapshots, next } = page else { panic!("{page:?}") };
    (snapshots, next)
}

fn resource(id: &str) -> Resource {
    Resource::new("c", id).unwrap()
}

/// A resource that readers hold and a writer waits for, so that all of its keys are there.
async fn share_and_queue(redis: &Redis, resource: &Resource) {
    let mut reader = claim(resource, LONG);
    reader.share = Share::READ;
    granted(redis, &reader).await;
    let mut writer = claim(resource, LONG).queued();
    writer.share = Share::WRITE;
    redis.acquire_one(&writer).await.unwrap();
}

#[tokio::test]
async fn a_corrupt_key_of_one_resource_does_not_hide_the_others() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    for id in ["aaa", "zzz"] {
        granted(&redis, &claim(&resource(id), LONG)).await;
    }
    let key = |id: &str, part: &str| format!("lock:v1:{{c/{id}}}:{part}");
    let table = [
        ("fence", vec!["SET", "notanumber"], "expected a number, found 'notanumber'"),
        ("fence", vec!["SET", "99999999999999999999"], "found '99999999999999999999'"),
        ("fence", vec!["HSET", "a", "b"], "is a hash, not a string"),
        ("state", vec!["SET", "x\u{7}\u{1b}[31m"], "expected capacity=1 held=0 ..., found 'x??[31m'"),
        ("state", vec!["RPUSH", "a"], "is a list, not a string"),
        ("shares", vec!["SET", "a"], "is a string, not a zset"),
        ("line", vec!["SET", "a"], "is a string, not a zset"),
        ("places", vec!["SET", "a"], "is a string, not a zset"),
        ("claims", vec!["SET", "a"], "is a string, not a hash"),
    ];
    for (number, (part, words, _)) in table.iter().enumerate() {
        let id = number.to_string();
        if !matches!(*part, "fence") {
            share_and_queue(&redis, &resource(&id)).await;
        }
        let key = key(&id, part);
        server.command(&["DEL", &key]);
        server.command(&[&[words[0], &key], &words[1..]].concat());
    }
    let (rows, next) = list(&redis, Listing::default()).await;
    assert_eq!((rows.len(), next), (table.len() + 2, None), "{rows:#?}");
    for (number, (part, _, found)) in table.iter().enumerate() {
        let id = number.to_string();
        let row = rows.iter().find(|row| row.resource == resource(&id)).unwrap();
        let why = row.unreadable.as_deref().unwrap_or_else(|| panic!("{row:?}"));
        assert!(why.contains(&key(&id, part)) && why.contains(found), "{why}");
        let error = redis.inspect(&Query::One(resource(&id))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(&key(&id, part)), "{error}");
    }
    let readable = rows.iter().filter(|row| row.unreadable.is_none());
    assert_eq!(readable.map(|row| row.holder_count).collect::<Vec<_>>(), [1, 1]);
}

#[tokio::test]
async fn a_corrupt_record_of_a_holder_names_its_key() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let mut reader = claim(&resource("1"), LONG);
    reader.share = Share::READ;
    granted(&redis, &reader).await;
    for record in ["nonsense", "1|99999999999999999999|1|0||1@host"] {
        server.command(&["HSET", "lock:v1:{c/1}:claims", &reader.owner.reveal(), record]);
        let (rows, _) = list(&redis, Listing::default()).await;
        let why = rows[0].unreadable.clone().unwrap();
        let expected = "key lock:v1:{c/1}:claims is corrupt: expected the record of a holder, found '";
        assert!(why.starts_with(expected) && !why.contains("script"), "{why}");
    }
}

#[tokio::test]
async fn an_owner_key_with_an_impossible_token_is_a_foreign_lock() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    for token in ["0", "9007199254740992", "99999999999999999999"] {
        let value = format!("{}|{token}|1|0||1@host", "ab".repeat(16));
        server.command(&["SET", "lock:v1:{c/1}:owner", &value, "PX", "60000"]);
        let (rows, _) = list(&redis, Listing::default()).await;
        assert_eq!((rows[0].foreign.len(), rows[0].holder_count), (1, 0), "{rows:?}");
    }
}

#[tokio::test]
async fn one_bad_audit_stream_does_not_hide_the_others() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let pause = OperatorAction::Pause { lasting: LONG };
    redis.order(&OperatorCommand::new(resource("1"), pause, "ops", "test")).await.unwrap();
    server.command(&["SET", "lock:v1:{c/2}:audit", "x"]);
    let page = redis.inspect(&Query::Audit(Listing::default())).await.unwrap();
    let Page::Audit { records, .. } = page else { panic!("{page:?}") };
    assert_eq!(records.len(), 1, "{records:?}");
}

/// The names of a listing are kept for its next page. The first page always looks anew.
#[tokio::test]
async fn pages_of_a_listing_are_complete_and_a_new_listing_sees_what_is_new() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    for number in 10..60 {
        granted(&redis, &claim(&resource(&number.to_string()), LONG)).await;
    }
    share_and_queue(&redis, &resource("35x")).await;
    let all = async || {
        let (mut names, mut next) = (Vec::new(), None);
        loop {
            let mut listing = Listing::of("c/").limit(7);
            listing.after = next.take();
            let (rows, more) = list(&redis, listing).await;
            names.extend(rows.into_iter().map(|row| row.resource.key().to_owned()));
            next = more;
            if next.is_none() {
                return names;
            }
        }
    };
    let names = all().await;
    assert!(names.len() == 51 && names.is_sorted(), "{names:?}");
    granted(&redis, &claim(&resource("99"), LONG)).await;
    assert_eq!(all().await.len(), 52);
}

/// `inspect_plain.lua` and `inspect.lua` agree.
#[tokio::test]
async fn a_list_says_what_a_query_for_each_resource_says() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let evict = |id: &str| {
        let action = OperatorAction::Evict(leasehold::Eviction::AtExpiry);
        OperatorCommand::new(resource(id), action, "ops", "test")
    };
    for id in ["plain", "evicted", "kept", "noted", "released"] {
        let mut ours = claim(&resource(id), LONG);
        if id == "noted" {
            ours = ours.with_note(&b"a note"[..]);
        }
        granted(&redis, &ours).await;
        let release = leasehold::ReleaseRequest::new(ours.reference());
        match id {
            "evicted" => drop(redis.order(&evict(id)).await.unwrap()),
            "kept" => drop(redis.release_one(&release.keeping(LONG)).await.unwrap()),
            "released" => drop(redis.release_one(&release).await.unwrap()),
            _ => {}
        }
    }
    share_and_queue(&redis, &resource("shared")).await;
    server.command(&["SET", "lock:v1:{c/foreign}:owner", "x"]);
    let (rows, _) = list(&redis, Listing::default()).await;
    let names: Vec<&str> = rows.iter().map(|row| row.resource.key()).collect();
    assert_eq!(names, ["c/evicted", "c/foreign", "c/kept", "c/noted", "c/plain", "c/shared"]);
    let without_time = |mut snapshot: Snapshot| {
        for by in &mut snapshot.holders {
            (by.held_for, by.remaining) = Default::default();
        }
        for waiter in &mut snapshot.queue {
            (waiter.waited, waiter.remaining) = Default::default();
        }
        format!("{snapshot:?}")
    };
    for row in rows {
        let page = redis.inspect(&Query::One(row.resource.clone())).await.unwrap();
        let Page::Resources { mut snapshots, .. } = page else { panic!("{page:?}") };
        assert_eq!(without_time(row), without_time(snapshots.remove(0)));
    }
}
