//! What each route takes and answers. A test of the server compares this with its router: a route that is missing here, or one too
//! many, fails it.

use serde_json::{Value, json};

use super::{operation::Operation, schemas::Schemas};
use crate::{
    ProblemKind,
    acquire::{AcquireReply, ClaimBody},
    deadlocks::DeadlocksReply,
    events::{ChangeBody, EVENT_STREAM, ResyncBody, SampledBody},
    info::InfoReply,
    inspect::{
        AuditPage, AuditQuery, LeaksPage, LeaksQuery, ResourceQuery, ResourcesPage, ResourcesQuery,
        SnapshotBody,
    },
    jobs::JobsReply,
    login::{LoginBody, LoginReply, LogoutBody},
    orders::{OrderBody, OrderReply},
    overview::{OverviewQuery, OverviewReply},
    release::{ReleaseBody, ReleaseReply},
    renew::{RenewBody, RenewReply},
    routes,
    store::StoreReply,
    terraform::{LockInfo, LockReply, TerraformQuery, UnlockReply},
    timeline::{TimelineQuery, TimelineReply},
    wait::{WaitBody, WaitReply},
};

const OWNER: &str = "0123456789abcdef0123456789abcdef";
const HASH: &str = "86f2c5e64dad3aa1cd500a77d311bc5c";
const TOKEN: &str = "1795004954701560";
const CURSOR: &str = "8196fbb53aa84c16.602a7076fe8";

/// All operations.
pub(super) fn all(schemas: &mut Schemas) -> Vec<Operation> {
    vec![
        acquire(schemas),
        renew(schemas),
        release(schemas),
        wait(schemas),
        resource(schemas),
        resources(schemas),
        audit(schemas),
        leaks(schemas),
        orders(schemas),
        overview(schemas),
        events(schemas),
        timeline(schemas),
        deadlocks(schemas),
        jobs(schemas),
        store(schemas),
        info(schemas),
        log_in(schemas),
        log_out(schemas),
        lock(schemas),
        unlock(schemas),
        metrics(),
        healthz(),
        readyz(),
        openapi(),
    ]
}

/// The example of a request or a reply about one claim, with these fields besides its names.
fn with(names: Value, more: Value) -> Value {
    let (Value::Object(mut names), Value::Object(more)) = (names, more) else { return Value::Null };
    names.extend(more);
    Value::Object(names)
}

fn request(more: Value) -> Value {
    with(json!({"resource": "report/42", "owner": OWNER}), more)
}

fn reply(more: Value) -> Value {
    with(json!({"resource": "report/42", "key": "report/42", "owner_hash": HASH}), more)
}

fn acquire(schemas: &mut Schemas) -> Operation {
    let claim = request(json!({"ttl_ms": 30_000}));
    let examples = [
        ("exclusive", claim.clone()),
        ("waiting", with(claim.clone(), json!({"wait_ms": 10_000}))),
        ("reader", with(claim.clone(), json!({"share": "read"}))),
        ("several", json!({"claims": [claim], "timeout_ms": 10_000})),
    ];
    let granted = json!({"anyOf": [
        schemas.verdict::<AcquireReply>(&["granted"]), schemas.outcomes::<AcquireReply>("claims"),
    ]});
    let queued = schemas.verdict::<AcquireReply>(&["queued"]);
    Operation::post(routes::ACQUIRE, "acquire")
        .about(
            "leases",
            "Ask for a grant",
            "One claim, or a list of them. The owner token is chosen by the client, so a claim may be sent again: it finds its own \
             grant. With `wait_ms`, the server waits on the caller's behalf. Either `resource` or `key` names the resource. In a \
             list each entry has its own `status`.",
        )
        .role("client")
        .body(&schemas.one_or_many::<ClaimBody>("claims"), &examples)
        .reply(
            200,
            "The claim holds the resource; or the outcomes of a list.",
            &granted,
            &reply(json!({
                "verdict": "granted", "token": TOKEN, "pass": format!("{TOKEN} {HASH} report/42"), "ttl_ms": 30_000,
                "remaining_ms": 29_998, "waited_ms": 6120,
            })),
        )
        .reply(
            202,
            "The claim has a place in the queue.",
            &queued,
            &reply(json!({
                "verdict": "queued", "place_ms": 6000, "ahead": 2, "holders": [], "paused": false, "changes_in_ms": 4100,
                "cursor": CURSOR, "waited_ms": 0,
            })),
        )
        .store()
        .problems(&[
            ProblemKind::Contended,
            ProblemKind::Lost,
            ProblemKind::Mismatch,
            ProblemKind::GuaranteeTooWeak,
            ProblemKind::Draining,
        ])
}

