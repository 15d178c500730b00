//! The program: takes a lease and tells what becomes of it.

use std::{
    io::{BufRead, Write},
    process::ExitCode,
    time::Duration,
};

use leasehold::{Error, ErrorKind, Lease, Resource};
use tokio::sync::mpsc;

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // If nobody listens any more there is nobody to tell that either.
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

async fn take(url: &str, name: &str, ttl: &str) -> Result<(), Error> {
    let resource: Resource = name.parse()?;
    let ttl = ttl.parse().map(Duration::from_millis);
    let ttl = ttl.map_err(|_| Error::new(ErrorKind::Invalid, "the ttl is a number of milliseconds"))?;
    let client = leasehold::connect(url).await?;
    say("waiting");
    let lease = client.lease_of(&resource).ttl(ttl).wait_forever().acquire().await?;
    say(&format!("granted {}", lease.token()));
    serve(lease).await
}

async fn serve(lease: Lease) -> Result<(), Error> {
    let mut commands = commands();
    let mut ended = Box::pin(lease.ended());
    let mut told = false;
    loop {
        tokio::select! {
            biased;
            why = &mut ended, if !told => {
                told = true;
                say(&format!("ended {}", why.as_str()));
            }
            command = commands.recv() => match command.as_deref() {
                Some("check") => say(if lease.check().is_ok() { "ok" } else { "over" }),
                Some("release") => {
                    // A process that was stopped may meet the connection as it breaks: an error is an answer too.
                    match lease.release().await {
                        Ok(answer) => say(&format!("released {answer:?}")),
                        Err(error) => say(&format!("released {error:?}")),
                    }
                    return Ok(());
                }
                Some(other) => say(&format!("what is {other:?}?")),
                None => std::process::exit(0),
            },
        }
    }
}

/// The program: a test that is also the taker calls it, as `leasehold-client-process` does.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, ttl] = arguments.as_slice() else {
        eprintln!("usage: leasehold-client-process URL KIND/ID TTL_MS");
        return ExitCode::from(64);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map(|runtime| runtime.block_on(take(url, name, ttl)));
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("no runtime: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The main of a test program that is also its own taker: started with a URL of this scheme, it is the taker; otherwise
/// it runs the tests.
pub fn main_with_tests(scheme: &str, tests: &[(&str, fn())]) -> ExitCode {
    program_with_tests(scheme, main, tests)
}

/// The same for another program: the tests start it as a process of its own with [`ClientProcess::start_with`](super::ClientProcess).
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
