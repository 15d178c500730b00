//! `leasehold elect` and `leasehold cron` run for ever: a store that cannot be reached does not end them.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::process::{Command, Stdio};

use leasehold_testkit::servers::RedisServer;
use rustix::process::Signal;
use support::{Running, Start as _, TestDir, exit_and_errors};

const EVERY_MINUTE: &str = "* * * * *";

fn leasehold(dir: &TestDir, url: &str, arguments: &[&str]) -> Command {
    let mut command = dir.leasehold();
    command.env("LEASEHOLD_STORE", url).args(arguments).stdin(Stdio::null());
    command
}

/// Reads lines on stderr until one contains this text.
#[track_caller]
fn wait_for_error(running: &Running, wanted: &str) {
    while !running.next_error_line().contains(wanted) {}
}

#[track_caller]
fn stop(mut running: Running) {
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(128 + 15));
}

const AWAY: &str = "trying again until the store redis://127.0.0.1:";
const BACK: &str = "the store can be reached again";

#[test]
fn a_candidate_that_starts_without_its_store_leads_when_the_store_is_there() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    server.kill();
    for options in [&[][..], &["--once"]] {
        let arguments = [&["elect", "x/1"], options, &["--", "sh", "-c", "echo led; exit 7"]].concat();
        let candidate = leasehold(&dir, &server.url(), &arguments).start();
        wait_for_error(&candidate, AWAY);
        server.run_again();
        wait_for_error(&candidate, BACK);
        candidate.wait_for_line("led");
        assert_eq!(candidate.end().0, 7, "the exit code of the command");
        server.kill();
    }
}

#[test]
fn a_leader_whose_store_goes_away_leads_again_when_it_is_back() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    let script = "trap 'exit 0' TERM; echo led; while :; do sleep 0.05; done";
    let mut leader =
        leasehold(&dir, &server.url(), &["elect", "--ttl", "2s", "x/1", "--", "sh", "-c", script]).start();
    leader.wait_for_line("led");
    server.kill();
    wait_for_error(&leader, "leadership lost");
    wait_for_error(&leader, AWAY);
    server.run_again();
    leader.wait_for_line("led");
    leader.signal(Signal::TERM);
    assert_eq!(leader.wait().code(), Some(0), "the exit code of its command");
}

#[test]
fn an_observer_that_starts_without_its_store_goes_on_when_the_store_is_there() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    server.kill();
    let observer = leasehold(&dir, &server.url(), &["elect", "--observe", "x/1"]).start();
    wait_for_error(&observer, AWAY);
    server.run_again();
    wait_for_error(&observer, BACK);
    assert!(observer.next_line().contains("there is no leader"));
    stop(observer);
}

#[test]
fn a_schedule_that_starts_without_its_store_begins_when_the_store_is_there() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    server.kill();
    // `-v`, so that it also prints the schedule, once it begins.
    let arguments = ["-v", "cron", "--missed", "latest", EVERY_MINUTE, "cleanup", "--", "echo", "ran"];
    let mut schedule = leasehold(&dir, &server.url(), &arguments).start();
    wait_for_error(&schedule, AWAY);
    assert!(schedule.is_running());
    server.run_again();
    wait_for_error(&schedule, BACK);
    wait_for_error(&schedule, "cleanup: ");
    stop(schedule);
}

#[test]
fn a_signal_ends_a_program_that_waits_for_its_store() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    server.kill();
    for arguments in [
        &["elect", "x/1", "--", "true"][..],
        &["elect", "--observe", "x/1"],
        &["cron", EVERY_MINUTE, "cleanup", "--", "true"],
    ] {
        let running = leasehold(&dir, &server.url(), arguments).start();
        wait_for_error(&running, AWAY);
        stop(running);
    }
}

/// What a retry does not solve is reported at once, with the exit code of a wrong configuration.
#[test]
fn a_wrong_password_and_a_wrong_url_end_the_program_at_once() {
    let (dir, server) = (TestDir::new(), RedisServer::with(&["--requirepass", "sesame"]));
    let port = server.port();
    let urls =
        [format!("redis://:wrong@127.0.0.1:{port}/"), "nosuch://host".to_owned(), "redis://".to_owned()];
    for url in urls {
        for arguments in [
            &["elect", "x/1", "--", "true"][..],
            &["elect", "--observe", "x/1"],
            &["cron", EVERY_MINUTE, "cleanup", "--", "true"],
        ] {
            let output = leasehold(&dir, &url, arguments).output().unwrap();
            let (code, errors) = exit_and_errors(&output);
            assert_eq!((code, errors.len()), (78, 1), "{url} {arguments:?}: {errors:?}");
            assert!(!errors[0].contains(AWAY) && !errors[0].contains("wrong@"), "{errors:?}");
        }
    }
}

#[test]
fn watch_says_since_when_the_store_does_not_answer_and_not_when_it_gave_up() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    let url = format!("{}?timeout=3s", server.url());
    assert_eq!(leasehold(&dir, &url, &["pause", "x/1", "--for", "1h", "--reason", "test"]).start().code(), 0);
    let watch = leasehold(&dir, &url, &["watch", "--interval", "100ms"]).start();
    watch.next_line();
    server.freeze();
    let frozen = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let line = watch.next_error_line();
    server.thaw();
    let (_, since) = line.split_once("not answering since ").unwrap();
    let since = since.split_once(". ").unwrap().0;
    assert!(since <= &*frozen, "{line}, and it was frozen at {frozen}");
    wait_for_error(&watch, "the store answers again, after ");
}