fn renew(schemas: &mut Schemas) -> Operation {
    let one = request(json!({"ttl_ms": 30_000}));
    let examples = [("one", one.clone()), ("several", json!({"leases": [one], "timeout_ms": 9000}))];
    let kept = json!({"anyOf": [
        schemas.verdict::<RenewReply>(&["kept"]), schemas.outcomes::<RenewReply>("leases"),
    ]});
    let queued = schemas.verdict::<RenewReply>(&["queued"]);
    Operation::post(routes::RENEW, "renew")
        .about("leases", "Renew leases and places in the queue", "One, or a list of them. May be sent again.")
        .role("client")
        .body(&schemas.one_or_many::<RenewBody>("leases"), &examples)
        .reply(
            200,
            "The lease was renewed; or the outcomes of a list.",
            &kept,
            &reply(json!({
                "verdict": "kept", "grant": TOKEN, "ttl_ms": 30_000, "remaining_ms": 29_999, "asked": null, "evicting": false,
            })),
        )
        .reply(
            202,
            "The claim is queued, and its place was renewed.",
            &queued,
            &reply(json!({"verdict": "queued", "place_ms": 6000})),
        )
        .store()
        .problems(&[ProblemKind::Lost])
}

fn release(schemas: &mut Schemas) -> Operation {
    let one = request(json!({}));
    let examples = [
        ("one", one.clone()),
        ("after no answer", with(one.clone(), json!({"bury_ms": 180_000}))),
        ("several", json!({"leases": [one]})),
    ];
    let released = json!({"anyOf": [
        schemas.reply::<ReleaseReply>(), schemas.outcomes::<ReleaseReply>("leases"),
    ]});
    Operation::post(routes::RELEASE, "release")
        .about(
            "leases",
            "End claims",
            "Leases and places in the queue: one, or a list of them. May be sent again. After a request that was not answered, \
             send it with `bury_ms`: then a delayed request of the claim is refused.",
        )
        .role("client")
        .body(&schemas.one_or_many::<ReleaseBody>("leases"), &examples)
        .reply(
            200,
            "The claim is over: `released` by this request, or `already_gone`; or the outcomes of a list.",
            &released,
            &reply(json!({"verdict": "released"})),
        )
        .store()
}

fn wait(schemas: &mut Schemas) -> Operation {
    let example = json!({"claims": [request(json!({"cursor": CURSOR}))], "wait_ms": 5000});
    Operation::post(routes::WAIT, "wait")
        .about(
            "leases",
            "Wait until claims are worth asking for again",
            "A hint: it may return early, and keeps no place in the queue. A cursor that this store did not give returns at once.",
        )
        .role("client")
        .body(&schemas.request::<WaitBody>(), &[("one", example)])
        .reply(
            200,
            "The positions of the claims that should ask again. Empty if nothing happened.",
            &schemas.reply::<WaitReply>(),
            &json!({"ask": [0]}),
        )
}

fn snapshot() -> Value {
    let holder = json!({
        "holder": {"host": "build-7", "pid": 4711, "label": "nightly"}, "token": TOKEN, "weight": 1, "held_for_ms": 55,
        "remaining_ms": 29_944, "ttl_ms": 30_000, "handovers": 0, "evicting": false, "kept": false,
    });
    json!({
        "resource": "report/42", "key": "report/42", "capacity": 1, "holders": [holder], "holder_count": 1, "foreign": [],
        "queue": [], "queue_length": 0, "last_token": TOKEN, "cursor": CURSOR,
    })
}

fn resource(schemas: &mut Schemas) -> Operation {
    Operation::get(routes::RESOURCE, "resource")
        .about(
            "read",
            "Read one resource",
            "Either `name` or `key` names it. With `cursor` and `wait_ms`, it waits for a change, as observers do.",
        )
        .role("viewer")
        .query(schemas.query::<ResourceQuery>())
        .reply(200, "The resource as it is now.", &schemas.reply::<SnapshotBody>(), &snapshot())
        .store()
}

