//! The fence of Redis on a real server.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test is a program of its own")]

mod common;

use std::time::{Duration, Instant};

use common::{pass, stale, token};
use leasehold_core::{Effect, ErrorKind};
use leasehold_fence::{
    Rebase,
    redis::Fence,
    rule::{self, Admission, Mark},
};
use leasehold_testkit::servers::{RedisCluster, RedisServer};
use redis::{
    Client,
    aio::{ConnectionManager, MultiplexedConnection},
};

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

const MARK: &str = "fence:v1:{report:42}:report/42";

#[test]
fn a_stale_writer_is_refused_and_the_data_stays() {
    let server = RedisServer::start();
    run(async {
        let (mut connection, fence) = (connect(&server).await, Fence::new());
        let mut set = async |number, owner, value: &str| {
            fence.set(&pass(number, owner), "report:42", value).unwrap().run(&mut connection).await
        };
        assert_eq!(set(33, 1, "A").await.unwrap(), Admission::Raised);
        assert_eq!(set(34, 2, "B").await.unwrap(), Admission::Raised);
        let late = set(33, 1, "A, late").await;
        assert_eq!(late.as_ref().unwrap_err().effect(), Effect::None);
        assert_eq!(stale(late), (33, 34));
        assert_eq!(set(34, 2, "B again").await.unwrap(), Admission::Again);
        assert_eq!(stale(set(34, 3, "another 34").await), (34, 34));
        assert_eq!(stale(set(34, 0, "34 without an owner").await), (34, 34));
        assert_eq!(server.command(&["GET", "report:42"]), "B again");
        set(35, 0, "once").await.unwrap();
        assert_eq!(stale(set(35, 0, "twice").await), (35, 35));
    });
}

#[test]
fn hashes_and_deletes_are_fenced_by_the_same_mark() {
    let server = RedisServer::start();
    run(async {
        let (mut connection, fence) = (connect(&server).await, Fence::new());
        let (a, b) = (pass(33, 1), pass(34, 2));
        let fields = [("state", "A"), ("pages", "3")];
        fence.hash_set(&a, "report:{42}", &fields).unwrap().run(&mut connection).await.unwrap();
        fence.delete(&b, "report:{42}").unwrap().run(&mut connection).await.unwrap();
        let back = fence.hash_set(&a, "report:{42}", &fields).unwrap().run(&mut connection).await;
        assert_eq!(stale(back), (33, 34), "the mark outlives the data");
        let set = fence.set(&a, "report:{42}:body", "late").unwrap().run(&mut connection).await;
        assert_eq!(stale(set), (33, 34), "keys with one tag have one mark");
        fence.set(&a, "report:43", "x").unwrap().run(&mut connection).await.unwrap(); // another tag has another mark
        let fields = [("state", "B"), ("pages", "4")];
        fence.hash_set(&b, "report:{42}", &fields).unwrap().run(&mut connection).await.unwrap();
        assert_eq!(stale(fence.delete(&a, "report:{42}").unwrap().run(&mut connection).await), (33, 34));
        assert_eq!(server.command(&["HGETALL", "report:{42}"]), "state B pages 4");
        let wrong = fence.hash_set(&b, "report:43", &fields).unwrap().run(&mut connection).await.unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::Invalid, "{wrong:?}");
    });
}

#[test]
fn without_enter_an_update_is_lost_and_with_it_the_stale_one_is_refused() {
    let server = RedisServer::start();
    run(async {
        let (mut connection, fence) = (connect(&server).await, Fence::new());
        for (enter, refusals) in [(false, 0), (true, 1)] {
            server.command(&["FLUSHALL"]);
            server.command(&["SET", "report:42", "0"]);
            let passes = [pass(33, 1), pass(34, 2)];
            let mut sums = Vec::new();
            for pass in &passes {
                if enter {
                    fence.enter(pass, "report:42").unwrap().run(&mut connection).await.unwrap();
                }
                sums.push(server.command(&["GET", "report:42"]).parse::<u32>().unwrap() + 1);
            }
            let mut refused = 0;
            for (pass, sum) in passes.iter().zip(sums) {
                let set = fence.set(pass, "report:42", sum).unwrap().run(&mut connection).await;
                refused += u32::from(set.is_err());
            }
            // Either both updates were admitted and one is lost, or one was admitted and the other refused.
            assert_eq!(
                (server.command(&["GET", "report:42"]).as_str(), refused),
                ("1", refusals),
                "with enter: {enter}"
            );
        }
    });
}

