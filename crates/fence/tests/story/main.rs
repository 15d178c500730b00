//! The story that fences are for, with real processes, on every pair of a backend and a downstream:
//!
//! A is granted the lease, and writes. It is stopped, past its time. B is granted the lease with a higher token, and
//! writes. A goes on, knows nothing, and writes: it is refused, and the data is B's.
//!
//! A backend is a line in `LEASES`, a downstream one in `CHECKS`.

#![allow(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "a test has a runtime and processes")]

mod downstream;
mod servers;
mod service;
mod writer;

use std::{env, process::ExitCode, sync::Arc, time::Duration};

use downstream::{CHECKS, Check};
use leasehold_testkit::ClientProcess;
use libtest_mimic::{Arguments, Trial};
use servers::{LEASES, Lease, Servers};

/// Short, but long enough to be granted and to write once on a busy machine.
const TTL: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.split_first() {
        Some((mode, rest)) if mode == writer::MODE => return writer::main(rest),
        Some((mode, rest)) if mode == service::MODE => return service::main(rest),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    // They wait most of the time, for a lease to run out.
    arguments.test_threads.get_or_insert(4);
    let servers = (!arguments.list).then(|| Arc::new(Servers::start()));
    let mut trials = Vec::new();
    for lease in LEASES {
        // How it ends without a fence is told once.
        for check in CHECKS.iter().filter(|check| check.fenced || lease.name == LEASES[0].name) {
            let servers = servers.clone();
            trials.push(Trial::test(
                format!("leases on {}, checked by {}", lease.name, check.name),
                move || {
                    tell(servers.as_ref().expect("a story needs servers"), lease, check);
                    Ok(())
                },
            ));
        }
    }
    trials.push(Trial::test("a service is killed, and remembers what it saw", || {
        service::is_killed_and_remembers();
        Ok(())
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(servers);
    conclusion.exit_code()
}

fn tell(servers: &Servers, lease: &Lease, check: &Check) {
    let (url, target) = (&(lease.url)(servers), &(check.prepare)(servers));
    let start = |name: &str| writer::start(url, TTL, check.name, target, name);

    let mut a = start("A");
    let token_a = a.granted();
    a.tell("write");
    a.hears("written");
    a.signal("STOP");

    let mut b = start("B");
    let token_b = b.granted();
    assert!(token_b > token_a, "tokens grow: {token_a}, {token_b}");
    b.tell("write");
    b.hears("written");

    a.signal("CONT");
    a.tell("write");
    if check.fenced {
        assert_eq!(a.hears("refused"), format!("{token_a} {token_b}"), "both numbers");
        assert_eq!((check.read)(servers, target), "B", "the data is B's");
        b.tell("write");
        b.hears("written");
    } else {
        // What the fence is for: this is how the story ends without one.
        a.hears("written");
        assert_eq!((check.read)(servers, target), "A", "nobody refused");
    }
    let _: (ClientProcess, ClientProcess) = (a, b);
}
