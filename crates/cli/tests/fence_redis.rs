//! `leasehold fence` on Redis: showing and rebasing marks, on one server, behind Sentinel and on a cluster.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, time::Instant};

use leasehold_testkit::servers::{RedisCluster, RedisServer, Replication};
use support::{TestDir, text_of as text};

fn fence(dir: &TestDir, url: &str, words: &[&str]) -> (i32, String, String) {
    let output =
        dir.leasehold().args(["fence", words[0], "--database", url]).args(&words[1..]).output().unwrap();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    (output.status.code().unwrap(), out.trim().to_owned(), error.trim().to_owned())
}

const HIGH: &str = "1790000000000000";

#[test]
fn a_mark_is_shown_and_rebased_and_the_rebase_is_recorded() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    let url = server.url();
    server.command(&["HSET", "fence:v1:{42}:report/42", "token", HIGH, "owner", ""]);
    let beside = ["--key", "report:{42}:body"];
    let (code, said, error) = fence(&dir, &url, &[&["status", "report/42"], beside.as_slice()].concat());
    assert_eq!((code, said), (0, format!("report/42: the highest token seen is {HIGH}")), "{error}");
    let words = ["rebase", "report/42", "--to", "2000", "--reason", "to etcd", "--by-whom", "ann"];
    let (code, said, error) = fence(&dir, &url, &[&words, beside.as_slice()].concat());
    assert_eq!(
        (code, said),
        (
            0,
            format!(
                "report/42: tokens above 2000 and below 895000000001000 are accepted from now on; the mark was {HIGH}"
            )
        ),
        "{error}"
    );
    let (_, json, _) = fence(&dir, &url, &[&["status", "report/42", "--json"], beside.as_slice()].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["mark"]["highest"], &json["mark"]["ceiling"]),
        (&"2000".into(), &"895000000001000".into())
    );
    let rebase = &json["rebases"][0];
    assert_eq!(
        (&rebase["by"], &rebase["why"], &rebase["was"]),
        (&"ann".into(), &"to etcd".into(), &HIGH.into())
    );
}

#[test]
fn on_a_cluster_the_mark_is_found_wherever_its_slot_is() {
    let (dir, cluster) = (TestDir::new(), RedisCluster::without_replicas());
    for key in ["report:1", "report:2", "report:3", "report:{4}:body"] {
        let tag = key.trim_start_matches("report:{").trim_end_matches("}:body");
        let mark = format!("fence:v1:{{{tag}}}:report/42");
        let set = ["HSET", mark.as_str(), "token", "1000", "owner", ""];
        assert!(cluster.nodes.iter().any(|node| node.command(&set) == "2"), "one of them has the slot");
        let words = ["rebase", "report/42", "--key", key, "--to", "10", "--reason", "to etcd"];
        let (code, said, error) = fence(&dir, &cluster.url(), &words);
        assert!(code == 0 && said.contains("below 505"), "{said} {error}");
        let slot = cluster.slot(tag);
        cluster.move_slots(slot..=slot, cluster.other_than(slot));
        // One node is enough to find the others.
        let one = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[0].port());
        let (_, said, error) = fence(&dir, &one, &["status", "report/42", "--key", key]);
        assert!(said.contains("the highest token seen is 10") && said.contains("to etcd"), "{said} {error}");
    }
    let (code, _, said) = fence(&dir, &cluster.nodes[0].url(), &["status", "report/42", "--key", "report:1"]);
    assert!(code == 78 && said.contains("a node of a cluster"), "{code} {said}");
}