#[test]
fn a_managed_connection_works_again_after_a_restart_and_a_plain_one_does_not() {
    let server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    run(async {
        let (mut plain, fence) = (connect(&server).await, Fence::new());
        let mut managed = ConnectionManager::new(Client::open(server.url()).unwrap()).await.unwrap();
        let set = |number| fence.set(&pass(number, 1), "report:42", "x").unwrap();
        set(34).run(&mut managed).await.unwrap();
        set(34).run(&mut plain).await.unwrap();
        server.kill();
        assert_eq!(set(35).run(&mut managed).await.unwrap_err().kind(), ErrorKind::Unavailable);
        server.run_again();
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(error) = set(36).run(&mut managed).await {
            assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < until, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(stale(set(34).run(&mut managed).await), (34, 36), "the mark has outlived it");
        // The documentation recommends a managed connection.
        assert_eq!(set(36).run(&mut plain).await.unwrap_err().kind(), ErrorKind::Unavailable);
    });
}

#[test]
fn a_mark_expires_after_its_last_use() {
    let server = RedisServer::start();
    run(async {
        let mut connection = connect(&server).await;
        let lives = || server.command(&["PTTL", MARK]).parse::<i64>().unwrap();
        let day = 24 * 60 * 60 * 1000;
        Fence::new().set(&pass(1, 1), "report:42", "x").unwrap().run(&mut connection).await.unwrap();
        assert!((29 * day..=30 * day).contains(&lives()), "{}", lives());
        assert_eq!(server.command(&["PTTL", "report:42"]), "-1", "the data is yours");
        let week = Fence::new().keep_marks(Some(Duration::from_secs(7 * 24 * 60 * 60)));
        week.enter(&pass(1, 1), "report:42").unwrap().run(&mut connection).await.unwrap();
        assert!((6 * day..=7 * day).contains(&lives()), "showing it again counts: {}", lives());
        let forever = Fence::new().keep_marks(None);
        let call = forever.set_expiring(&pass(1, 1), "report:42", "x", Duration::from_secs(60)).unwrap();
        call.run(&mut connection).await.unwrap();
        assert_eq!(lives(), -1);
        let data = server.command(&["PTTL", "report:42"]).parse::<i64>().unwrap();
        assert!((1..=60_000).contains(&data), "{data}");
        assert!(forever.set_expiring(&pass(1, 1), "k", "x", Duration::ZERO).is_err());
        assert!(forever.set(&pass(1, 1), "k", &["two", "values"]).is_err());
    });
}

#[test]
fn in_a_cluster_mark_and_data_are_in_one_slot() {
    let cluster = RedisCluster::without_replicas();
    let nodes: Vec<_> = cluster.nodes.iter().map(RedisServer::url).collect();
    run(async {
        let client = redis::cluster::ClusterClient::new(nodes).unwrap();
        let (mut connection, fence) = (client.get_async_connection().await.unwrap(), Fence::new());
        for key in ["report:42", "report:{42}:body", "a{b", "{x}{y}", "{é}", "plain key", "1", "2", "3", "4"]
        {
            let mut set = async |number, owner| {
                fence.set(&pass(number, owner), key, "x").unwrap().run(&mut connection).await
            };
            assert_eq!(set(34, 2).await.unwrap(), Admission::Raised, "{key}");
            assert_eq!(stale(set(33, 1).await), (33, 34), "{key}");
            let fields = [("state", "late")];
            for late in [fence.hash_set(&pass(33, 1), key, &fields), fence.delete(&pass(33, 1), key)] {
                assert_eq!(stale(late.unwrap().run(&mut connection).await), (33, 34), "{key}");
            }
            fence.delete(&pass(34, 2), key).unwrap().run(&mut connection).await.unwrap();
            fence.hash_set(&pass(34, 2), key, &fields).unwrap().run(&mut connection).await.unwrap();
            let resource = pass(1, 1).resource;
            let down = Rebase { to: token(2), ceiling: None, by: "ann".into(), why: "to etcd".into() };
            let (_, after) = fence.rebase(&mut connection, &resource, key, &down).await.unwrap();
            assert_eq!(fence.mark(&mut connection, &resource, key).await.unwrap(), Some(after), "{key}");
            assert_eq!(fence.rebases(&mut connection, &resource, key).await.unwrap().len(), 1, "{key}");
        }
        let crossed = cluster.nodes[0].command(&["EVAL", "return 1", "2", "a", "b"]);
        assert!(crossed.contains("CROSSSLOT"), "the servers do look: {crossed}");
    });
}

#[test]
fn a_call_works_on_a_blocking_connection_and_after_the_scripts_were_flushed() {
    let server = RedisServer::start();
    let client = Client::open(server.url()).unwrap();
    run(async {
        let mut managed = client.get_connection_manager().await.unwrap();
        Fence::new().enter(&pass(6, 1), "report:42").unwrap().run(&mut managed).await.unwrap();
    });
    let mut connection = client.get_connection().unwrap();
    let call = Fence::new().set(&pass(7, 1), "report:42", "x").unwrap();
    assert_eq!(call.run_blocking(&mut connection).unwrap(), Admission::Raised);
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(call.run_blocking(&mut connection).unwrap(), Admission::Again);
    server.kill();
    let error = call.run_blocking(&mut connection).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
}

#[test]
fn each_call_takes_one_round_trip() {
    let server = RedisServer::start();
    run(async {
        let mut connection = connect(&server).await;
        let call = Fence::new().set(&pass(7, 1), "report:42", "x").unwrap();
        call.run(&mut connection).await.unwrap();
        server.command(&["CONFIG", "RESETSTAT"]);
        call.run(&mut connection).await.unwrap();
        let stats = server.command(&["INFO", "commandstats"]);
        // Redis also counts the commands that a script calls. Only one command arrives.
        assert!(stats.contains("cmdstat_evalsha:calls=1") && !stats.contains("cmdstat_eval:"), "{stats}");
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let full =
            Fence::new().set(&pass(8, 1), "report:42", "y").unwrap().run(&mut connection).await.unwrap_err();
        assert_eq!((full.kind(), full.effect()), (ErrorKind::Unavailable, Effect::None), "{full:?}");
        let delete = Fence::new().delete(&pass(8, 1), "report:42").unwrap();
        delete.run(&mut connection).await.expect("giving up room needs none");
    });
}

#[test]
fn the_rule_in_lua_equals_the_pure_rule() {
    use proptest::strategy::{Strategy as _, ValueTree as _};
    let server = RedisServer::start();
    run(async {
        let (mut connection, fence) = (connect(&server).await, Fence::new());
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = (proptest::collection::vec((1u64..8, 0u8..4), 1..24), proptest::option::of(4u64..8));
        for _ in 0..100 {
            let (shown, ceiling) = strategy.new_tree(&mut runner).unwrap().current();
            server.command(&["FLUSHALL"]);
            let mut model: Option<Mark> = None;
            if let Some(ceiling) = ceiling {
                model = Some(Mark { highest: token(1), owner: None, ceiling: Some(token(ceiling)) });
                server.command(&["HSET", MARK, "token", "1", "owner", "", "ceiling", &ceiling.to_string()]);
            }
            for (number, owner) in &shown {
                let pass = pass(*number, *owner);
                let expected = rule::judge(model.as_ref(), &pass);
                let answer = fence.enter(&pass, "report:42").unwrap().run(&mut connection).await;
                match (answer, expected) {
                    (Ok(admission), Ok(wanted)) => assert_eq!(admission, wanted),
                    (Err(error), Err(refusal)) => {
                        assert!(
                            error.to_string().ends_with(&leasehold_core::Error::from(refusal).to_string())
                        );
                    }
                    (answer, expected) => panic!("{shown:?} {ceiling:?}: {answer:?}, wanted {expected:?}"),
                }
                if expected == Ok(Admission::Raised) {
                    model = Some(Mark::raised(model.as_ref(), &pass));
                }
            }
        }
    });
}

#[test]
fn after_a_rebase_smaller_tokens_are_admitted_former_ones_are_refused_and_it_is_audited() {
    let server = RedisServer::start();
    run(async {
        let (mut connection, fence) = (connect(&server).await, Fence::new());
        let resource = pass(1, 1).resource;
        let to = |to, ceiling: Option<u64>| Rebase {
            to: token(to),
            ceiling: ceiling.map(token),
            by: "ann".into(),
            why: "to \"etcd\"".into(),
        };
        let unknown = fence.rebase(&mut connection, &resource, "report:42", &to(1, None)).await.unwrap_err();
        assert!(unknown.to_string().contains("nothing to move"), "{unknown}");
        let high = 1_790_000_000_000_001;
        fence.set(&pass(high, 1), "report:42", "redis").unwrap().run(&mut connection).await.unwrap();
        let mark = Mark { highest: token(high), owner: None, ceiling: None };
        for (number, ceiling) in [(400, Some(400)), (400, Some(high + 1)), (high, Some(high + 1))] {
            let wish = to(number, ceiling);
            let error = fence.rebase(&mut connection, &resource, "report:42", &wish).await.unwrap_err();
            let pure = rule::rebase(&mark, wish.to, wish.ceiling).unwrap_err();
            assert!(error.to_string().ends_with(&pure.to_string()), "{error}, {pure}");
        }
        let (before, after) =
            fence.rebase(&mut connection, &resource, "report:42", &to(400, None)).await.unwrap();
        assert_eq!(before, mark);
        assert_eq!(
            after,
            rule::rebase(&mark, token(400), None).unwrap(),
            "as the rule has it, to the last digit"
        );
        fence.set(&pass(401, 2), "report:42", "etcd").unwrap().run(&mut connection).await.unwrap();
        let late = fence
            .set(&pass(high + 1, 1), "report:42", "late")
            .unwrap()
            .run(&mut connection)
            .await
            .unwrap_err();
        assert!(late.to_string().contains("before the rebase"), "{late}");
        assert_eq!(server.command(&["GET", "report:42"]), "etcd");
        // For any rebase of a mark that was moved before, the script has the same result and error text as the rule.
        for (number, ceiling) in [(400, None), (300, None), (300, Some(402)), (450, None), (440, Some(450))] {
            let wish = to(number, ceiling);
            let mark = fence.mark(&mut connection, &resource, "report:42").await.unwrap().unwrap();
            match (
                fence.rebase(&mut connection, &resource, "report:42", &wish).await,
                rule::rebase(&mark, wish.to, wish.ceiling),
            ) {
                (Ok((_, after)), Ok(pure)) => assert_eq!(after, pure),
                (Err(error), Err(pure)) => {
                    assert!(error.to_string().ends_with(&pure.to_string()), "{error}, {pure}");
                }
                (ours, pure) => panic!("{wish:?}: {ours:?}, {pure:?}"),
            }
        }
        fence.set(&pass(441, 2), "report:42", "etcd").unwrap().run(&mut connection).await.unwrap();
        let (_, up) = fence.rebase(&mut connection, &resource, "report:42", &to(high, None)).await.unwrap();
        assert_eq!((up.highest, up.ceiling), (token(high), None));
        let record = server.command(&["LINDEX", &format!("{MARK}:rebased"), "-1"]);
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        assert_eq!((&record["by"], &record["why"]), (&"ann".into(), &"to \"etcd\"".into()), "{record}");
        assert_eq!((&record["was"], &record["now"]), (&high.to_string().into(), &"400".into()), "{record}");
        // The same records as the API returns them.
        assert_eq!(fence.mark(&mut connection, &resource, "report:42").await.unwrap(), Some(up));
        let rebases = fence.rebases(&mut connection, &resource, "report:42").await.unwrap();
        let numbers: Vec<_> = rebases.iter().map(|it| (it.was, it.now, it.ceiling)).collect();
        let ceiling = Some(after.ceiling.unwrap().get());
        let moves = [(441, high, None), (450, 440, Some(450)), (401, 450, ceiling), (high, 400, ceiling)];
        assert_eq!(numbers, moves);
        let first = rebases.last().unwrap();
        assert_eq!((first.by.as_str(), first.why.as_str()), ("ann", "to \"etcd\""));
        assert!(first.at.starts_with("20") && first.at.ends_with('Z'), "{}", first.at);
        assert_eq!(server.command(&["PTTL", &format!("{MARK}:rebased")]), "-1", "it outlives a mark");
        assert_eq!(fence.mark(&mut connection, &resource, "report:43").await.unwrap(), None);
        assert_eq!(fence.rebases(&mut connection, &resource, "report:43").await.unwrap(), []);
        server.command(&["SET", "fence:v1:{report:43}:report/42", "not ours"]);
        let strange = fence.mark(&mut connection, &resource, "report:43").await.unwrap_err();
        assert_eq!((strange.kind(), strange.effect()), (ErrorKind::Corrupt, Effect::None), "{strange}");
    });
}
