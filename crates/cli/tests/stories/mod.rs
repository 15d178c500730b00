//! What the program does on any store that is a server. A test program says which server it is, and adds what only
//! that one has.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)]

use std::process::{Command, Output, Stdio};

use leasehold::FencingToken;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, Site, Start as _, ended, eventually, is_alive, pid_in, said};

/// A server that leases are kept on.
pub trait Server {
    /// Whether it is trusted with work that must be right.
    const STRONG: bool;

    fn start() -> Self;
    fn url(&self) -> String;
    /// It is there, and does not answer.
    fn freeze(&self);
    fn thaw(&self);
    /// It is gone for good.
    fn kill(&self);
    /// Whether there is anyone at `report/42`, by what the server itself has stored.
    fn is_taken(&self) -> bool;
}

/// A directory, and a server that leases are kept on instead of in it.
pub struct Store<S> {
    pub site: Site,
    pub server: S,
}

impl<S: Server> Store<S> {
    pub fn new() -> Store<S> {
        Store { site: Site::new(), server: S::start() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.site.leasehold();
        command.args(["--store", &self.server.url()]).args(arguments).stdin(Stdio::null());
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// It succeeds, and this is what it prints.
    #[track_caller]
    pub fn prints(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(ended(&output), (0, vec![]), "{arguments:?}");
        said(&output.stdout)
    }

    /// It fails with this code, and one line that has this word in it.
    #[track_caller]
    pub fn refuses(&self, arguments: &[&str], code: i32, word: &str) {
        is_refused(&mut self.command(arguments), code, word);
    }

    /// Of another URL than its own, the same.
    #[track_caller]
    pub fn refuses_url(&self, url: &str, code: i32, word: &str) {
        let mut command = self.site.leasehold();
        is_refused(command.args(["--store", url, "run", "x/1", "--", "echo", "ran"]), code, word);
    }

    /// Runs this script under `report/42`, with these options of `run` before.
    pub fn script(&self, options: &[&str], script: &str) -> Command {
        self.command(&[&["run"], options, &["report/42", "--", "sh", "-c", script]].concat())
    }

    /// Takes `report/42` and gives it back; the token that it had.
    #[track_caller]
    pub fn token(&self) -> FencingToken {
        let running = self.script(&["-w", "60"], "echo $LEASEHOLD_TOKEN").start();
        let token = token_of(&running);
        assert_eq!(running.end(), (0, vec![]));
        token
    }

    /// Takes `report/42` and keeps it until a line is written to it.
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
fn is_refused(command: &mut Command, code: i32, word: &str) {
    let output = command.output().unwrap();
    let (ended, errors) = ended(&output);
    assert_eq!((ended, errors.len(), said(&output.stdout)), (code, 1, String::new()), "{errors:?}");
    assert!(errors[0].contains(word), "{errors:?}");
}

#[track_caller]
fn token_of(running: &Running) -> FencingToken {
    running.line().parse().unwrap()
}

/// A lease that ends soon. Where a session keeps it, it ends when the session allows.
const SHORT: [&str; 2] = ["--ttl", "3s"];
/// A command that does not end by itself, and says so when it has begun.
const ENDLESS: &str = "trap '' TERM; echo $$ > pid; echo $LEASEHOLD_TOKEN; while :; do sleep 0.05; done";

pub fn a_run_passes_on_what_it_holds_and_how_it_ended<S: Server>() {
    let store = Store::<S>::new();
    let output = store.script(&[], "echo $LEASEHOLD_RESOURCE $LEASEHOLD_TOKEN; exit 7").output().unwrap();
    assert_eq!(ended(&output), (7, vec![]));
    let first: FencingToken =
        said(&output.stdout).trim().strip_prefix("report/42 ").unwrap().parse().unwrap();
    assert!(!store.server.is_taken(), "given back");
    assert!(store.token() > first);
}

pub fn one_holds_the_next_waits_its_turn_and_everyone_can_see_who<S: Server>() {
    let store = Store::<S>::new();
    let (mut holder, token) = store.hold(&[]);
    assert!(store.server.is_taken());
    let shown = store.shown();
    assert_eq!(shown["holders"][0]["token"], token.to_string(), "{shown}");
    for looking in [&["ls"][..], &["why", "report/42"]] {
        let seen = store.prints(looking);
        assert!(seen.contains("report/42") && seen.contains("sh"), "{looking:?}: {seen}");
    }
    store.refuses(&["run", "-n", "report/42", "--", "true"], 75, "report/42");

    let next = store.script(&["-w", "60"], "echo $LEASEHOLD_TOKEN").start();
    eventually("it waits", || store.shown()["queue_length"] == 1);
    holder.write("\n");
    assert_eq!(holder.end(), (0, vec![]));
    assert!(token_of(&next) > token);
    assert_eq!(next.end(), (0, vec![]));
}

pub fn operators_pause_and_evict_and_what_they_did_is_kept<S: Server>() {
    let store = Store::<S>::new();
    store.prints(&["pause", "report/42", "--for", "1m", "--reason", "a deployment"]);
    store.refuses(&["run", "-n", "report/42", "--", "true"], 75, "paused");
    store.prints(&["resume", "report/42", "--reason", "it is over"]);
    let (holder, token) = store.hold(&["--ttl", "6s"]);
    let token = token.to_string();
    let evict = ["evict", "report/42", "--token", &token, "--even-if-alive", "--reason", "it hangs"];
    store.prints(&evict);
    assert_eq!(holder.code(), 79);
    let audit = store.prints(&["audit"]);
    assert!(["a deployment", "it is over", "it hangs"].iter().all(|why| audit.contains(why)), "{audit}");
}

pub fn a_run_that_is_killed_takes_its_command_along_and_is_followed<S: Server>() {
    let store = Store::<S>::new();
    let running = store.script(&SHORT, ENDLESS).start();
    let (token, pid) = (token_of(&running), pid_in(&store.site.path("pid")));
    running.signal(Signal::KILL);
    eventually("the command is dead", || !is_alive(pid));
    assert!(store.token() > token);
}

pub fn a_server_that_stops_answering_costs_the_lease_in_time<S: Server>() {
    let store = Store::<S>::new();
    let running = store.script(&SHORT, ENDLESS).start();
    let (token, pid) = (token_of(&running), pid_in(&store.site.path("pid")));
    store.server.freeze();
    let (code, errors) = running.end();
    assert_eq!(code, 79, "{errors:?}");
    assert!(!is_alive(pid), "{errors:?}");
    store.server.thaw();
    assert!(store.token() > token);
}

pub fn a_server_that_is_gone_is_one_clear_line<S: Server>() {
    let store = Store::<S>::new();
    store.server.kill();
    store.refuses(&["run", "-w", "1", "report/42", "--", "true"], 69, "cannot connect");
}

pub fn work_that_must_be_right_is_let_in_only_where_that_is_promised<S: Server>() {
    let store = Store::<S>::new();
    let words = ["run", "--correctness", "payment/1", "--", "echo", "ran"];
    if S::STRONG {
        assert_eq!(store.prints(&words), "ran\n");
    } else {
        store.refuses(&words, 78, "best-effort");
    }
    assert_eq!(store.prints(&[&["run", "--fenced"], &words[1..]].concat()), "ran\n");
}

/// Tells all of them on a server.
macro_rules! told_on {
    ($server:ty) => {
        $crate::stories::told_on!($server:
            a_run_passes_on_what_it_holds_and_how_it_ended
            one_holds_the_next_waits_its_turn_and_everyone_can_see_who
            operators_pause_and_evict_and_what_they_did_is_kept
            a_run_that_is_killed_takes_its_command_along_and_is_followed
            a_server_that_stops_answering_costs_the_lease_in_time
            a_server_that_is_gone_is_one_clear_line
            work_that_must_be_right_is_let_in_only_where_that_is_promised
        );
    };
    ($server:ty: $($story:ident)*) => {
        $(#[test]
        fn $story() {
            $crate::stories::$story::<$server>();
        })*
    };
}
pub(crate) use told_on;
