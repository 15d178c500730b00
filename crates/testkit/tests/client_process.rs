//! Holders that are real processes, on a backend that processes share: killed, stopped past their ttl, resumed.

use std::{path::Path, time::Duration};

use leasehold_testkit::ClientProcess;

const TTL: Duration = Duration::from_secs(2);

struct Place {
    _folder: tempfile::TempDir,
    url: String,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("sqlite:{}", folder.path().join("leases.db").display());
        Place { _folder: folder, url }
    }

    fn client_process(&self) -> ClientProcess {
        ClientProcess::start(
            Path::new(env!("CARGO_BIN_EXE_leasehold-client-process")),
            &self.url,
            "report/42",
            TTL,
        )
    }
}

#[test]
fn a_killed_holder_is_followed_after_its_ttl_by_a_higher_token() {
    let place = Place::new();
    let first = place.client_process();
    let token = first.granted();
    let second = place.client_process();
    first.kill();
    assert!(second.granted() > token);
}

#[test]
fn a_stopped_holder_is_told_before_any_check_says_ok_and_its_late_release_harms_nobody() {
    let place = Place::new();
    let mut stopped = place.client_process();
    let token = stopped.granted();
    stopped.signal("STOP");
    let mut second = place.client_process();
    assert!(second.granted() > token, "granted while the first is stopped past its ttl");
    stopped.tell("check"); // it reads this when it is continued
    stopped.signal("CONT");
    let words = [stopped.hears(""), stopped.hears("")];
    assert!(words.iter().any(|word| word.starts_with("ended")), "{words:?}");
    assert!(words.contains(&"over".to_owned()), "{words:?}");
    stopped.tell("release");
    assert_eq!(stopped.hears("released"), "AlreadyGone");
    second.tell("check");
    second.hears("ok");
    second.tell("release");
    assert_eq!(second.hears("released"), "Now");
}

#[test]
fn a_holder_that_is_stopped_for_less_than_its_ttl_goes_on() {
    let place = Place::new();
    let mut holder = place.client_process();
    holder.granted();
    holder.signal("STOP");
    assert_eq!(holder.says_within(TTL / 4), None);
    holder.signal("CONT");
    // Long enough that it lives by renewals.
    assert_eq!(holder.says_within(TTL * 2), None, "nothing to tell");
    holder.tell("check");
    holder.hears("ok");
    holder.tell("release");
    assert_eq!(holder.hears("released"), "Now");
}

#[test]
fn a_release_lets_a_waiting_process_in_at_once() {
    let place = Place::new();
    let mut first = place.client_process();
    first.granted();
    let second = place.client_process();
    assert_eq!(second.says_within(Duration::from_millis(200)), None);
    first.tell("release");
    assert_eq!(first.hears("released"), "Now");
    second.granted();
}
