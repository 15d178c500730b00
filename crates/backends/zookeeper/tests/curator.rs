//! Leases and Curator's `InterProcessMutex` share one queue. Runs Curator from Debian's packages, with
//! `BeanShell` as the interpreter of `curator.bsh`.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use common::{TIME_LIMIT, claim, client, granted, in_time, is_blocked, open, release, report};
use leasehold::{
    Backend, BackendExt as _, CommandOutcome, Eviction, Listing, OperatorAction, OperatorCommand, Query,
    Released, Snapshot, Verdict,
};
use leasehold_testkit::servers::ZooKeeperServer;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/curator.bsh");
const JARS: [&str; 7] =
    ["bsh", "curator-recipes", "curator-framework", "curator-client", "zookeeper", "guava", "slf4j-api"];
/// Where Curator finds the lock `report/42`.
const PATH: &str = "/leasehold/v1/locks/report/42";

/// A Java process that runs Curator's mutex.
struct Curator {
    child: Child,
    input: ChildStdin,
    replies: Receiver<String>,
}

impl Curator {
    fn start(server: &ZooKeeperServer) -> Curator {
        let jars: Vec<_> = JARS.iter().map(|jar| format!("/usr/share/java/{jar}.jar")).collect();
        for jar in &jars {
            assert!(
                std::path::Path::new(jar).exists(),
                "{jar} is missing: are libcurator-recipes-java and libbsh-java installed?"
            );
        }
        let mut child = Command::new("java")
            .args(["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &jars.join(":")])
            .args(["bsh.Interpreter", SCRIPT, &format!("127.0.0.1:{}", server.port()), PATH])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a Java runtime is installed");
        let (input, output) =
            (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        let curator = Curator { child, input, replies };
        assert_eq!(curator.reply(), "ready");
        curator
    }

    fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the Java program reads its input");
    }

    fn reply(&self) -> String {
        self.replies.recv_timeout(TIME_LIMIT).expect("Curator replies")
    }

    fn is_silent(&self) -> bool {
        self.replies.recv_timeout(Duration::from_millis(300)).is_err()
    }
}

impl Drop for Curator {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curator_waits_for_our_lease_and_we_wait_for_curators_lock() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    let mut curator = Curator::start(&server);

    let ours = claim(&report());
    let first = granted(&zookeeper, &ours).await;
    curator.send("acquire 100");
    assert_eq!(curator.reply(), "busy", "we hold it");
    curator.send("acquire 60000");
    assert!(curator.is_silent(), "Curator waits in our queue");
    let queued = claim(&report()).queued();
    let Ok(Verdict::Blocked(blocked)) = zookeeper.acquire_one(&queued).await else {
        panic!("Curator is ahead")
    };
    assert_eq!((blocked.queued, blocked.ahead), (true, 1), "our second claim waits behind Curator");

    assert_eq!(release(&zookeeper, &ours).await, Released::Now);
    assert_eq!(curator.reply(), "held", "Curator queued before our second claim");
    assert!(is_blocked(&zookeeper, &claim(&report())).await);
    let Ok(Verdict::Blocked(blocked)) = zookeeper.acquire_one(&queued).await else {
        panic!("Curator holds it")
    };
    assert_eq!((blocked.ahead, blocked.holders.len()), (0, 0), "Curator's lock has no token");
    let foreign = blocked.foreign.expect("Curator holds it");
    assert!(foreign.key.starts_with(PATH) && foreign.form == "curator node", "{foreign:?}");
    assert!(foreign.remaining.is_some(), "it ends with its session");

    curator.send("release");
    assert_eq!(curator.reply(), "released");
    assert!(granted(&zookeeper, &queued).await.token > first.token);
    curator.send("acquire 100");
    assert_eq!(curator.reply(), "busy");
    release(&zookeeper, &queued).await;
    curator.send("acquire 60000");
    assert_eq!(curator.reply(), "held");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_waiter_is_woken_when_curator_releases_or_dies() {
    let server = ZooKeeperServer::start();
    let leases = client(&server.url()).await;
    let mut curator = Curator::start(&server);
    curator.send("acquire 60000");
    assert_eq!(curator.reply(), "held");
    let waiting = tokio::spawn(leases.lease("report", "42").wait(TIME_LIMIT).acquire());
    common::eventually("our claim waits", || async {
        let page = leases.inspect(&Query::One(report())).await.unwrap();
        page.into_snapshots().remove(0).queue_length == 1
    })
    .await;
    curator.send("release");
    assert_eq!(curator.reply(), "released");
    let lease = in_time("the grant", waiting).await.unwrap().unwrap();
    lease.check().unwrap();
    lease.release().await.unwrap();

    curator.send("acquire 60000");
    assert_eq!(curator.reply(), "held");
    let waiting = tokio::spawn(leases.lease("report", "42").wait(TIME_LIMIT).acquire());
    drop(curator);
    drop(in_time("the grant after its death", waiting).await.unwrap().unwrap());
}

async fn order(backend: &dyn Backend, action: OperatorAction) -> CommandOutcome {
    backend.order(&OperatorCommand::new(report(), action, "ops", "stuck")).await.expect("the server answers")
}

async fn snapshot(backend: &dyn Backend) -> Snapshot {
    let page = backend.inspect(&Query::One(report())).await.expect("the server answers");
    page.into_snapshots().remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_asks_curator_in_its_own_words_and_evicts_it_only_by_its_hash() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    let mut curator = Curator::start(&server);
    curator.send("acquire 60000");
    assert_eq!(curator.reply(), "held");
    let before = snapshot(&zookeeper).await;
    assert_eq!((before.holder_count, before.foreign.len()), (0, 1));
    assert!(!format!("{before:?}").contains("127.0"), "its data is not shown: {before:?}");

    let changed = CommandOutcome::HolderChanged { token: None };
    for action in [
        OperatorAction::Evict(Eviction::AtExpiry),
        OperatorAction::Evict(Eviction::Now),
        OperatorAction::EvictForeign { value: "0123456789abcdef".parse().unwrap() },
    ] {
        assert_eq!(order(&zookeeper, action).await, changed, "{action:?}");
    }
    assert_eq!(snapshot(&zookeeper).await.foreign, before.foreign, "its node is as it was");
    assert_eq!(order(&zookeeper, OperatorAction::Ask { within: TIME_LIMIT }).await, CommandOutcome::Done);
    assert_eq!(curator.reply(), "asked", "Curator's listener is called");

    let leases = client(&server.url()).await;
    let waiting = tokio::spawn(leases.lease("report", "42").wait(TIME_LIMIT).acquire());
    common::eventually("our claim waits", || async { snapshot(&zookeeper).await.queue_length == 1 }).await;
    let old = OperatorAction::EvictForeign { value: before.foreign[0].value_hash };
    assert_eq!(order(&zookeeper, old).await, changed, "its data has changed since");
    let foreign = snapshot(&zookeeper).await.foreign.remove(0);
    let evict = OperatorAction::EvictForeign { value: foreign.value_hash };
    assert_eq!(order(&zookeeper, evict).await, CommandOutcome::Done);
    let lease = in_time("our grant", waiting).await.unwrap().unwrap();
    let token = Some(lease.token());
    assert_eq!(order(&zookeeper, evict).await, CommandOutcome::HolderChanged { token });
    let page = zookeeper.inspect(&Query::Audit(Listing::of("report/"))).await.unwrap();
    let done: Vec<_> = page.into_records().into_iter().filter(|record| record.done).collect();
    let commands: Vec<_> = done.iter().map(|record| record.command.as_str()).collect();
    assert_eq!(commands, ["evict-foreign", "ask"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn curator_in_our_queue_is_shown_as_a_foreign_waiter() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    granted(&zookeeper, &claim(&report())).await;
    let mut curator = Curator::start(&server);
    curator.send("acquire 60000");
    common::eventually("Curator waits", || async { snapshot(&zookeeper).await.queue_length == 1 }).await;
    let seen = snapshot(&zookeeper).await;
    assert!(seen.queue[0].foreign && seen.foreign.is_empty(), "{seen:?}");
    assert_eq!(seen.queue[0].holder.label, "foreign (curator node)");
}
