//! `GET /v1/jobs`: jobs on a schedule, and who leads.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::Request;
use leasehold::{Backend, Client, Clock as _, Memory, System, SystemClock};
use leasehold_patterns::schedule::{Cron, Schedule, TickOutcome, TickTime};
use leasehold_server::{Access, NewToken, TokenFile};
use serde_json::{Value, json};
use support::{OWNER, TestServer, config};

/// Claims the newest tick of the job, and ends it like this.
async fn tick(client: &Client, job: &str, outcome: Option<TickOutcome>) -> TickTime {
    let schedule = Schedule::parse("0 0 * * *").unwrap();
    let now = TickTime::of(SystemClock.wall());
    let cron = Cron::new(client, job, schedule);
    let at = TickTime::of(leasehold::WallTime::from_micros(
        now.wall().as_micros() / 86_400_000_000 * 86_400_000_000,
    ));
    let claimed = cron.claim(at).await.unwrap().expect("nobody has claimed it");
    if let Some(outcome) = outcome {
        claimed.finish(outcome).await;
    }
    at
}

async fn get(server: &TestServer, token: Option<&NewToken>) -> Value {
    let mut request = Request::builder().uri("/v1/jobs");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {}", token.token));
    }
    let answer = server.connect().await.send(request.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

fn names(body: &Value, list: &str, field: &str) -> Vec<String> {
    let all = body[list].as_array().unwrap().iter();
    all.map(|one| one[field].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn schedules_tell_how_their_last_tick_ended() {
    let memory = Arc::new(Memory::new());
    let client = Client::new(Arc::clone(&memory) as Arc<dyn Backend>);
    let at = tick(&client, "backup", Some(TickOutcome::Failed("no disk\nat all".to_owned()))).await;
    tick(&client, "cleanup", Some(TickOutcome::Succeeded)).await;
    tick(&client, "report", Some(TickOutcome::Skipped)).await;
    tick(&client.namespace("acme"), "cleanup", Some(TickOutcome::Succeeded)).await;
    let _running = client.lease("cron", "cleanup").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let server = TestServer::with(memory, config()).await;
    let body = get(&server, None).await;
    let schedules = body["schedules"].as_array().unwrap();
    let told: Vec<_> = schedules
        .iter()
        .map(|one| (one["name"].as_str().unwrap(), one["last_outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(told, [("backup", "failed"), ("cleanup", "ok"), ("report", "missed"), ("acme:cleanup", "ok")]);
    let backup = &schedules[0];
    assert_eq!(
        (&backup["failures"], &backup["missed"], &backup["recorded"]),
        (&json!(1), &json!(0), &json!(1))
    );
    assert_eq!((&backup["error"], &backup["resource"]), (&json!("no disk\nat all"), &json!("cron/backup")));
    assert_eq!(backup["last_tick_at"], json!(at.to_string()));
    let sentence = backup["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with(&format!("backup: the tick of {at} failed: no disk; the next one is at")),
        "{sentence}"
    );
    assert_eq!(schedules[2]["missed"], json!(1));
    assert_eq!(schedules[1]["holder"]["pid"], json!(std::process::id()));
    assert_eq!(
        (&schedules[3]["holder"], &schedules[3]["resource"]),
        (&Value::Null, &json!("acme:cron/cleanup"))
    );
    assert_eq!(body["elections"], json!([]), "records of ticks are no elections");
}

#[tokio::test]
async fn leaders_are_those_who_publish_a_note() {
    let memory = Arc::new(Memory::new());
    let client = Client::new(Arc::clone(&memory) as Arc<dyn Backend>);
    let long = "x".repeat(3000);
    let _leader = client
        .election("election", "primary")
        .label("db-1")
        .candidate("http://db-1\u{202e}")
        .acquire()
        .await
        .unwrap();
    let _other = client.election("election", "long").candidate(&long).acquire().await.unwrap();
    let _binary = client.election("election", "binary").candidate([0xff, 0xfe]).acquire().await.unwrap();
    let server = TestServer::with(memory, config()).await;
    let lock = json!({"ID": "4a2b", "Operation": "OperationTypeApply", "Who": "ada"});
    assert_eq!(server.post("/v1/terraform?resource=tf/prod", lock).await.status, 200);
    server.acquire("report/1", OWNER).await;
    let body = get(&server, None).await;
    assert_eq!(names(&body, "elections", "key"), ["election/binary", "election/long", "election/primary"]);
    let [binary, long, primary] = &body["elections"].as_array().unwrap()[..] else { panic!("three") };
    assert_eq!((&binary["note"], long["note"].as_str().unwrap().len()), (&Value::Null, 200));
    assert_eq!(
        (&primary["note"], &primary["leader"]["label"]),
        (&json!("http://db-1\u{202e}"), &json!("db-1"))
    );
    assert_eq!((&primary["state"], &primary["candidates"]), (&json!("renewing"), &json!(0)));
    assert!(primary["remaining_ms"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn a_limited_caller_sees_its_own_jobs() {
    let memory = Arc::new(Memory::new());
    let client = Client::new(Arc::clone(&memory) as Arc<dyn Backend>);
    let mut held = Vec::new();
    for namespace in ["acme", "secret"] {
        let client = client.namespace(namespace);
        tick(&client, "cleanup", Some(TickOutcome::Succeeded)).await;
        held.push(client.election("election", "primary").candidate("here").acquire().await.unwrap());
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let fresh = || NewToken::fresh(&System::current());
    let [acme, reports] = [fresh(), fresh()];
    let entry = |token: &NewToken, lines: &str| {
        let NewToken { id, sha256, .. } = token;
        format!(
            "[[token]]\nid = \"{id}\"\nsha256 = \"{sha256}\"\nsubject = \"x\"\nroles = [\"viewer\"]\n{lines}\n"
        )
    };
    fs::write(&path, entry(&acme, "namespaces = [\"acme\"]") + &entry(&reports, "kinds = [\"cron\"]"))
        .unwrap();
    let mut config = config();
    config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
    let server = TestServer::with(memory, config).await;
    let body = get(&server, Some(&acme)).await;
    assert_eq!(names(&body, "schedules", "name"), ["acme:cleanup"]);
    assert_eq!(names(&body, "elections", "key"), ["acme:election/primary"]);
    let body = get(&server, Some(&reports)).await;
    assert_eq!(body, json!({"schedules": [], "elections": []}), "the records are of other kinds");
}