#[test]
fn behind_sentinel_the_mark_is_found_before_and_after_a_failover() {
    let (dir, servers) = (TestDir::new(), Replication::start(1));
    let url = servers.url();
    let status = || fence(&dir, &url, &["status", "report/42", "--key", "report:42"]);
    let set = ["HSET", "fence:v1:{report:42}:report/42", "token", "1000", "owner", ""];
    servers.servers[0].command(&set);
    assert!(status().1.contains("the highest token seen is 1000"), "{:?}", status());
    let rebase = |to: &str, ceiling: &str, url: &str| {
        let words = ["rebase", "report/42", "--key", "report:42", "--to", to, "--reason", "to etcd"];
        fence(&dir, url, &[&words[..], &["--ceiling", ceiling]].concat())
    };
    // With fewer replicas than the URL asks for, the command fails.
    let (code, _, said) = rebase("300", "1000", &format!("{url}?replicas=2&replica_timeout=200ms"));
    assert!(
        code == 69 && said.contains("1 replicas acknowledged in time, 2 were asked for"),
        "{code} {said}"
    );
    let (code, _, said) = rebase("200", "300", &format!("{url}?replicas=majority&replica_timeout=30s"));
    assert_eq!(code, 0, "{said}");
    // A replica may be behind, so it is refused.
    let (code, _, said) =
        fence(&dir, &servers.servers[1].url(), &["status", "report/42", "--key", "report:42"]);
    assert!(code == 69 && said.contains("a replica, not the primary"), "{code} {said}");

    servers.servers[0].kill();
    servers.await_failover(servers.servers[0].port());
    let (code, said, error) = status();
    assert!(code == 0 && said.contains("the highest token seen is 200"), "{said} {error}");
    assert_eq!(rebase("100", "200", &url).0, 0);
    assert!(status().1.contains("the highest token seen is 100"), "{:?}", status());
}

#[test]
fn the_options_of_a_store_url_are_used() {
    let (dir, server) = (TestDir::new(), RedisServer::with(&["--requirepass", "open sesame"]));
    let file = dir.path("password");
    fs::write(&file, "open sesame\n").unwrap();
    let url = format!("{}3?password_file={}", server.url(), file.display());
    let mark = "fence:v1:{report:42}:acme:report/42";
    let shell =
        format!("redis.call('SELECT', 3) return redis.call('HSET', '{mark}', 'token', '34', 'owner', '')");
    let beside = |url: &str, resource: &str| fence(&dir, url, &["status", resource, "--key", "report:42"]);
    let (code, said, error) = beside(&url, "report/42");
    assert_eq!((code, said.as_str()), (0, "report/42: no token has been seen"), "{error}");
    let output = dir
        .command("redis-cli")
        .env("REDISCLI_AUTH", "open sesame")
        .args(["-p", &server.port().to_string(), "EVAL", &shell, "0"])
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout).trim(), "2", "{}", text(&output.stderr));
    // The namespace of the URL is used, unless the resource names one itself.
    let seen = (0, "acme:report/42: the highest token seen is 34".to_owned());
    let tenant = format!("{url}&namespace=acme");
    for (url, resource) in [(&tenant, "report/42"), (&url, "acme:report/42"), (&tenant, "acme:report/42")] {
        let (code, said, error) = beside(url, resource);
        assert_eq!((code, said), seen, "{error}");
    }
    assert_eq!(beside(&tenant, "other:report/42").1, "other:report/42: no token has been seen");

    fs::write(&file, "another sesame\n").unwrap();
    let (code, _, said) = beside(&url, "report/42");
    assert!(code == 78 && !said.contains("sesame"), "{code} {said}");
    fs::remove_file(&file).unwrap();
    let (code, _, said) = beside(&url, "report/42");
    assert!(code == 78 && said.contains(&file.display().to_string()), "{code} {said}");

    let frozen = RedisServer::start();
    frozen.freeze();
    let began = Instant::now();
    let (code, _, said) = beside(&format!("{}?timeout=50ms&connect_timeout=50ms", frozen.url()), "report/42");
    assert!(code == 69 && began.elapsed() < support::TIMEOUT / 2, "{code} {said}");
}

#[cfg(feature = "redis-tls")]
#[test]
fn a_mark_is_found_over_tls() {
    let dir = TestDir::new();
    let file = |name: &str| dir.path(name);
    let mut openssl = std::process::Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE"]);
    let made = openssl.arg("-keyout").arg(file("key")).arg("-out").arg(file("crt")).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let files = leasehold_testkit::servers::TlsFiles {
        certificate: file("crt"),
        key: file("key"),
        authority: file("crt"),
    };
    let server = RedisServer::with_tls(&files, &[]);
    server.command(&["HSET", "fence:v1:{report:42}:report/42", "token", "34", "owner", ""]);
    let status = |url: &str| fence(&dir, url, &["status", "report/42", "--key", "report:42"]);
    let trusting = format!("rediss://localhost:{}/?ca_file={}", server.tls_port(), file("crt").display());
    let (code, said, error) = status(&trusting);
    assert_eq!((code, said.as_str()), (0, "report/42: the highest token seen is 34"), "{error}");
    let (code, _, said) = status(&format!("rediss://localhost:{}/", server.tls_port()));
    assert!(code != 0, "the certificate is not trusted: {said}");
}