fn resources(schemas: &mut Schemas) -> Operation {
    Operation::get(routes::RESOURCES, "resources")
        .about(
            "read",
            "List resources",
            "Straight from the store, in key order, without those that the caller may not see.",
        )
        .role("viewer")
        .query(schemas.query::<ResourcesQuery>())
        .reply(
            200,
            "A page of resources.",
            &schemas.reply::<ResourcesPage>(),
            &json!({"resources": [snapshot()], "next": null}),
        )
        .store()
}

fn audit(schemas: &mut Schemas) -> Operation {
    let record = json!({
        "at": "2026-11-18T02:00:00.000Z", "at_us": 1_795_000_000_000_000_u64, "resource": "report/42", "key": "report/42",
        "token": TOKEN, "by": "ops", "why": "it hangs", "command": "evict", "done": true,
    });
    Operation::get(routes::AUDIT, "audit")
        .about(
            "read",
            "List what operators did",
            "Newest first, without resources that the caller may not see. With `key`, those about one resource.",
        )
        .role("viewer")
        .query(schemas.query::<AuditQuery>())
        .reply(
            200,
            "A page of the audit trail.",
            &schemas.reply::<AuditPage>(),
            &json!({"records": [record], "next": null}),
        )
        .store()
}

fn leaks(schemas: &mut Schemas) -> Operation {
    Operation::get(routes::LEAKS, "leaks")
        .about(
            "operate",
            "List keys without an expiry",
            "Those of leasehold, or with `pattern` those of other programs. Only for tokens that are for all namespaces and kinds.",
        )
        .role("operator")
        .query(schemas.query::<LeaksQuery>())
        .reply(
            200,
            "A page of keys. It may be empty although there are more.",
            &schemas.reply::<LeaksPage>(),
            &json!({"leaks": [{"key": "lock:orders", "form": "string", "idle_ms": 86_400_000}], "next": null}),
        )
        .store()
}

fn orders(schemas: &mut Schemas) -> Operation {
    let example = json!({"resource": "report/42", "action": "evict", "token": TOKEN, "why": "it hangs"});
    let pause =
        json!({"resource": "report/42", "action": "pause", "lasting_ms": 600_000, "why": "the disk is full"});
    Operation::post(routes::ORDERS, "order")
        .about(
            "operate",
            "Give a command",
            "Written to the audit trail. **Not** safe to send again. An ask or evict names its grant by `token`, or says \
             `\"any\":true`. `within_ms` belongs to `ask`, `lasting_ms` to `pause`, `capacity` to `resize`, `value_hash` to \
             `evict-foreign`.",
        )
        .role("operator")
        .body(&schemas.request::<OrderBody>(), &[("evict", example), ("pause", pause)])
        .reply(
            200,
            "It was carried out.",
            &schemas.reply::<OrderReply>(),
            &json!({"verdict": "done", "resource": "report/42", "key": "report/42"}),
        )
        .store()
        .problems(&[ProblemKind::NotThatOne, ProblemKind::TokenRequired])
}

fn overview(schemas: &mut Schemas) -> Operation {
    let oldest = json!({"resource": "report/42", "key": "report/42", "ms": 840_000});
    let example = json!({
        "sampled_ms_ago": 120, "every_ms": 2000, "since": "2026-11-18T14:02:00Z", "event_id": "5f0c2a91-17", "truncated": false,
        "held": 1, "waiting": 2, "stuck": 1, "stuck_after_ms": 60_000, "paused": 0, "unreadable": 0,
        "unusual": 0, "gone": 0, "foreign": 0, "deadlocks": 0,
        "last_hour": {
            "lost": 1, "expired": 1, "taken_over": 1, "evicted": 0, "evicting": 0, "asked": 0, "ended": 2, "granted": 212,
        },
        "rates": {"minute_ms": 60_000, "granted": [200, 12], "released": [199, 11], "lost": [1, 0], "queued": [3, 1]},
        "kinds": [{"kind": "report", "resources": 1, "held": 1, "waiting": 2, "stuck": 1}],
        "store": {"state": "healthy", "sentence": "redis, healthy", "quorum": null},
        "oldest_wait": oldest, "oldest_hold": null, "matched": 0, "items": [], "next": null,
    });
    Operation::get(routes::OVERVIEW, "overview")
        .about(
            "operate",
            "Search, sort and page through all resources",
            "From the samples of this server, with their age. The numbers are about all resources that the caller may see.",
        )
        .role("viewer")
        .query(schemas.query::<OverviewQuery>())
        .reply(200, "A page of the newest sample.", &schemas.reply::<OverviewReply>(), &example)
        .store()
}

