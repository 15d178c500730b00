//! `-v` logs what happens to leases, `-vv` every request, and neither is needed for warnings.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use support::{TestDir, exit_and_errors};

fn logged(dir: &TestDir, options: &[&str]) -> Vec<String> {
    let mut command = dir.leasehold();
    let output = command.args(options).args(["run", "--ttl", "1s", "x/1", "--", "sleep", "0.7"]).output();
    let (code, lines) = exit_and_errors(&output.unwrap());
    assert_eq!(code, 0, "{lines:?}");
    lines
}

#[test]
fn verbose_shows_grants_and_renewals_and_twice_shows_requests() {
    let dir = TestDir::new();
    let has = |lines: &[String], word: &str| lines.iter().any(|line| line.contains(word));
    let once = logged(&dir, &["-v"]);
    for event in ["event=\"acquired\"", "event=\"renewed\"", "event=\"released\""] {
        assert!(has(&once, event), "{event}: {once:?}");
    }
    assert!(!has(&once, "leasehold.acquire"), "{once:?}");
    let twice = logged(&dir, &["-vv"]);
    for request in ["leasehold.acquire{", "leasehold.renew{", "leasehold.release{", "event=\"acquired\""] {
        assert!(has(&twice, request), "{request}: {twice:?}");
    }
    let json = logged(&dir, &["-v", "--log-format", "json"]);
    for line in &json {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(object["event"].is_string(), "{line}");
    }
    assert_eq!(logged(&dir, &["--log-format", "text"]), Vec::<String>::new());
    assert_eq!(logged(&dir, &[]), Vec::<String>::new());
}
