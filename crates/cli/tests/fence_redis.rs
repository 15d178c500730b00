//! `leasehold fence` on Redis: marks are seen and moved, on one server and on a cluster.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use leasehold_testkit::servers::{RedisCluster, RedisServer};
use support::{Site, said as text};

fn fence(site: &Site, url: &str, words: &[&str]) -> (i32, String, String) {
    let output =
        site.leasehold().args(["fence", words[0], "--database", url]).args(&words[1..]).output().unwrap();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    (output.status.code().unwrap(), out.trim().to_owned(), error.trim().to_owned())
}

const HIGH: &str = "1790000000000000";

#[test]
fn a_mark_is_seen_and_moved_and_that_is_recorded() {
    let (site, server) = (Site::new(), RedisServer::start());
    let url = server.url();
    server.command(&["HSET", "fence:v1:{42}:report/42", "token", HIGH, "owner", ""]);
    let beside = ["--key", "report:{42}:body"];
    let (code, said, error) = fence(&site, &url, &[&["status", "report/42"], beside.as_slice()].concat());
    assert_eq!((code, said), (0, format!("report/42: the highest token seen is {HIGH}")), "{error}");
    let words = ["rebase", "report/42", "--to", "2000", "--reason", "to etcd", "--by-whom", "ann"];
    let (code, said, error) = fence(&site, &url, &[&words, beside.as_slice()].concat());
    assert_eq!(
        (code, said),
        (
            0,
            format!(
                "report/42: tokens above 2000 are taken from now on, and below 895000000001000; it was {HIGH}"
            )
        ),
        "{error}"
    );
    let (_, json, _) = fence(&site, &url, &[&["status", "report/42", "--json"], beside.as_slice()].concat());
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
fn any_node_of_a_cluster_finds_the_mark() {
    let (site, cluster) = (Site::new(), RedisCluster::without_replicas());
    for (number, key) in ["report:1", "report:2", "report:3", "report:4"].into_iter().enumerate() {
        let mark = format!("fence:v1:{{{key}}}:report/42");
        let set = ["HSET", mark.as_str(), "token", "1000", "owner", ""];
        assert!(cluster.nodes.iter().any(|node| node.command(&set) == "2"), "one of them has the slot");
        let url = cluster.nodes[number % cluster.nodes.len()].url();
        let words = ["rebase", "report/42", "--key", key, "--to", "10", "--reason", "to etcd"];
        let (code, said, error) = fence(&site, &url, &words);
        assert!(code == 0 && said.contains("below 505"), "{said} {error}");
        let (_, said, error) = fence(&site, &url, &["status", "report/42", "--key", key]);
        assert!(said.contains("the highest token seen is 10") && said.contains("to etcd"), "{said} {error}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let (site, server) = (Site::new(), RedisServer::start());
    let url = server.url();
    let beside = |url: &str| fence(&site, url, &["status", "report/42", "--key", "report:42"]);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["status"], 64, "Redis has no triggers"),
        (&["install", "--table", "x", "--resource", "x/{id}"], 64, "Redis has no triggers"),
        (&["remove", "--table", "x"], 64, "Redis has no triggers"),
        (&["status", "report/42"], 64, "with --key"),
        (&["status", "report/42", "--key", "a}b"], 64, "put a part of it in braces"),
        (&["rebase", "report/42", "--key", "k", "--to", "1", "--reason", "x"], 64, "nothing to move"),
    ];
    for (words, code, why) in cases {
        let (ended, _, said) = fence(&site, &url, words);
        assert!(ended == *code && said.contains(why), "{words:?}: {ended} {said}");
    }
    let (code, _, said) = beside(&format!("{url}?password_file=x"));
    assert!(code == 78 && said.contains("takes no options"), "{said}");
    let (code, _, said) = beside("redis+sentinel://127.0.0.1:1/primary");
    assert!(code == 64 && said.contains("the primary behind Sentinel"), "{said}");
    let (code, _, said) = beside("redis://u:sesame@127.0.0.1:1");
    assert!(code == 69 && !said.contains("sesame"), "{said}");
    server.command(&["CONFIG", "SET", "requirepass", "open sesame"]);
    let (code, _, said) = beside(&url);
    assert!(code == 78 && said.contains("Authentication required"), "{said}");
    let (code, _, said) = beside(&url.replace("redis://", "redis://:another%20sesame@"));
    assert!(code == 78 && said.contains("authentication failed") && !said.contains("sesame"), "{said}");
    let mut with = site.leasehold();
    with.args(["fence", "status", "report/42", "--key", "report:42"]);
    let output = with.env("LEASEHOLD_DATABASE", &url).env("REDISCLI_AUTH", "open sesame").output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "report/42: no token has been seen", "{}", text(&output.stderr));
}