fn events(schemas: &mut Schemas) -> Operation {
    let (change, resync) = (schemas.reply::<ChangeBody>(), schemas.reply::<ResyncBody>());
    let sampled = schemas.reply::<SampledBody>();
    let example = "id: 5f0c2a91-18\nevent: change\ndata: {\"at\":\"2026-11-18T14:02:07Z\",\"kind\":\"granted\",\"resource\":\"report/42\",\
                   \"key\":\"report/42\",\"token\":\"1795004954701560\",\"queue_length\":0}\n\n";
    let content = json!({EVENT_STREAM: {
        "schema": {
            "type": "string", "contentMediaType": EVENT_STREAM,
            "description": "The data of each event is JSON, of one of these forms.", "x-event-data": {"change": change, "resync": resync, "sampled": sampled},
        },
        "examples": {"change": {"value": example}},
    }});
    let last = json!({
        "name": "Last-Event-ID", "in": "header", "required": false, "schema": {"type": "string"},
        "description": "The id of the last event that the client has seen, or `event_id` of the overview.",
    });
    Operation::get(routes::EVENTS, "events")
        .about(
            "operate",
            "Follow changes of all resources",
            "Server-sent events, from the samples of this server: `change`, `resync` (changes may be missing: read the overview \
             again), `sampled` (the server has taken a sample), `draining` (the stream ends). A comment every 15 s keeps the connection open.",
        )
        .role("viewer")
        .query(vec![last])
        .reply_with(200, "A stream that does not end by itself.", &content)
        .problems(&[ProblemKind::Draining])
}

fn timeline(schemas: &mut Schemas) -> Operation {
    let entry = json!({
        "at": "2026-11-18T14:02:07.000Z", "kind": "released", "resource": "report/42", "key": "report/42", "token": TOKEN,
        "for_ms": 61_000, "queue_length": 0,
    });
    let example = json!({
        "resource": "report/42", "key": "report/42", "since": "2026-11-18T14:00:00.000Z", "complete": true, "entries": [entry],
        "waits": [], "holds": [{"at": "2026-11-18T14:02:07.000Z", "ms": 61_000}],
    });
    Operation::get(routes::TIMELINE, "timeline")
        .about(
            "read",
            "Read what happened to one resource",
            "The changes that this server has seen and remembers, and operators' commands. At most 500 of each. Either `name` or `key` \
             names the resource.",
        )
        .role("viewer")
        .query(schemas.query::<TimelineQuery>())
        .reply(200, "What happened, newest first.", &schemas.reply::<TimelineReply>(), &example)
        .store()
}

fn deadlocks(schemas: &mut Schemas) -> Operation {
    let wait = |pid: u32, holds: &str, waits_for: &str| {
        json!({
            "process": {"host": "build-7", "pid": pid, "label": "nightly"}, "holds": holds, "token": TOKEN, "waits_for": waits_for,
            "waited_ms": 42_000,
        })
    };
    let example = json!({"deadlocks": [{
        "certainty": "possible",
        "resources": [{"resource": "report/2", "key": "report/2"}, {"resource": "report/1", "key": "report/1"}],
        "waits": [wait(811, "report/1", "report/2"), wait(812, "report/2", "report/1")],
        "sentence": "nightly (pid 811 on build-7) holds report/1 and has waited 42s for report/2; nightly (pid 812 on build-7) holds \
                     report/2 and has waited 42s for report/1",
    }]});
    Operation::get(routes::DEADLOCKS, "deadlocks")
        .about(
            "read",
            "List processes that wait for each other",
            "In the newest sample of this server. A process is known by its host, its pid and the subject of its token, so a deadlock is \
             only possible. Only those whose resources the caller may all see.",
        )
        .role("viewer")
        .reply(200, "Possible deadlocks.", &schemas.reply::<DeadlocksReply>(), &example)
        .store()
}

