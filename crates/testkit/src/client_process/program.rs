//! The program of a client process: acquires a lease, prints what happens to it, and executes commands.

use std::{
    io::{BufRead, Write},
    process::ExitCode,
    time::Duration,
};

use leasehold::{Error, ErrorKind, Lease, Resource};
use tokio::sync::mpsc;

fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    // An error means that the test has closed the pipe, so there is nothing left to report to.
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

/// Standard input, line by line, from a thread of its own: a blocking read cannot be cancelled.
fn commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn acquire(url: &str, name: &str, ttl: &str, waiters: &str) -> Result<(), Error> {
    let resource: Resource = name.parse()?;
    let ttl = ttl.parse().map(Duration::from_millis);
    let ttl = ttl.map_err(|_| Error::new(ErrorKind::Invalid, "the ttl is a number of milliseconds"))?;
    let waiters: usize = waiters
        .parse()
        .map_err(|_| Error::new(ErrorKind::Invalid, "the number of waiters is not a number"))?;
    let client = leasehold::connect(url).await?;
    print_line("waiting");
    // With `fair` each of them has a place of its own in the queue.
    let request = || client.lease_of(&resource).ttl(ttl).fair().wait_forever();
    let mut others = tokio::task::JoinSet::new();
    for _ in 1..waiters {
        others.spawn(request().acquire());
    }
    let request = if waiters > 1 { request() } else { client.lease_of(&resource).ttl(ttl).wait_forever() };
    let lease = request.acquire().await?;
    print_line(&format!("granted {}", lease.token()));
    serve(lease).await
}

async fn serve(lease: Lease) -> Result<(), Error> {
    let mut commands = commands();
    let mut ended = Box::pin(lease.ended());
    let mut end_printed = false;
    loop {
        tokio::select! {
            biased;
            why = &mut ended, if !end_printed => {
                end_printed = true;
                print_line(&format!("ended {}", why.as_str()));
            }
            command = commands.recv() => match command.as_deref() {
                Some("check") => print_line(if lease.check().is_ok() { "ok" } else { "over" }),
                Some("release") => {
                    // After a stop the connection may be broken. The test gets the error as a line, too.
                    match lease.release().await {
                        Ok(answer) => print_line(&format!("released {answer:?}")),
                        Err(error) => print_line(&format!("released {error:?}")),
                    }
                    return Ok(());
                }
                Some(other) => print_line(&format!("unknown command {other:?}")),
                None => std::process::exit(0),
            },
        }
    }
}

/// The main of the program. `leasehold-client-process` calls it, and tests that are their own client process
/// do.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (url, name, ttl, waiters) = match arguments.as_slice() {
        [url, name, ttl] => (url, name, ttl, "1"),
        [url, name, ttl, waiters] => (url, name, ttl, waiters.as_str()),
        _ => {
            eprintln!("usage: leasehold-client-process URL KIND/ID TTL_MS [WAITERS]");
            return ExitCode::from(64);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map(|runtime| runtime.block_on(acquire(url, name, ttl, waiters)));
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the tokio runtime cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The main of a test program that is also its own client process.
///
/// Started with a URL of this scheme as its first argument, it is the client process. Otherwise it runs the
/// tests.
pub fn main_with_tests(scheme: &str, tests: &[(&str, fn())]) -> ExitCode {
    program_with_tests(scheme, main, tests)
}

/// As [`main_with_tests`], with another program as the client process: the tests start it by
/// [`ClientProcess::start_with`](super::ClientProcess::start_with).
pub fn program_with_tests(scheme: &str, program: fn() -> ExitCode, tests: &[(&str, fn())]) -> ExitCode {
    if std::env::args().nth(1).is_some_and(|first| first.starts_with(scheme)) {
        return program();
    }
    let trial = |(name, run): &(&str, fn())| {
        let run = *run;
        libtest_mimic::Trial::test(*name, move || {
            run();
            Ok(())
        })
    };
    let trials = tests.iter().map(trial).collect();
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit_code()
}
