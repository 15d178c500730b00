//! A process that acquires a lease and writes under its token on command, also after the lease is lost.

use std::{env, io::BufRead as _, process::ExitCode, time::Duration};

use leasehold_core::Error;
use leasehold_testkit::ClientProcess;

use crate::downstream;

/// The first argument that makes this program a writer.
pub(crate) const MODE: &str = "--writer";

pub(crate) fn start(url: &str, ttl: Duration, downstream: &str, target: &str, name: &str) -> ClientProcess {
    let program = env::current_exe().unwrap();
    let ttl = ttl.as_millis().to_string();
    ClientProcess::start_with(&program, &[MODE, url, &ttl, downstream, target, name])
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [url, ttl, downstream, target, name] = arguments else { return ExitCode::from(64) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = runtime.block_on(acquire_and_write(url, ttl.parse().unwrap(), downstream, target, name));
    done.map_or_else(
        |error| {
            println!("failed {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

async fn acquire_and_write(
    url: &str,
    ttl: u64,
    downstream: &str,
    target: &str,
    name: &str,
) -> Result<(), Error> {
    let leases = leasehold::connect(url).await?;
    println!("waiting");
    let id = target.rsplit_once('#').unwrap().1;
    // Without renewals, so that no request is under way when the process is stopped.
    let request = leases.lease("report", id).ttl(Duration::from_millis(ttl)).renew(false);
    let lease = request.wait_forever().acquire().await?;
    println!("granted {}", lease.token());
    let pass = lease.pass();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        assert_eq!(line, "write");
        match downstream::write(downstream, target, &pass, name).await {
            Ok(()) => println!("written"),
            Err(error) => match error.stale_token() {
                Some((presented, highest)) => println!("refused {presented} {highest}"),
                None => println!("failed {error:?}"),
            },
        }
    }
    Ok(())
}