fn jobs(schemas: &mut Schemas) -> Operation {
    let schedule = json!({
        "name": "cleanup", "schedule": "30 2 * * * Europe/Berlin", "next_at": "2026-11-19T01:30:00Z", "last_tick_at": "2026-11-18T01:30:00Z",
        "last_outcome": "ok", "last_success_at": "2026-11-18T01:30:00Z", "failures": 0, "missed": 0, "recorded": 100, "holder": null,
        "host": "build-7", "resource": "cron/cleanup",
        "sentence": "cleanup: the tick of 2026-11-18T01:30:00Z succeeded; the next one is at 2026-11-19T01:30:00Z",
    });
    let election = json!({
        "resource": "election/primary", "key": "election/primary", "leader": {"host": "build-7", "pid": 811, "label": ""}, "token": TOKEN,
        "note": "http://build-7:8080", "held_for_ms": 61_000, "remaining_ms": 29_000, "state": "renewing", "candidates": 2,
    });
    Operation::get(routes::JOBS, "jobs")
        .about(
            "read",
            "List jobs on a schedule, and leaders",
            "The jobs that `leasehold cron` and the library keep records of, and the holders that have published a note, as the leader of \
             an election does.",
        )
        .role("viewer")
        .reply(
            200,
            "Schedules by namespace and name, and elections by key.",
            &schemas.reply::<JobsReply>(),
            &json!({"schedules": [schedule], "elections": [election]}),
        )
        .store()
}

fn store(schemas: &mut Schemas) -> Operation {
    let example = json!({
        "backend": "redlock", "level": "quorum", "because": "a majority of independent nodes", "state": "degraded",
        "sentence": "redlock, degraded: 4 of 5 servers are up",
        "calls": [{"verb": "acquire", "count": 212, "errors": 0, "p50_ms": 0.6, "p99_ms": 2.4}],
        "nodes": [{"name": "10.0.0.1:6379", "counts": true, "why": null, "round_trip_ms": 0.4, "clock_ahead_ms": -3.1}],
        "quorum": {"nodes": 5, "up": 4, "needed": 3, "margin": 1},
        "findings": [{
            "severity": "warning", "title": "10.0.0.2:6379 does not count", "detail": "it refused the connection.", "fix": "Bring it back.",
        }],
    });
    Operation::get(routes::STORE, "store")
        .about(
            "read",
            "Read the health of the store",
            "Its calls, its servers and what is worth knowing. It answers also while the store does not. Addresses of servers are shown to \
             operators whose token is for all namespaces and kinds; others see `node 1`.",
        )
        .role("viewer")
        .reply(200, "The health of the store.", &schemas.reply::<StoreReply>(), &example)
}

fn info(schemas: &mut Schemas) -> Operation {
    let example = json!({
        "api": crate::VERSION, "server": "0.1.0", "survives_server": true, "draining": false,
        "store": {
            "id": "8196fbb53aa84c16", "backend": "sqlite", "level": "database", "because": "one file, synced at each commit",
            "tokens_break_when": "an older copy of the file is put back",
        },
        "capabilities": {
            "queue": true, "shares": true, "handover": true, "keep_for": true, "own_ttl": true, "orders": true,
            "self_granting": false, "passes_over": true,
        },
        "limits": {
            "queue": 1_000_000, "note": 4096, "entries": 1000, "page": 1000, "ttl_ms": 86_400_000, "wait_ms": 60_000,
            "place_ttl_ms": 60_000, "bury_ms": 172_800_000,
        },
        "caller": {"subject": "billing", "roles": ["viewer", "client"], "namespaces": ["acme"], "kinds": null},
    });
    Operation::get(routes::INFO, "info")
        .about("server", "What the server and its store promise", "And what the caller may do.")
        .role("viewer")
        .reply(200, "The server, its store and the caller.", &schemas.reply::<InfoReply>(), &example)
}

/// What can happen to a request that a browser sends before anybody is logged in.
const OF_LOGINS: &[ProblemKind] = &[ProblemKind::WrongHost, ProblemKind::Denied, ProblemKind::Internal];

fn log_in(schemas: &mut Schemas) -> Operation {
    let token = "lh_0a1b2c3d_5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";
    let caller =
        json!({"subject": "ann", "roles": ["viewer", "operator"], "namespaces": null, "kinds": null});
    Operation::post(routes::LOGIN, "log_in")
        .about(
            "server",
            "Log in with a browser",
            "Sets a cookie that counts as the token: for the dashboard. Programs send the token in the header `Authorization`.",
        )
        .body(&schemas.request::<LoginBody>(), &[("token", json!({"token": token}))])
        .reply(
            200,
            "The token holds. The header `Set-Cookie` has the cookie.",
            &schemas.reply::<LoginReply>(),
            &json!({"caller": caller}),
        )
        .problems(OF_LOGINS)
        .problems(&[ProblemKind::Unauthenticated, ProblemKind::Throttled])
}