#[test]
fn wrong_arguments_are_refused_with_the_reason() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    let url = server.url();
    let beside = |url: &str| fence(&dir, url, &["status", "report/42", "--key", "report:42"]);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["status"], 64, "Redis has no triggers"),
        (&["install", "--table", "x", "--resource", "x/{id}"], 64, "Redis has no triggers"),
        (&["remove", "--table", "x"], 64, "Redis has no triggers"),
        (&["status", "report/42"], 64, "with --key"),
        (&["status", "report/42", "--key", "a}b"], 64, "put a part of it in braces"),
        (&["rebase", "report/42", "--key", "k", "--to", "1", "--reason", "x"], 64, "nothing to move"),
    ];
    for (words, code, why) in cases {
        let (exit, _, said) = fence(&dir, &url, words);
        assert!(exit == *code && said.contains(why), "{words:?}: {exit} {said}");
    }
    let (code, _, said) = beside(&format!("{url}?colour=red"));
    assert!(code == 78 && said.contains("the option colour is not known"), "{said}");
    let (code, _, said) = beside("redis+sentinel://127.0.0.1:1");
    assert!(code == 78 && said.contains("name the service"), "{said}");
    let (code, _, said) = beside("redis+sentinel://127.0.0.1:1/primary?connect_timeout=50ms&timeout=50ms");
    assert!(code == 69 && said.contains("cannot connect"), "{said}");
    let (code, _, said) = beside("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
    assert!(code == 64 && said.contains("name the server that has the key"), "{said}");
    let (code, _, said) = beside("redis://u:sesame@127.0.0.1:1");
    assert!(code == 69 && !said.contains("sesame"), "{said}");
    server.command(&["CONFIG", "SET", "requirepass", "open sesame"]);
    let (code, _, said) = beside(&url);
    assert!(code == 78 && said.contains("password"), "{said}");
    let (code, _, said) = beside(&url.replace("redis://", "redis://:another%20sesame@"));
    assert!(code == 78 && said.contains("password") && !said.contains("sesame"), "{said}");
    let mut with = dir.leasehold();
    with.args(["fence", "status", "report/42", "--key", "report:42"]);
    let output = with.env("LEASEHOLD_DATABASE", &url).env("REDISCLI_AUTH", "open sesame").output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "report/42: no token has been seen", "{}", text(&output.stderr));
}

#[test]
fn the_printed_scripts_refuse_a_stale_holder() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    let pass = || {
        let output = dir
            .leasehold()
            .args(["run", "report/42", "--", "sh", "-c", "echo $LEASEHOLD_PASS"])
            .output()
            .unwrap();
        text(&output.stdout).trim().to_owned()
    };
    let (old, new) = (pass(), pass());
    let script = |write: &str| {
        let output = dir.leasehold().args(["fence", "script", write]).output().unwrap();
        assert!(output.status.success(), "{write}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let call = |write: &str, pass: &str, key: &str, more: &[&str]| {
        let [token, owner, resource] = pass.split(' ').collect::<Vec<_>>()[..] else {
            panic!("a pass: {pass}")
        };
        let (script, mark) = (script(write), format!("fence:v1:{{42}}:{resource}"));
        server.command(&[&["EVAL", &script, "2", &mark, key, token, owner, "60000"], more].concat())
    };
    let body = "report:{42}:body";
    assert!(call("set", &new, body, &["three pages", "0"]).contains("raised"));
    let stale = call("set", &old, body, &["one page", "0"]);
    assert!(stale.contains("stale") && stale.contains(new.split(' ').next().unwrap()), "{stale}");
    for (write, more) in [("hash-set", &["state", "late"][..]), ("delete", &[]), ("enter", &[])] {
        let stale = call(write, &old, body, more);
        assert!(stale.contains("stale"), "{write}: {stale}");
    }
    assert_eq!(server.command(&["GET", body]), "three pages", "the stale holder changed nothing");
    assert!(call("hash-set", &new, "report:{42}", &["state", "done", "pages", "3"]).contains("again"));
    assert_eq!(server.command(&["HGET", "report:{42}", "pages"]), "3");
    assert!(call("enter", &new, body, &[]).contains("again"));
    assert!(call("delete", &new, body, &[]).contains("again"));
    assert_eq!(server.command(&["EXISTS", body]), "0");
}
