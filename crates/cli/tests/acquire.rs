//! `leasehold acquire`, `renew` and `release`, on SQLite, and on Redis. `tests/zookeeper.rs` has what is different there.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use leasehold::{Eviction, OperatorAction};
use leasehold_testkit::servers::RedisServer;
use rustix::process::Signal;
use serde_json::Value;
use support::{
    Running, Start as _, TestDir, children, eventually, exit_and_errors, is_alive, pid_in, send, text,
};

/// `leasehold WORDS…`
fn leasehold(dir: &TestDir, words: &[&str]) -> Command {
    let mut command = dir.leasehold();
    command.args(words).stdin(Stdio::null());
    command
}

#[track_caller]
fn output(dir: &TestDir, words: &[&str]) -> Output {
    leasehold(dir, words).output().unwrap()
}

/// Panics unless the call succeeds. What it prints on stdout.
#[track_caller]
fn prints(dir: &TestDir, words: &[&str]) -> String {
    let output = output(dir, words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
    text(&output)
}

/// Panics unless the call fails with this code, prints nothing on stdout, and one line on stderr with this text.
#[track_caller]
fn refuses(command: &mut Command, code: i32, part: &str) {
    let output = command.output().unwrap();
    let (exit, errors) = exit_and_errors(&output);
    assert_eq!((exit, errors.len(), text(&output).as_str()), (code, 1, ""), "{errors:?}");
    assert!(errors[0].contains(part), "{errors:?}");
}

/// The value of a variable in a lease file.
#[track_caller]
fn in_file(path: &Path, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("LEASEHOLD_{name}=")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim_matches('\'').to_owned()
}

fn is_held(dir: &TestDir) -> bool {
    dir.look("x", "1").holder_count == 1
}

/// A process that a lease can be kept for: it prints a line for each TERM, and lives on.
fn kept_process(dir: &TestDir) -> Running {
    let script = "trap 'echo TERM' TERM; echo ready; while :; do sleep 0.05; done";
    let running = dir.command("sh").args(["-c", script]).stdin(Stdio::null()).start();
    running.wait_for_line("ready");
    running
}

#[test]
fn the_owner_token_is_printed_and_renews_and_releases() {
    let dir = TestDir::new();
    let acquired = output(&dir, &["acquire", "--ttl", "1m", "x/1"]);
    let (owner, (code, notes)) = (text(&acquired), exit_and_errors(&acquired));
    assert_eq!((code, owner.len(), notes.len()), (0, 33, 1), "{notes:?}");
    assert!(notes[0].contains("nobody renews it") && notes[0].contains("leasehold renew x/1"), "{notes:?}");
    assert!(!notes[0].contains(owner.trim()), "the note does not show the secret");
    refuses(&mut leasehold(&dir, &["acquire", "-n", "x/1"]), 75, "held by 0@");
    refuses(&mut leasehold(&dir, &["acquire", "-n", "-E", "5", "x/1"]), 5, "Use -w to wait");
    let renew = leasehold(&dir, &["renew", "x/1"]).env("LEASEHOLD_OWNER", owner.trim()).output().unwrap();
    assert_eq!((exit_and_errors(&renew), text(&renew).as_str()), ((0, vec![]), ""));
    let script = format!("echo {} | \"$L\" release x/1 --owner -", owner.trim());
    assert_eq!(exit_and_errors(&dir.shell(&script).output().unwrap()), (0, vec![]));
    assert!(!is_held(&dir));
    let again = &mut leasehold(&dir, &["release", "x/1", "--owner", owner.trim()]);
    refuses(again, 79, "there was no lease to release");
    refuses(leasehold(&dir, &["renew", "x/1"]).env("LEASEHOLD_OWNER", owner.trim()), 79, "the lease is lost");
    assert_eq!(exit_and_errors(&output_quiet(&dir)), (0, vec![]), "-q prints no note");
}

fn output_quiet(dir: &TestDir) -> Output {
    output(dir, &["-q", "acquire", "x/1"])
}

#[test]
fn a_holder_without_a_process_is_not_taken_for_dead() {
    let dir = TestDir::new();
    prints(&dir, &["acquire", "x/1"]);
    let shown: Value = serde_json::from_str(&prints(&dir, &["--json", "show", "x/1"])).unwrap();
    assert_eq!(shown["holders"][0]["pid"], 0, "{shown}");
    assert_eq!(output(&dir, &["leaks"]).status.code(), Some(0));
}

#[test]
fn a_wrong_owner_and_wrong_words_are_refused() {
    let dir = TestDir::new();
    prints(&dir, &["acquire", "x/1"]);
    let other = "0".repeat(32);
    refuses(
        &mut leasehold(&dir, &["renew", "x/1", "--owner", &other]),
        79,
        "owner token is not that of the holder",
    );
    refuses(
        &mut leasehold(&dir, &["release", "x/1", "--owner", &other]),
        79,
        "owner token is not that of the holder",
    );
    assert!(is_held(&dir));
    refuses(&mut leasehold(&dir, &["renew", "x/1"]), 64, "the owner token of the lease is missing");
    refuses(
        &mut leasehold(&dir, &["release", "x/1", "--owner", "abc"]),
        64,
        "--owner: an owner token has 32",
    );
    refuses(&mut leasehold(&dir, &["renew"]), 64, "required");
    refuses(
        &mut leasehold(&dir, &["renew", "x/1", "--owner", &other, "--ttl", "1ms"]),
        64,
        "--ttl must be 1s to 24h",
    );
    refuses(&mut leasehold(&dir, &["acquire", "--on-loss", "none", "x/1"]), 64, "--keep");
    refuses(
        &mut leasehold(&dir, &["--json", "acquire", "--export", "y/1"]),
        64,
        "two forms of the same output",
    );
}

#[test]
fn a_lease_lasts_as_long_as_it_was_acquired_or_renewed_for() {
    let dir = TestDir::new();
    let owner = prints(&dir, &["acquire", "--ttl", "20s", "x/1"]);
    let left = || dir.look("x", "1").holders[0].remaining;
    let renew = |words: &[&str]| {
        let mut command = leasehold(&dir, &[&["--json", "renew", "x/1"], words].concat());
        let renewed = command.env("LEASEHOLD_OWNER", owner.trim()).output().unwrap();
        serde_json::from_str::<Value>(&text(&renewed)).unwrap()
    };
    assert_eq!(renew(&[])["ttl_ms"], 20_000, "the store knows the ttl");
    assert_eq!(renew(&["--ttl", "1h"])["ttl_ms"], 3_600_000);
    assert!(left() > Duration::from_secs(3000));
    dir.order(OperatorAction::Ask { within: Duration::from_secs(30) });
    assert_eq!(renew(&[])["asked"]["why"], "to see what happens");
    let plain = leasehold(&dir, &["renew", "x/1"]).env("LEASEHOLD_OWNER", owner.trim()).output().unwrap();
    let (code, notes) = exit_and_errors(&plain);
    assert!(code == 0 && notes[0].contains("a test asks to finish within "), "{notes:?}");
    dir.evict(Eviction::AtExpiry);
    let evicted = &mut leasehold(&dir, &["renew", "x/1"]);
    refuses(evicted.env("LEASEHOLD_OWNER", owner.trim()), 79, "an operator evicted it");
}

#[test]
fn an_expired_lease_is_lost_and_another_is_granted() {
    let dir = TestDir::new();
    let file = dir.path("lease");
    prints(&dir, &["acquire", "--ttl", "1s", "-o", "lease", "x/1"]);
    prints(&dir, &["acquire", "-w", "30", "-o", "other", "x/1"]);
    refuses(&mut leasehold(&dir, &["renew", "-f", "lease"]), 79, "the lease is lost");
    assert_eq!(in_file(&file, "STATE"), "lost");
    refuses(&mut leasehold(&dir, &["release", "-f", "lease"]), 79, "there was no lease to release");
    assert!(is_held(&dir), "the other one still holds it");
    assert_eq!(prints(&dir, &["release", "-f", "other"]), "");
    // Its lease has ended, so the file may be used again.
    prints(&dir, &["acquire", "-o", "lease", "x/1"]);
    assert_eq!(in_file(&file, "STATE"), "held");
}

#[test]
fn a_lease_file_has_all_that_a_script_needs() {
    let dir = TestDir::new();
    assert_eq!(prints(&dir, &["acquire", "--ttl", "1m", "-o", "lease", "x/it's $1"]), "");
    let file = dir.path("lease");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    let script =
        ". ./lease; echo \"$LEASEHOLD_RESOURCE|$LEASEHOLD_STATE|$LEASEHOLD_PASS\"; echo $LEASEHOLD_TOKEN";
    let read = text(&dir.shell(script).output().unwrap());
    let lines: Vec<&str> = read.lines().collect();
    assert!(lines[0].starts_with("x/it's $1|held|") && lines[0].contains(lines[1]), "{lines:?}");
    let deadline = in_file(&file, "DEADLINE");
    assert_eq!(prints(&dir, &["renew", "--ttl", "5m", "-f", "lease"]), "");
    assert!(in_file(&file, "DEADLINE") > deadline);
    let owner = in_file(&file, "OWNER");
    // From another directory, and without the variable of the default store: the file names its store.
    let mut release = leasehold(&dir, &["--json", "release", "-f"]);
    let released = release.arg(&file).current_dir("/").env_remove("LEASEHOLD_DIR").output().unwrap();
    assert_eq!(text(&released), "{\"released\":true,\"resource\":\"x/it's $1\"}\n");
    assert!(!fs::read_to_string(&file).unwrap().contains(&owner), "no secret is left");
    let again = output(&dir, &["release", "-f", "lease"]);
    assert_eq!(exit_and_errors(&again).0, 0, "to release a file twice is no error");
    refuses(&mut leasehold(&dir, &["renew", "-f", "lease"]), 79, "was released");
}

#[test]
fn a_file_of_someone_else_is_never_touched() {
    let dir = TestDir::new();
    let acquire = |file: &str| leasehold(&dir, &["acquire", "-n", "-o", file, "x/1"]);
    fs::write(dir.path("mine"), "precious\n").unwrap();
    refuses(&mut acquire("mine"), 78, "not a lease file of leasehold");
    assert_eq!(fs::read_to_string(dir.path("mine")).unwrap(), "precious\n");
    symlink("target", dir.path("link")).unwrap();
    refuses(&mut acquire("link"), 78, "a symbolic link");
    assert!(!dir.path("target").exists());
    refuses(&mut acquire("/"), 78, "not a file");
    refuses(&mut acquire("nowhere/lease"), 78, "cannot be written");
    refuses(&mut acquire("/proc/lease"), 78, "cannot be written");
    refuses(&mut leasehold(&dir, &["release", "-f", "mine"]), 78, "not a lease file of leasehold");
    refuses(&mut leasehold(&dir, &["renew", "-f", "nothing"]), 78, "there is no lease file");
    assert!(!dir.database().exists() || !is_held(&dir), "nothing was acquired");
    prints(&dir, &["acquire", "-o", "lease", "x/1"]);
    fs::set_permissions(dir.path("lease"), fs::Permissions::from_mode(0o644)).unwrap();
    refuses(&mut leasehold(&dir, &["release", "-f", "lease"]), 78, "can be read by other users");
    fs::set_permissions(dir.path("lease"), fs::Permissions::from_mode(0o600)).unwrap();
    refuses(&mut leasehold(&dir, &["acquire", "-o", "lease", "y/1"]), 78, "that lasts until");
    refuses(&mut acquire("lease"), 75, "held by");
    let names = fs::read_dir(dir.directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn export_and_json_describe_the_lease() {
    let dir = TestDir::new();
    let script = "eval \"$(\"$L\" -q acquire --export \"x/it's 1\")\"; echo \"$LEASEHOLD_RESOURCE|$LEASEHOLD_PASS\"; \
                  echo \"$LEASEHOLD_TOKEN\"; env | grep -c ^LEASEHOLD_; \"$L\" run -n \"x/it's 1\" -- echo inner; \
                  \"$L\" acquire \"x/it's 1\"; echo $?; \"$L\" release \"x/it's 1\"; echo $?; \"$L\" run -n \"x/it's 1\" -- echo after";
    let output = dir.shell(script).output().unwrap();
    let lines: Vec<String> = text(&output).lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("x/it's 1|") && lines[0].ends_with("x/it's 1"), "{lines:?}");
    assert!(lines[0].contains(&format!("|{} ", lines[1])), "{lines:?}");
    assert_eq!(lines[2..], ["10", "inner", "64", "0", "after"], "{output:?}");
    let object: Value =
        serde_json::from_str(&prints(&dir, &["--json", "acquire", "--ttl", "1m", "x/1"])).unwrap();
    assert_eq!(
        (&object["resource"], &object["ttl_ms"], &object["keeper"]),
        (&"x/1".into(), &60_000.into(), &Value::Null)
    );
    assert!(object["pass"].as_str().unwrap().starts_with(object["token"].as_str().unwrap()));
    assert_eq!(object["owner"].as_str().unwrap().len(), 32);
    let busy = exit_and_errors(&self::output(&dir, &["--json", "acquire", "-n", "x/1"]));
    assert!(busy.0 == 75 && busy.1[0].contains("\"kind\":\"contended\""), "{busy:?}");
}

#[test]
fn readers_and_permits_share_a_resource() {
    let dir = TestDir::new();
    prints(&dir, &["acquire", "-s", "-o", "one", "x/1"]);
    prints(&dir, &["acquire", "-s", "-o", "two", "x/1"]);
    assert_eq!(in_file(&dir.path("one"), "TOKEN"), "", "tokens of readers fence nothing");
    refuses(&mut leasehold(&dir, &["acquire", "-n", "x/1"]), 75, "and 1 more");
    prints(&dir, &["renew", "-f", "one"]);
    prints(&dir, &["release", "-f", "one"]);
    prints(&dir, &["release", "-f", "two"]);
    prints(&dir, &["acquire", "--permits", "2/3", "y/1"]);
    refuses(&mut leasehold(&dir, &["acquire", "-n", "--permits", "2/3", "y/1"]), 75, "held by");
    prints(&dir, &["acquire", "-n", "--permits", "1/3", "y/1"]);
}

#[test]
fn several_shells_hold_it_one_after_another() {
    let dir = TestDir::new();
    let script = "eval \"$(\"$L\" acquire -w 60 --ttl 10s --keep $$ --export x/1 || echo exit $?)\"; \
                  [ ! -e busy ] && : > busy && sleep 0.05 && rm busy && \"$L\" release x/1 && echo \"$LEASEHOLD_TOKEN\"";
    let shells: Vec<Running> = (0..6).map(|_| dir.shell(script).start()).collect();
    let mut tokens: Vec<u64> = Vec::new();
    for shell in shells {
        tokens.push(shell.next_line().parse().unwrap());
        assert_eq!(shell.code(), 0);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 6, "each has a token of its own");
}

#[test]
fn a_waiting_claim_is_withdrawn_when_it_is_interrupted() {
    let dir = TestDir::new();
    prints(&dir, &["acquire", "x/1"]);
    let mut keeping = kept_process(&dir);
    let pid = keeping.pid().to_string();
    for words in [vec!["acquire", "x/1"], vec!["acquire", "--keep", &pid, "x/1"]] {
        let waiting = leasehold(&dir, &words).start();
        dir.until_waiting(1);
        waiting.signal(Signal::TERM);
        assert!([143, -15].contains(&waiting.code()));
        eventually("it has left the queue", || dir.look("x", "1").queue_length == 0);
    }
    assert!(keeping.is_running());
}

// --keep

#[test]
fn a_shell_gets_its_lease_at_once_and_keeps_it_until_it_ends() {
    let dir = TestDir::new();
    // `$(…)` ends only when nobody holds its pipe any more. A file that the shell has open is not held, either.
    let script = "mkfifo pipe; exec 7<> pipe; lease=$(\"$L\" acquire --ttl 2s --keep $$ x/1); echo ${#lease}; read line";
    let mut shell = dir.shell(script).stdin(Stdio::piped()).start();
    assert_eq!(shell.next_line(), "32");
    let shown: Value = serde_json::from_str(&prints(&dir, &["--json", "show", "x/1"])).unwrap();
    assert_eq!(shown["holders"][0]["pid"], shell.pid(), "the shell is the holder: {shown}");
    let renewed_until = |dir: &TestDir| dir.look("x", "1").holders[0].held_for > Duration::from_secs(3);
    eventually("it lasts longer than its ttl", || is_held(&dir) && renewed_until(&dir));
    let keeper = keeper_of(&shell);
    let files: Vec<_> = fs::read_dir(format!("/proc/{keeper}/fd"))
        .unwrap()
        .filter_map(|file| fs::read_link(file.unwrap().path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    assert!(!files.iter().any(|file| file.contains("pipe")), "{files:?}");
    assert_eq!(fs::read_link(format!("/proc/{keeper}/cwd")).unwrap(), Path::new("/"));
    let started = Instant::now();
    shell.write("\n");
    assert_eq!(shell.code(), 0);
    eventually("the keeper has released it", || !is_held(&dir));
    assert!(started.elapsed() < Duration::from_secs(20));
    eventually("the keeper has ended", || !is_alive(keeper));
}

/// The keeper that this process has started: it has no parent of ours any more, so it is found by its command line.
#[track_caller]
fn keeper_of(kept: &Running) -> i32 {
    let wanted = format!("{} started at ", kept.pid());
    let is_keeper = |pid: i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        words.nth(1).is_some_and(|word| word == "__keep")
            && words.next().is_some_and(|word| word.starts_with(&wanted))
    };
    let pids = || {
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
    };
    let mut found = None;
    eventually("there is a keeper", || {
        found = pids().find(|pid| is_keeper(*pid));
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_killed_process_frees_its_lease_within_seconds() {
    let dir = TestDir::new();
    let kept = kept_process(&dir);
    let pid = kept.pid().to_string();
    prints(&dir, &["acquire", "--ttl", "1h", "--keep", &pid, "-o", "lease", "x/1"]);
    assert!(is_held(&dir));
    let started = Instant::now();
    kept.signal(Signal::KILL);
    prints(&dir, &["acquire", "-w", "50", "x/1"]);
    assert!(started.elapsed() < Duration::from_secs(40), "far less than its ttl");
    assert_eq!(in_file(&dir.path("lease"), "STATE"), "released");
}

#[test]
fn a_process_that_has_ended_is_not_kept_for() {
    let dir = TestDir::new();
    let mut ended = dir.command("true").start();
    let pid = ended.pid().to_string();
    ended.wait();
    refuses(&mut leasehold(&dir, &["acquire", "--keep", &pid, "x/1"]), 64, "there is no process");
    refuses(&mut leasehold(&dir, &["acquire", "--keep", "0", "x/1"]), 64, "--keep");
    // The keeper of a process whose id another process has now.
    let kept = kept_process(&dir);
    let words = [
        "__keep",
        &format!("{} started at 1", kept.pid()),
        "acquire",
        "--keep",
        &kept.pid().to_string(),
        "x/1",
    ];
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let keeper =
        leasehold(&dir, &words).stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).output().unwrap();
    assert_eq!(exit_and_errors(&keeper).0, 64, "{keeper:?}");
    drop(ours);
    assert!(!dir.database().exists() || !is_held(&dir));
}

#[test]
fn release_ends_the_keeper_and_does_not_signal_the_process() {
    let dir = TestDir::new();
    let kept = kept_process(&dir);
    let pid = kept.pid().to_string();
    let owner = prints(&dir, &["acquire", "--keep", &pid, "x/1"]);
    let keeper = keeper_of(&kept);
    assert_eq!(prints(&dir, &["release", "x/1", "--owner", owner.trim()]), "");
    assert!(!is_held(&dir));
    eventually("the keeper has ended", || !is_alive(keeper));
    prints(&dir, &["acquire", "--keep", &pid, "-o", "lease", "x/1"]);
    prints(&dir, &["renew", "-f", "lease"]);
    prints(&dir, &["release", "-f", "lease"]);
    assert_eq!(in_file(&dir.path("lease"), "STATE"), "released");
    prints(&dir, &["release", "-f", "lease"]);
    // No TERM was sent: the next line is that of our own.
    kept.signal(Signal::TERM);
    assert_eq!(kept.next_line(), "TERM");
}

#[test]
fn a_loss_signals_the_process_before_another_claim_is_granted() {
    let dir = TestDir::new();
    let kept = kept_process(&dir);
    let pid = kept.pid().to_string();
    prints(&dir, &["acquire", "--ttl", "6s", "--keep", &pid, "-o", "lease", "x/1"]);
    let waiting = leasehold(&dir, &["acquire", "-w", "60", "x/1"]).start();
    dir.until_waiting(1);
    dir.evict(Eviction::AtExpiry);
    assert_eq!(kept.next_line(), "TERM");
    let mut waiting = waiting;
    assert!(waiting.is_running() && is_held(&dir), "the process was told before");
    eventually("the file says so", || in_file(&dir.path("lease"), "STATE") == "lost");
    assert_eq!(waiting.wait().code(), Some(0), "and then another is granted");
    refuses(&mut leasehold(&dir, &["release", "-f", "lease"]), 79, "there was no lease to release");
}

#[test]
fn the_signals_of_loss_and_ask_can_be_chosen() {
    let dir = TestDir::new();
    let script = "trap 'echo USR1' USR1; trap 'echo USR2' USR2; trap 'echo TERM' TERM; echo ready; while :; do sleep 0.05; done";
    let kept = dir.command("sh").args(["-c", script]).stdin(Stdio::null()).start();
    kept.wait_for_line("ready");
    let pid = kept.pid().to_string();
    let words = ["acquire", "--ttl", "2s", "--keep", &pid, "--on-loss", "usr1", "--on-ask", "USR2", "x/1"];
    prints(&dir, &words);
    dir.order(OperatorAction::Ask { within: Duration::from_secs(9) });
    assert_eq!(kept.next_line(), "USR2");
    dir.evict(Eviction::Now);
    assert_eq!(kept.next_line(), "USR1");
    prints(
        &dir,
        &["acquire", "-w", "30", "--ttl", "2s", "--keep", &pid, "--on-loss", "none", "-o", "lease", "x/1"],
    );
    dir.evict(Eviction::Now);
    eventually("it is lost", || in_file(&dir.path("lease"), "STATE") == "lost");
    kept.signal(Signal::TERM);
    assert_eq!(kept.next_line(), "TERM", "nothing was sent before");
}

#[test]
fn a_keeper_that_is_told_to_end_tells_its_process() {
    let dir = TestDir::new();
    let kept = kept_process(&dir);
    prints(&dir, &["acquire", "--ttl", "2s", "--keep", &kept.pid().to_string(), "x/1"]);
    let keeper = keeper_of(&kept);
    send(keeper, Signal::TERM);
    assert_eq!(kept.next_line(), "TERM");
    eventually("it is free", || !is_held(&dir));
    eventually("the keeper has ended", || !is_alive(keeper));
}

/// At a shutdown everything gets TERM. The lease was free at once, and the process still worked.
#[test]
fn a_keeper_that_is_told_to_end_leaves_the_lease_to_a_process_that_works_on() {
    let dir = TestDir::new();
    let kept = kept_process(&dir);
    let pid = kept.pid().to_string();
    prints(&dir, &["acquire", "--ttl", "1h", "--keep", &pid, "--on-loss", "none", "x/1"]);
    let keeper = keeper_of(&kept);
    send(keeper, Signal::TERM);
    eventually("the keeper has ended", || !is_alive(keeper));
    assert!(is_held(&dir), "it runs out with its ttl");
}

#[test]
fn a_lease_that_nobody_could_read_is_released() {
    let dir = TestDir::new();
    let kept = kept_process(&dir);
    let pid = kept.pid().to_string();
    for words in
        [vec!["acquire", "--ttl", "1h", "x/1"], vec!["acquire", "--ttl", "1h", "--keep", &pid, "x/1"]]
    {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = leasehold(&dir, &words).stdout(full).output().unwrap();
        assert_eq!(exit_and_errors(&ended).0, 70, "{ended:?}");
        eventually("it is free", || !is_held(&dir));
    }
}

#[test]
fn busy_and_errors_of_the_keeper_are_those_of_the_command() {
    let dir = TestDir::new();
    let kept = kept_process(&dir);
    let pid = kept.pid().to_string();
    prints(&dir, &["acquire", "x/1"]);
    refuses(&mut leasehold(&dir, &["acquire", "-n", "--keep", &pid, "x/1"]), 75, "Use -w to wait");
    refuses(&mut leasehold(&dir, &["acquire", "-n", "-E", "3", "--keep", &pid, "x/1"]), 3, "held by");
    fs::write(dir.path("mine"), "precious\n").unwrap();
    refuses(&mut leasehold(&dir, &["acquire", "--keep", &pid, "-o", "mine", "y/1"]), 78, "not a lease file");
    refuses(&mut leasehold(&dir, &["acquire", "--keep", &pid, "--ttl", "1ms", "y/1"]), 64, "--ttl must be");
}

#[test]
fn acquire_inside_a_run_of_the_same_resource_is_refused_and_of_another_is_kept() {
    let dir = TestDir::new();
    let script = "\"$L\" acquire -w 60 x/1; echo $? > code; \"$L\" acquire --keep $$ y/1 > /dev/null; \"$L\" run -n y/1 true; echo $?";
    let output = dir.script(&[], script).env("L", env!("CARGO_BIN_EXE_leasehold")).output().unwrap();
    assert_eq!(text(&output), "75\n");
    assert_eq!(pid_in(&dir.path("code")), 64);
    assert!(text_of_errors(&output).contains("this shell holds it already"));
    eventually("the kept lease is free", || dir.look("y", "1").holder_count == 0);
}

fn text_of_errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn on_redis_a_lease_is_acquired_kept_renewed_and_released_without_showing_the_password() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    server.command(&["CONFIG", "SET", "requirepass", "sesame-7"]);
    let url = server.url().replace("redis://", "redis://:sesame-7@");
    let kept = kept_process(&dir);
    let pid = kept.pid().to_string();
    let with_url = |words: &[&str]| {
        let mut command = leasehold(&dir, words);
        command.env("LEASEHOLD_STORE", &url);
        command
    };
    let run = |words: &[&str]| {
        let output = with_url(words).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        text(&output)
    };
    run(&["acquire", "--keep", &pid, "-o", "lease", "x/1"]);
    let keeper = keeper_of(&kept);
    let words = fs::read_to_string(format!("/proc/{keeper}/cmdline")).unwrap();
    assert!(!words.contains("sesame"), "{words}");
    assert!(!fs::read_to_string(dir.path("lease")).unwrap().contains("sesame"));
    refuses(&mut with_url(&["acquire", "-n", "x/1"]), 75, "held by");
    run(&["renew", "-f", "lease"]);
    run(&["release", "-f", "lease"]);
    let owner = run(&["-q", "acquire", "--ttl", "1m", "x/1"]);
    for command in ["renew", "release"] {
        let done = with_url(&[command, "x/1"]).env("LEASEHOLD_OWNER", owner.trim()).output().unwrap();
        assert_eq!(exit_and_errors(&done), (0, vec![]), "{command}");
    }
    // Typed in the command line, the password reaches the keeper in its environment.
    let typed = leasehold(&dir, &["--store", &url, "-q", "acquire", "--keep", &pid, "x/1"]).output().unwrap();
    assert_eq!(typed.status.code(), Some(0), "{typed:?}");
    let words = fs::read_to_string(format!("/proc/{}/cmdline", keeper_of(&kept))).unwrap();
    assert!(!words.contains("sesame"), "{words}");
    kept.signal(Signal::KILL);
    let free = || with_url(&["-q", "acquire", "-n", "--ttl", "1s", "x/1"]).output().unwrap().status.success();
    eventually("it is free", free);
}

#[test]
fn nothing_of_a_keeper_is_left_with_the_shell() {
    let dir = TestDir::new();
    let kept = kept_process(&dir);
    prints(&dir, &["acquire", "--keep", &kept.pid().to_string(), "x/1"]);
    let keeper = keeper_of(&kept);
    let stat = fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap();
    let session: i32 = stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(3).unwrap().parse().unwrap();
    assert_eq!(session, keeper, "it leads a session of its own");
    assert!(children(keeper).is_empty());
    for fd in 0..=2 {
        assert_eq!(fs::read_link(format!("/proc/{keeper}/fd/{fd}")).unwrap(), Path::new("/dev/null"));
    }
}