fn log_out(schemas: &mut Schemas) -> Operation {
    Operation::post(routes::LOGOUT, "log_out")
        .about(
            "server",
            "Log out",
            "Removes the cookie of the log-in. The body is an empty object, or is not there.",
        )
        .body(&schemas.request::<LogoutBody>(), &[("nothing", json!({}))])
        .optional_body()
        .reply_with(204, "The header `Set-Cookie` removes the cookie.", &json!({}))
        .problems(OF_LOGINS)
        .problems(&[ProblemKind::Throttled])
}

fn lock_info() -> Value {
    json!({
        "ID": "4a2b6f0e-93f4-9b7c-0d0e-6f6a3a1f9c11", "Operation": "OperationTypeApply", "Info": "", "Who": "ada@build-7",
        "Version": "1.10.0", "Created": "2026-11-18T02:00:00.123456Z", "Path": "",
    })
}

/// A lock with an id, which only an unlock may lack.
fn lock_body(schemas: &mut Schemas) -> Value {
    let info = schemas.request::<LockInfo>();
    json!({
        "allOf": [info], "required": ["ID"],
        "properties": {"ID": {"minLength": 1, "maxLength": crate::terraform::ID_MAX}},
    })
}

fn lock(schemas: &mut Schemas) -> Operation {
    let busy = json!({crate::JSON: {"schema": schemas.request::<LockInfo>(), "examples": {"holder": {"value": lock_info()}}}});
    Operation::post(routes::TERRAFORM, "terraform_lock")
        .also("LOCK")
        .about(
            "terraform",
            "Lock a state",
            "As the `http` backend of Terraform and OpenTofu asks for it, with `POST` or `LOCK`. One lease for `ttl`, which nobody \
             renews. The same lock sent again finds its own lease.",
        )
        .role("client")
        .query(schemas.query::<TerraformQuery>())
        .body(&lock_body(schemas), &[("lock", lock_info())])
        .reply(
            200,
            "The state is locked.",
            &schemas.reply::<LockReply>(),
            &reply(json!({"token": TOKEN, "remaining_ms": 14_399_998})),
        )
        .reply_with(423, "Another lock holds the state: its LockInfo, as Terraform wants it.", &busy)
        .store()
        .problems(&[ProblemKind::Lost, ProblemKind::Mismatch, ProblemKind::Draining])
}

fn unlock(schemas: &mut Schemas) -> Operation {
    let body = schemas.request::<LockInfo>();
    Operation::new("delete", routes::TERRAFORM, "terraform_unlock")
        .also("UNLOCK")
        .about(
            "terraform",
            "Unlock a state",
            "With `DELETE` or `UNLOCK`. Only `ID` of the body counts. Anyone with the role who has the id may unlock: this is how \
             `force-unlock` works. Without an id it is refused.",
        )
        .role("client")
        .query(schemas.query::<TerraformQuery>())
        .body(&body, &[("unlock", lock_info()), ("force-unlock", json!({"ID": "4a2b6f0e-93f4-9b7c-0d0e-6f6a3a1f9c11"}))])
        .optional_body()
        .reply(
            200,
            "The state is not locked: `released` by this request, or `already_gone`.",
            &schemas.reply::<UnlockReply>(),
            &reply(json!({"verdict": "released"})),
        )
        .store()
        .problems(&[ProblemKind::Lost, ProblemKind::TokenRequired])
}

fn metrics() -> Operation {
    Operation::get(routes::METRICS, "metrics")
        .about("server", "Metrics for Prometheus", "In its text format.")
        .role("viewer")
        .text(200, "All metrics.", "leasehold_http_waiting 0\n")
}

fn healthz() -> Operation {
    Operation::get(routes::HEALTHZ, "healthz")
        .and_head()
        .about("server", "Whether the process is alive", "For every host.")
        .text(200, "It is.", "ok\n")
}

fn readyz() -> Operation {
    Operation::get(routes::READYZ, "readyz")
        .and_head()
        .about(
            "server",
            "Whether the server takes new claims",
            "For every host. An outage of the store does not change it.",
        )
        .text(200, "It does.", "ok\n")
        .text(503, "It is shutting down.", "draining\n")
}

fn openapi() -> Operation {
    let schema = json!({"type": "object", "required": ["openapi", "info", "paths"]});
    Operation::get(routes::OPENAPI, "openapi")
        .and_head()
        .about("server", "This document", "OpenAPI 3.1.")
        .reply(200, "The document.", &schema, &json!({"openapi": "3.1.0", "info": {}, "paths": {}}))
}
