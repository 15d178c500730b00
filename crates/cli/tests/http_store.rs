//! The program on a store that is a real `leasehold serve` process: the suite for all servers, and tests for HTTP alone.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod server_suite;
mod support;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    process::{Child, Stdio},
    sync::Mutex,
};

use leasehold::{Clock as _, SystemClock};
use leasehold_patterns::schedule::{Cron, Schedule, TickOutcome, TickTime};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use server_suite::{Server, ServerStore};
use support::{Start as _, TestDir, eventually, exit_and_errors, text_of};

/// `leasehold serve` on a SQLite file, with tokens.
struct Serve {
    dir: TestDir,
    child: Mutex<Child>,
    address: String,
}

impl Serve {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child.lock().unwrap()), signal).unwrap();
    }

    /// A new token with these roles.
    fn token(&self, name: &str, roles: &[&str]) -> String {
        let mut command = self.dir.leasehold();
        command.args(["token", "--tokens", "t.toml", "new", name]);
        for role in roles {
            command.args(["--role", role]);
        }
        let made = command.output().unwrap();
        assert!(made.status.success(), "{made:?}");
        text_of(&made.stdout).trim().to_owned()
    }

    /// Writes a token to a file that only its user can read. The path.
    fn token_file(&self, name: &str, token: &str) -> String {
        let path = self.dir.path(name);
        fs::write(&path, format!("{token}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Server for Serve {
    const SUITS_CORRECTNESS: bool = true;

    fn start() -> Serve {
        let dir = TestDir::new();
        let made = dir
            .leasehold()
            .args(["token", "--tokens", "t.toml", "new", "all", "--role", "client", "--role", "operator"])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut command = dir.leasehold();
        command.args(["--json", "serve", "--listen", "127.0.0.1:0", "--tokens", "t.toml"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        let address = line["listening"].as_str().unwrap().to_owned();
        let serve = Serve { dir, child: Mutex::new(child), address };
        serve.token_file("token", text_of(&made.stdout).trim());
        serve
    }

    fn url(&self) -> String {
        format!(
            "{}?timeout=1s&connect_timeout=1s&password_file={}",
            self.address,
            self.dir.path("token").display()
        )
    }

    fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn kill(&self) {
        self.signal(Signal::KILL);
        self.child.lock().unwrap().wait().unwrap();
    }

    /// By the file that the server serves.
    fn is_held(&self) -> bool {
        !self.dir.look("report", "42").holders.is_empty()
    }
}

server_suite::run_on!(Serve);

#[test]
fn an_election_has_one_leader_whom_observers_see() {
    let store = ServerStore::<Serve>::new();
    let observer = store.command(&["elect", "--observe", "x/1", "--json"]).start();
    let seen = || serde_json::from_str::<Value>(&observer.next_line()).unwrap()["value"].clone();
    assert_eq!(seen(), Value::Null);
    let script = "trap 'exit 0' TERM; echo leads; while :; do sleep 0.05; done";
    let candidate =
        |name: &str| store.command(&["elect", "x/1", "--value", name, "--", "sh", "-c", script]).start();
    let mut first = candidate("host-a");
    assert_eq!((first.next_line(), seen()), ("leads".to_owned(), Value::from("host-a")));
    let mut second = candidate("host-b");
    eventually("it stands", || store.server.dir.look("x", "1").queue_length == 1);
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0));
    assert_eq!(second.next_line(), "leads");
    eventually("the observer sees it", || seen() == "host-b");
    second.signal(Signal::TERM);
    assert_eq!(second.wait().code(), Some(0));
    observer.signal(Signal::INT);
    assert_eq!(observer.end().0, 130);
}

#[test]
fn of_two_machines_one_runs_the_tick() {
    let store = ServerStore::<Serve>::new();
    record_tick(&store.server.dir, "cleanup", 3);
    let script = "echo $LEASEHOLD_TICK >> ran";
    let machine = || {
        store
            .command(&["cron", "--missed", "latest", EVERY_MINUTE, "cleanup", "--", "sh", "-c", script])
            .start()
    };
    let machines = [machine(), machine()];
    eventually("the tick is done", || {
        store.prints(&["cron", "ls"]).contains("succeeded") && store.dir.path("ran").exists()
    });
    for mut machine in machines {
        machine.signal(Signal::TERM);
        assert_eq!(machine.wait().code(), Some(128 + 15));
    }
    let ran = fs::read_to_string(store.dir.path("ran")).unwrap();
    let ticks: Vec<&str> = ran.lines().collect();
    let mut once = ticks.clone();
    once.dedup();
    assert_eq!(ticks, once, "no tick ran twice");
}

const EVERY_MINUTE: &str = "* * * * *";

/// As if the job had last run this many minutes ago.
fn record_tick(dir: &TestDir, job: &str, minutes: u64) {
    dir.with_client(async |client| {
        let now = SystemClock.wall().as_micros() - minutes * 60_000_000;
        let schedule = Schedule::parse(EVERY_MINUTE).unwrap();
        let tick = schedule.last_until(TickTime::of(leasehold::WallTime::from_micros(now))).unwrap();
        let claimed = Cron::new(&client, job, schedule).claim(tick).await.unwrap();
        claimed.expect("no other process claims it").finish(TickOutcome::Succeeded).await;
        client.shutdown().await;
    });
}

#[test]
fn a_wrong_token_is_a_matter_of_configuration() {
    let store = ServerStore::<Serve>::new();
    let wrong = store.server.token_file("wrong", "lh_7f7f7f7f_0000000000000000000000000000000000000000000");
    for (file, words) in [(Some(wrong.as_str()), "refused the token"), (None, "wants a token")] {
        let mut command = store.dir.leasehold();
        command.args(["--store", &store.server.address]);
        if let Some(file) = file {
            command.args(["--password-file", file]);
        }
        command.args(["run", "-n", "x/1", "--", "echo", "ran"]);
        let output = command.output().unwrap();
        let (code, errors) = exit_and_errors(&output);
        assert_eq!((code, errors.len(), text_of(&output.stdout)), (78, 1, String::new()), "{errors:?}");
        assert!(errors[0].contains(words) && !errors[0].contains("00000000"), "{errors:?}");
    }
}

#[test]
fn a_role_that_lacks_something_is_told_and_the_token_may_be_in_the_environment() {
    let store = ServerStore::<Serve>::new();
    let viewer = store.server.token("looks", &["viewer"]);
    let with_token = |arguments: &[&str]| {
        let mut command = store.dir.leasehold();
        command.args(["--store", &store.server.address]).args(arguments).env("LEASEHOLD_PASSWORD", &viewer);
        let output = command.output().unwrap();
        assert!(!text_of(&output.stderr).contains(&viewer), "the token is in no message");
        output
    };
    eventually("the server reads the new token", || with_token(&["ls"]).status.success());
    let (code, errors) = exit_and_errors(&with_token(&["run", "-n", "x/1", "--", "true"]));
    assert_eq!((code, errors.len()), (78, 1), "{errors:?}");
    assert!(errors[0].contains("client"), "{errors:?}");
}

#[test]
fn a_token_that_is_replaced_in_its_file_is_read_again() {
    let store = ServerStore::<Serve>::new();
    let (old, new) = (store.server.token("old", &["client"]), store.server.token("new", &["client"]));
    eventually("the server reads the new tokens", || {
        let mut looks = store.dir.leasehold();
        looks.args(["--store", &store.server.address, "ls"]).env("LEASEHOLD_PASSWORD", &new);
        looks.output().unwrap().status.success()
    });
    let file = store.server.token_file("rotated", &old);
    let url = format!("{}?password_file={file}", store.server.address);
    let mut command = store.dir.leasehold();
    command.args([
        "--store",
        &url,
        "run",
        "--ttl",
        "3s",
        "report/42",
        "--",
        "sh",
        "-c",
        "echo held; read line",
    ]);
    let mut holder = command.stdin(Stdio::piped()).start();
    assert_eq!(holder.next_line(), "held");
    store.server.token_file("rotated", &new);
    let id = old.split('_').nth(1).unwrap();
    let revoked =
        store.server.dir.leasehold().args(["token", "--tokens", "t.toml", "revoke", id]).output().unwrap();
    assert!(revoked.status.success(), "{revoked:?}");
    // Two renewals and more: without the new token the lease would be lost after three seconds.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(store.server.is_held());
    holder.write("\n");
    assert_eq!(holder.end(), (0, vec![]));
}

#[test]
fn a_url_that_is_no_server_is_reported_in_one_line() {
    let store = ServerStore::<Serve>::new();
    store.refuses_url("http://127.0.0.1:1", 69, "cannot connect to http://127.0.0.1:1: connection refused");
    if cfg!(feature = "http-tls") {
        let https = store.server.address.replace("http://", "https://");
        store.refuses_url(&https, 69, "it does not speak TLS: write http://");
    }
    store.refuses_url("http://user:sesame@127.0.0.1:1", 78, "http://:token@host");
    store.refuses_url("http://127.0.0.1:1/path", 78, "no path");
}
