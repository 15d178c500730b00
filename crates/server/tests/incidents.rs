//! What the overview, the deadlocks and the timeline tell of an incident.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, process::Command, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::Request;
use leasehold::{Memory, System};
use leasehold_server::{Access, Config, NewToken, TokenFile};
use leasehold_support::processes::host_name;
use serde_json::{Value, json};
use support::{Events, OTHER, OWNER, PATIENCE, TestServer, config, waiting};

/// Looks at the store often, so that a test need not wait.
fn eager() -> Config {
    let mut config = config();
    config.sampling.every = Duration::from_millis(50);
    config
}

async fn start(config: Config) -> TestServer {
    TestServer::with(Arc::new(Memory::new()), config).await
}

/// Asks until the answer is as wanted.
async fn until(server: &TestServer, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let asked = async {
        loop {
            let answer = server.get(path).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            if is_wanted(&answer.body) {
                return answer.body;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(body) => body,
        Err(_) => panic!("{path} is never as wanted: {}", server.get(path).await.text),
    }
}

fn owner(number: u32) -> String {
    format!("{number:032x}")
}

/// A claim of a process, which queues if it must.
async fn claim(server: &TestServer, resource: &str, owner: u32, process: Value) -> support::Answer {
    let mut body = json!({
        "resource": resource, "owner": self::owner(owner), "ttl_ms": 60_000, "when_blocked": "queue", "place_ttl_ms": 60_000,
    });
    body.as_object_mut().unwrap().extend(process.as_object().unwrap().clone());
    server.post("/v1/acquire", body).await
}

fn process(pid: u32) -> Value {
    json!({"host": "worker-1", "pid": pid, "label": "nightly"})
}

fn keys(body: &Value) -> Vec<&str> {
    body["items"].as_array().unwrap().iter().map(|item| item["key"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_holder_that_has_died_is_gone_and_may_be_evicted_at_once() {
    let server = start(eager()).await;
    let mut child = Command::new("true").spawn().unwrap();
    let here = |pid: u32| json!({"host": host_name(), "pid": pid});
    assert_eq!(claim(&server, "report/dead", 1, here(child.id())).await.status, 200);
    assert_eq!(claim(&server, "report/alive", 2, here(std::process::id())).await.status, 200);
    assert_eq!(claim(&server, "report/elsewhere", 3, process(child.id())).await.status, 200);
    child.wait().unwrap();
    let body = until(&server, "/v1/overview?only=gone", |body| body["gone"] == json!(1)).await;
    assert_eq!((keys(&body), &body["matched"]), (vec!["report/dead"], &json!(1)));
    let item = &body["items"][0];
    assert_eq!((&item["holders"][0]["state"], &item["mode"]), (&json!("gone"), &json!("exclusive")));
    let step = &item["next_step"];
    assert_eq!((&step["step"], &step["token"]), (&json!("evict_now"), &item["holders"][0]["token"]));
    let token = step["token"].as_str().unwrap();
    let command = format!("leasehold evict report/dead --token {token} --now --two-may-run --reason WHY");
    assert_eq!(step["command"], json!(command));
    let order = json!({"resource": "report/dead", "action": "evict-now", "token": token, "why": "it died"});
    assert_eq!(server.post("/v1/orders", order).await.status, 200);
    let body = until(&server, "/v1/overview", |body| body["gone"] == json!(0)).await;
    assert_eq!((&body["last_hour"]["evicted"], &body["last_hour"]["lost"]), (&json!(1), &json!(1)));
}

/// On a shared resource the live holder may keep it for longer than the one that has died.
#[tokio::test]
async fn the_next_step_of_a_semaphore_is_for_the_holder_that_has_died() {
    let server = start(eager()).await;
    let mut child = Command::new("true").spawn().unwrap();
    let permit = |pid: u32, ttl_ms: u64| json!({"host": host_name(), "pid": pid, "label": "nightly", "ttl_ms": ttl_ms, "share": {"weight": 1, "capacity": 3}});
    let dead = claim(&server, "pool/gpu", 1, permit(child.id(), 300_000)).await.body["number"].clone();
    let live =
        claim(&server, "pool/gpu", 2, permit(std::process::id(), 600_000)).await.body["number"].clone();
    assert!(dead.is_string() && live.is_string(), "{dead} {live}");
    child.wait().unwrap();
    let body = until(&server, "/v1/overview?only=gone", |body| body["gone"] == json!(1)).await;
    let item = &body["items"][0];
    assert_eq!(item["gone"].as_array().unwrap().len(), 1);
    assert_eq!((&item["gone"][0]["token"], &item["gone"][0]["state"]), (&dead, &json!("gone")));
    let step = &item["next_step"];
    assert_eq!((&step["step"], &step["token"]), (&json!("evict_now"), &dead));
    let name = format!("nightly (pid {} on {})", child.id(), host_name());
    assert!(step["text"].as_str().unwrap().contains(&name), "{step}");
    let steps = item["steps"].as_array().unwrap();
    assert!(steps[..2].iter().all(|step| step["token"] == dead), "{item}");
    assert!(steps[2..].iter().all(|step| step["token"] == live), "{item}");
}

/// At night nobody watches.
#[tokio::test]
async fn there_is_a_history_when_the_first_person_asks() {
    let mut config = eager();
    // Without a request, only these samples are taken.
    (config.sampling.every, config.sampling.idle_every) =
        (Duration::from_millis(50), Some(Duration::from_millis(50)));
    let server = start(config).await;
    let claim = json!({"resource": "job/1", "owner": OWNER, "ttl_ms": 3000, "pid": 7, "host": "worker-1"});
    // The metrics say nothing of samples, and everything else that does asks for them: so the store is watched.
    let calls = async || {
        let text = server.get("/metrics").await.text;
        let of_inspect = |line: &&str| line.contains("inspect") && line.contains("_count");
        text.lines()
            .filter(of_inspect)
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>()
    };
    let sampled = async |many: f64| {
        let from = calls().await;
        let enough = async {
            while calls().await < from + many {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, enough).await.expect("samples are taken although nobody asks");
    };
    sampled(2.0).await;
    assert_eq!(server.post("/v1/acquire", claim).await.status, 200);
    sampled(2.0).await;
    // Another claim is granted when the lease has expired.
    assert_eq!(server.post("/v1/acquire", waiting("job/1", OTHER, 20_000)).await.status, 200);
    sampled(2.0).await;
    let body = server.get("/v1/overview").await.body;
    // A slow machine takes few samples, and they may not tell how it ended.
    let number = |name: &str| body["last_hour"][name].as_u64().unwrap();
    assert_eq!((number("granted"), number("lost") + number("ended")), (2, 1), "{body}");
    let timeline = server.get("/v1/timeline?name=job/1").await.body;
    let kinds: Vec<_> = timeline["entries"].as_array().unwrap().iter().map(|entry| &entry["kind"]).collect();
    assert!(kinds.contains(&&json!("expired")) || kinds.contains(&&json!("ended")), "{timeline}");
}

#[tokio::test]
async fn filters_find_what_they_say() {
    let mut config = eager();
    config.sampling.stuck_after = Duration::from_millis(200);
    let server = start(config).await;
    server.acquire("report/stuck", OWNER).await;
    claim(&server, "report/stuck", 7, process(7)).await;
    server.acquire("report/held", OWNER).await;
    server.acquire("report/paused", OWNER).await;
    let pause = json!({"resource": "report/paused", "action": "pause", "lasting_ms": 60_000, "why": "disk"});
    assert_eq!(server.post("/v1/orders", pause).await.status, 200);
    let note = json!({"note": "http://worker-1:80"});
    claim(&server, "election/leader", 8, note).await;
    until(&server, "/v1/overview", |body| body["stuck"] == json!(1) && body["held"] == json!(4)).await;
    for (filter, expected) in [
        ("stuck", vec!["report/stuck"]),
        ("waiting", vec!["report/stuck"]),
        ("paused", vec!["report/paused"]),
        ("leading", vec!["election/leader"]),
        ("held", vec!["election/leader", "report/held", "report/paused", "report/stuck"]),
        ("unusual", vec![]),
        ("unreadable", vec![]),
        ("gone", vec![]),
        ("foreign", vec![]),
        ("deadlocked", vec![]),
    ] {
        let body = server.get(&format!("/v1/overview?sort=name&only={filter}")).await.body;
        assert_eq!(keys(&body), expected, "{filter}");
        assert_eq!(body["matched"], json!(expected.len()), "{filter}");
    }
    let both = server.get("/v1/overview?only=held&kind=election").await.body;
    assert_eq!(keys(&both), ["election/leader"]);
    assert_eq!(server.get("/v1/overview?only=blue").await.problem(), (422, "invalid"));
    let paused = server.get("/v1/overview?only=paused").await.body;
    assert_eq!(paused["items"][0]["next_step"]["step"], json!("resume"));
    assert_eq!(paused["store"], json!({"state": "healthy", "sentence": "memory, healthy", "quorum": null}));
    let kinds: Vec<_> = paused["kinds"].as_array().unwrap().iter().map(|kind| &kind["resources"]).collect();
    assert_eq!(kinds, [&json!(3), &json!(1)]);
}

/// Every election was stuck, for ever.
#[tokio::test]
async fn candidates_wait_on_purpose_as_long_as_their_leader_is_well() {
    let mut config = eager();
    config.sampling.stuck_after = Duration::from_millis(100);
    let server = start(config).await;
    let leader = claim(&server, "election/eu", 1, json!({"note": "http://worker-1:80"})).await.body;
    claim(&server, "election/eu", 2, json!({"note": "http://worker-2:80"})).await;
    server.acquire("report/stuck", OWNER).await;
    claim(&server, "report/stuck", 3, process(7)).await;
    let body = until(&server, "/v1/overview", |body| body["stuck"] == json!(1)).await;
    assert_eq!((&body["waiting"], &body["oldest_wait"]["key"]), (&json!(2), &json!("report/stuck")));
    let led = server.get("/v1/overview?only=leading").await.body["items"][0].clone();
    assert_eq!((&led["stuck"], &led["queue_length"]), (&json!(false), &json!(1)));
    assert!(led["oldest_wait_ms"].as_u64() > Some(0), "{led}");
    // Its leader is to go, so that the candidates wait for something.
    let evict =
        json!({"resource": "election/eu", "action": "evict", "token": leader["token"], "why": "it hangs"});
    assert_eq!(server.post("/v1/orders", evict).await.status, 200);
    until(&server, "/v1/overview?only=stuck", |body| keys(body).contains(&"election/eu")).await;
}

#[tokio::test]
async fn a_deadlock_of_two_processes_is_found_and_shown_to_those_who_may_see_all_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let [all, some] = [NewToken::fresh(&System::current()), NewToken::fresh(&System::current())];
    let entry = |token: &NewToken, more: &str| {
        let NewToken { id, sha256, .. } = token;
        format!(
            "[[token]]\nid = \"{id}\"\nsha256 = \"{sha256}\"\nsubject = \"ci\"\nroles = [\"client\"]\n{more}\n"
        )
    };
    fs::write(&path, entry(&all, "") + &entry(&some, "namespaces = [\"acme\"]")).unwrap();
    let mut config = eager();
    config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
    let server = start(config).await;
    let send = async |token: &NewToken, mut request: Request<_>| {
        let value = format!("Bearer {}", token.token).parse().unwrap();
        request.headers_mut().insert("authorization", value);
        server.connect().await.send(request).await.unwrap().body
    };
    let get = |path: &str| Request::builder().uri(path).body(Full::default()).unwrap();
    let (first, second) = ("acme:report/1", "other:report/2");
    for (resource, owner, pid) in [(first, 1, 11), (second, 2, 12), (second, 3, 11), (first, 4, 12)] {
        let mut body = json!({
            "resource": resource, "owner": self::owner(owner), "ttl_ms": 60_000, "when_blocked": "queue", "place_ttl_ms": 60_000,
        });
        body.as_object_mut().unwrap().extend(process(pid).as_object().unwrap().clone());
        send(&all, support::post("/v1/acquire", &body)).await;
    }
    let found = async {
        loop {
            let body = send(&all, get("/v1/deadlocks")).await;
            if body["deadlocks"].as_array().is_some_and(|found| !found.is_empty()) {
                return body;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let body = tokio::time::timeout(PATIENCE, found).await.expect("the deadlock is found");
    let deadlock = &body["deadlocks"][0];
    assert_eq!(deadlock["certainty"], json!("possible"));
    let waits: Vec<_> = deadlock["waits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|wait| (&wait["process"]["pid"], &wait["holds"], &wait["waits_for"]))
        .collect();
    let [one, two] = [json!(first), json!(second)];
    assert!(waits.contains(&(&json!(11), &one, &two)) && waits.contains(&(&json!(12), &two, &one)), "{body}");
    assert_eq!(deadlock["waits"][0]["process"]["subject"], json!("ci"));
    assert!(
        deadlock["sentence"].as_str().unwrap().contains("nightly (pid 12 on worker-1) holds other:report/2")
    );
    let overview = send(&all, get("/v1/overview?only=deadlocked")).await;
    assert_eq!((&overview["deadlocks"], &overview["matched"]), (&json!(1), &json!(2)));
    assert_eq!(overview["items"][0]["deadlock"].as_array().unwrap().len(), 2);
    assert!(overview["items"][0]["next_step"]["step"].is_string());
    // A caller who may see one of the resources is not told of the other one.
    let limited = send(&some, get("/v1/deadlocks")).await;
    assert_eq!(limited, json!({"deadlocks": []}));
    let overview = send(&some, get("/v1/overview")).await;
    assert_eq!((&overview["deadlocks"], keys(&overview)), (&json!(0), vec![first]));
    assert!(overview["items"][0]["deadlock"].is_null() && !overview.to_string().contains("other:"));
    // Neither is it told how much happens elsewhere.
    assert!(overview["last_hour"]["granted"].as_u64().unwrap() <= 1);
}

#[tokio::test]
async fn the_timeline_of_a_resource_tells_who_did_what() {
    let server = start(eager()).await;
    until(&server, "/v1/overview", |body| body["held"] == json!(0)).await;
    let mut events = Events::open(server.address, &[]).await;
    events.next().await.unwrap();
    let granted = claim(&server, "report/1", 1, process(1)).await;
    assert_eq!(events.change().await.0, "granted");
    claim(&server, "report/1", 2, process(2)).await;
    assert_eq!(events.change().await.0, "queued");
    server.acquire("report/12", OTHER).await;
    assert_eq!(events.change().await.1, "report/12");
    let why = "it hangs <b>\u{202e}";
    let ask = json!({"resource": "report/1", "action": "ask", "token": granted.body["token"], "within_ms": 30_000, "why": why});
    assert_eq!(server.post("/v1/orders", ask).await.status, 200);
    assert_eq!(events.change().await.0, "asked");
    server.post("/v1/release", json!({"resource": "report/1", "owner": owner(1)})).await;
    let released = events.next().await.unwrap();
    assert_eq!(released.data["kind"], json!("released"));
    assert_eq!(claim(&server, "report/1", 2, process(2)).await.status, 200);
    while events.change().await.0 != "granted" {}
    let body = server.get("/v1/timeline?name=report/1").await.body;
    assert_eq!((&body["key"], &body["complete"]), (&json!("report/1"), &json!(true)));
    let kinds: Vec<_> =
        body["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"granted"));
    for kind in ["granted", "queued", "asked", "released"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    assert!(!body.to_string().contains("report/12"), "another resource with the same beginning");
    let asked =
        body["entries"].as_array().unwrap().iter().find(|entry| entry["kind"] == json!("asked")).unwrap();
    assert_eq!((&asked["by"], &asked["why"]), (&json!("anonymous"), &json!(why)));
    assert!(body["entries"][0]["waited_ms"].is_u64(), "{body}");
    assert_eq!(body["waits"].as_array().unwrap().len(), 1);
    assert_eq!(body["holds"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/v1/timeline").await.problem(), (422, "invalid"));
    let unknown = server.get("/v1/timeline?name=report/none").await.body;
    assert_eq!((&unknown["entries"], &unknown["complete"]), (&json!([]), &json!(true)));
}

#[tokio::test]
async fn what_happens_is_counted_by_minute() {
    let server = start(eager()).await;
    until(&server, "/v1/overview", |body| body["held"] == json!(0)).await;
    for number in 0..5 {
        server.acquire(&format!("report/{number}"), OWNER).await;
    }
    until(&server, "/v1/overview", |body| body["last_hour"]["granted"] == json!(5)).await;
    server.post("/v1/release", json!({"resource": "report/0", "owner": OWNER})).await;
    server.post("/v1/acquire", json!({"resource": "job/1", "owner": OWNER, "ttl_ms": 6000})).await;
    let body = until(&server, "/v1/overview", |body| body["last_hour"]["expired"] == json!(1)).await;
    let sum = |name: &str| -> u64 {
        body["rates"][name].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum()
    };
    assert_eq!((sum("granted"), sum("released"), sum("lost")), (6, 1, 1));
    assert_eq!((&body["rates"]["minute_ms"], &body["last_hour"]["ended"]), (&json!(60_000), &json!(0)));
}

#[tokio::test]
async fn a_stream_tells_of_each_look() {
    let server = start(eager()).await;
    let first = server.get("/v1/overview").await.body["event_id"].clone();
    let mut events = Events::open(server.address, &[]).await;
    assert_eq!(events.next_or_sampled().await.unwrap().name, "resync");
    for _ in 0..3 {
        let sampled = events.next_or_sampled().await.unwrap();
        assert_eq!((sampled.name.as_str(), &sampled.data["event_id"]), ("sampled", &first));
        assert_eq!(json!(sampled.id), first, "a reader that comes back goes on from here");
        assert!(sampled.data["every_ms"].as_u64().unwrap() >= 50 && sampled.data["age_ms"].is_u64());
    }
    server.acquire("report/1", OWNER).await;
    let mut last = events.next_or_sampled().await.unwrap();
    while last.name != "change" {
        last = events.next_or_sampled().await.unwrap();
    }
    let sampled = events.next_or_sampled().await.unwrap();
    assert_eq!((sampled.name.as_str(), sampled.id), ("sampled", last.id), "after the changes of the look");
}
