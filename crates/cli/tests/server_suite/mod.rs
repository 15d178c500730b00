//! Tests of the program that run on every store that is a server. The test file of a server implements
//! [`Server`], runs this suite with [`run_on!`], and adds tests of its own.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)]

use std::process::{Command, Output, Stdio};

use leasehold::FencingToken;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, Start as _, TestDir, eventually, exit_and_errors, is_alive, pid_in, text_of};

/// A real server with a store.
pub trait Server {
    /// Whether `run --correctness` accepts this store.
    const SUITS_CORRECTNESS: bool;

    fn start() -> Self;
    fn url(&self) -> String;
    /// Stops the server: it does not reply, but its connections stay open.
    fn freeze(&self);
    /// Continues the server after [`Server::freeze`].
    fn thaw(&self);
    /// Kills the server.
    fn kill(&self);
    /// Whether `report/42` is held, by the data on the server itself.
    fn is_held(&self) -> bool;
}

/// A server with a store, and a directory for the files of the test.
pub struct ServerStore<S> {
    pub dir: TestDir,
    pub server: S,
}

impl<S: Server> ServerStore<S> {
    pub fn new() -> ServerStore<S> {
        ServerStore { dir: TestDir::new(), server: S::start() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.dir.leasehold();
        command.args(["--store", &self.server.url()]).args(arguments).stdin(Stdio::null());
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Panics unless the call succeeds without a line on stderr. What it prints on stdout.
    #[track_caller]
    pub fn prints(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(exit_and_errors(&output), (0, vec![]), "{arguments:?}");
        text_of(&output.stdout)
    }

    /// Panics unless the call fails with this code, and one line on stderr that contains this text.
    #[track_caller]
    pub fn refuses(&self, arguments: &[&str], code: i32, word: &str) {
        assert_refused(&mut self.command(arguments), code, word);
    }

    /// The same with another store URL. It is in the environment: in the command line, a password is warned about.
    #[track_caller]
    pub fn refuses_url(&self, url: &str, code: i32, word: &str) {
        let mut command = self.dir.leasehold();
        command.env("LEASEHOLD_STORE", url).args(["run", "-n", "x/1", "--", "echo", "ran"]);
        assert_refused(&mut command, code, word);
    }

    /// `leasehold run OPTIONS… report/42 -- sh -c SCRIPT`
    pub fn script(&self, options: &[&str], script: &str) -> Command {
        self.command(&[&["run"], options, &["report/42", "--", "sh", "-c", script]].concat())
    }

    /// Acquires and releases `report/42`. The token of the grant.
    #[track_caller]
    pub fn token(&self) -> FencingToken {
        let running = self.script(&["-w", "60"], "echo $LEASEHOLD_TOKEN").start();
        let token = token_of(&running);
        assert_eq!(running.code(), 0);
        token
    }

    /// Holds `report/42` until a line is written to the process.
    #[track_caller]
    pub fn hold(&self, options: &[&str]) -> (Running, FencingToken) {
        let mut command = self.script(options, "echo $LEASEHOLD_TOKEN; read line");
        let running = command.stdin(Stdio::piped()).start();
        let token = token_of(&running);
        (running, token)
    }

    fn shown(&self) -> Value {
        serde_json::from_str(&self.prints(&["--json", "show", "report/42"])).unwrap()
    }
}

#[track_caller]
fn assert_refused(command: &mut Command, code: i32, word: &str) {
    let output = command.output().unwrap();
    let (exit, errors) = exit_and_errors(&output);
    assert_eq!((exit, errors.len(), text_of(&output.stdout)), (code, 1, String::new()), "{errors:?}");
    assert!(errors[0].contains(word), "{errors:?}");
}

#[track_caller]
fn token_of(running: &Running) -> FencingToken {
    running.next_line().parse().unwrap()
}

/// A short lease, so that losing it does not take long. On a store with sessions, the session decides how
/// long it takes.
const SHORT: [&str; 2] = ["--ttl", "3s"];
/// A command that ignores TERM and never ends. It writes its pid to a file and prints its token.
const ENDLESS: &str = "trap '' TERM; echo $$ > pid; echo $LEASEHOLD_TOKEN; while :; do sleep 0.05; done";

pub fn a_run_passes_on_resource_token_and_exit_code<S: Server>() {
    let store = ServerStore::<S>::new();
    let output = store.script(&[], "echo $LEASEHOLD_RESOURCE $LEASEHOLD_TOKEN; exit 7").output().unwrap();
    assert_eq!(exit_and_errors(&output), (7, vec![]));
    let first: FencingToken =
        text_of(&output.stdout).trim().strip_prefix("report/42 ").unwrap().parse().unwrap();
    assert!(!store.server.is_held(), "it was released");
    assert!(store.token() > first);
}

pub fn the_next_run_waits_for_the_holder_and_both_are_listed<S: Server>() {
    let store = ServerStore::<S>::new();
    let (mut holder, token) = store.hold(&[]);
    assert!(store.server.is_held());
    let shown = store.shown();
    assert_eq!(shown["holders"][0]["token"], token.to_string(), "{shown}");
    for looking in [&["ls"][..], &["why", "report/42"]] {
        let seen = store.prints(looking);
        assert!(seen.contains("report/42") && seen.contains("sh"), "{looking:?}: {seen}");
    }
    store.refuses(&["run", "-n", "report/42", "--", "true"], 75, "report/42");

    let next = store.script(&["-w", "60"], "echo $LEASEHOLD_TOKEN").start();
    eventually("it waits", || store.shown()["line_length"] == 1);
    holder.write("\n");
    assert_eq!(holder.end(), (0, vec![]));
    assert!(token_of(&next) > token);
    assert_eq!(next.code(), 0);
}

pub fn pause_and_evict_work_and_are_in_the_audit_trail<S: Server>() {
    let store = ServerStore::<S>::new();
    store.prints(&["pause", "report/42", "--for", "1m", "--reason", "a deployment"]);
    store.refuses(&["run", "-n", "report/42", "--", "true"], 75, "a deployment; current holders keep it");
    store.prints(&["resume", "report/42", "--reason", "it is over"]);
    let (holder, token) = store.hold(&["--ttl", "6s"]);
    let token = token.to_string();
    let evict = ["evict", "report/42", "--token", &token, "--even-if-alive", "--reason", "it hangs"];
    let (code, notes) = exit_and_errors(&store.output(&evict));
    assert_eq!((code, notes.len()), (0, 1), "{notes:?}");
    assert!(notes[0].contains("--now --two-may-run --even-if-alive"), "{notes:?}");
    assert_eq!(holder.code(), 79);
    let audit = store.prints(&["audit"]);
    assert!(["a deployment", "it is over", "it hangs"].iter().all(|why| audit.contains(why)), "{audit}");
}

pub fn a_killed_run_takes_its_command_along_and_its_lease_runs_out<S: Server>() {
    let store = ServerStore::<S>::new();
    let running = store.script(&SHORT, ENDLESS).start();
    let (token, pid) = (token_of(&running), pid_in(&store.dir.path("pid")));
    running.signal(Signal::KILL);
    eventually("the command is dead", || !is_alive(pid));
    assert!(store.token() > token);
}

pub fn a_server_that_stops_replying_loses_the_lease_in_time<S: Server>() {
    let store = ServerStore::<S>::new();
    let running = store.script(&SHORT, ENDLESS).start();
    let (token, pid) = (token_of(&running), pid_in(&store.dir.path("pid")));
    store.server.freeze();
    let (code, errors) = running.end();
    assert_eq!(code, 79, "{errors:?}");
    assert!(!is_alive(pid), "{errors:?}");
    store.server.thaw();
    assert!(store.token() > token);
}

pub fn a_server_that_is_gone_is_reported_in_one_line<S: Server>() {
    let store = ServerStore::<S>::new();
    store.server.kill();
    store.refuses(&["run", "-w", "1", "report/42", "--", "true"], 69, "cannot connect");
}

pub fn correctness_is_accepted_only_by_a_store_with_strong_guarantees<S: Server>() {
    let store = ServerStore::<S>::new();
    let words = ["run", "--correctness", "payment/1", "--", "echo", "ran"];
    if S::SUITS_CORRECTNESS {
        assert_eq!(store.prints(&words), "ran\n");
    } else {
        store.refuses(&words, 78, "best-effort");
    }
    assert_eq!(store.prints(&[&["run", "--fenced"], &words[1..]].concat()), "ran\n");
}

/// Runs all tests of this suite on a server.
macro_rules! run_on {
    ($server:ty) => {
        $crate::server_suite::run_on!($server:
            a_run_passes_on_resource_token_and_exit_code
            the_next_run_waits_for_the_holder_and_both_are_listed
            pause_and_evict_work_and_are_in_the_audit_trail
            a_killed_run_takes_its_command_along_and_its_lease_runs_out
            a_server_that_stops_replying_loses_the_lease_in_time
            a_server_that_is_gone_is_reported_in_one_line
            correctness_is_accepted_only_by_a_store_with_strong_guarantees
        );
    };
    ($server:ty: $($test:ident)*) => {
        $(#[test]
        fn $test() {
            $crate::server_suite::$test::<$server>();
        })*
    };
}
pub(crate) use run_on;
