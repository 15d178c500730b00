//! The case that fences are made for, with real processes, for every pair of a backend and a downstream:
//!
//! 1. Process A is granted the lease and writes. It is stopped until its lease has expired.
//! 2. Process B is granted the lease with a higher token and writes.
//! 3. A goes on, does not know that its lease is lost, and writes. It is refused, and the data is B's.
//!
//! The backends are listed in `BACKENDS`, the downstreams in `DOWNSTREAMS`.

#![allow(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "a test has a runtime and processes")]

mod downstream;
mod mariadb;
mod servers;
mod service;
mod writer;

use std::{env, process::ExitCode, sync::Arc, time::Duration};

use downstream::{DOWNSTREAMS, Downstream};
use leasehold_testkit::ClientProcess;
use libtest_mimic::{Arguments, Trial};
use servers::{BACKENDS, LeaseBackend, Servers};

/// Short, but long enough for a grant and a write on a busy machine.
const TTL: Duration = Duration::from_millis(1500);

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.split_first() {
        Some((mode, rest)) if mode == writer::MODE => return writer::main(rest),
        Some((mode, rest)) if mode == service::MODE => return service::main(rest),
        _ => {}
    }
    let mut arguments = Arguments::from_args();
    // The tests wait most of the time for a lease to expire.
    arguments.test_threads.get_or_insert(4);
    let servers = (!arguments.list).then(|| Arc::new(Servers::start()));
    let mut trials = Vec::new();
    for backend in BACKENDS {
        // The case without a fence is played once.
        for downstream in
            DOWNSTREAMS.iter().filter(|downstream| downstream.fenced || backend.name == BACKENDS[0].name)
        {
            let servers = servers.clone();
            trials.push(Trial::test(
                format!("leases on {}, writes to {}", backend.name, downstream.name),
                move || {
                    stopped_holder_writes(
                        servers.as_ref().expect("a test needs servers"),
                        backend,
                        downstream,
                    );
                    Ok(())
                },
            ));
        }
    }
    trials.push(Trial::test("a service that is killed keeps its marks", || {
        service::killed_service_keeps_its_marks();
        Ok(())
    }));
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(servers);
    conclusion.exit_code()
}

fn stopped_holder_writes(servers: &Servers, backend: &LeaseBackend, downstream: &Downstream) {
    let (url, target) = (&(backend.url)(servers), &(downstream.prepare)(servers));
    let start = |name: &str| writer::start(url, TTL, downstream.name, target, name);

    let mut a = start("A");
    let token_a = a.granted();
    a.send("write");
    a.expect_line("written");
    a.signal("STOP");

    let mut b = start("B");
    let token_b = b.granted();
    assert!(token_b > token_a, "tokens grow: {token_a}, {token_b}");
    b.send("write");
    b.expect_line("written");

    a.signal("CONT");
    a.send("write");
    if downstream.fenced {
        assert_eq!(a.expect_line("refused"), format!("{token_a} {token_b}"), "both numbers");
        assert_eq!((downstream.read)(servers, target), "B", "the data is B's");
        b.send("write");
        b.expect_line("written");
    } else {
        // Without a fence, the stale write takes effect. This is what fences prevent.
        a.expect_line("written");
        assert_eq!((downstream.read)(servers, target), "A", "the stale write was not refused");
    }
    let _: (ClientProcess, ClientProcess) = (a, b);
}
