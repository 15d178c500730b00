//! `leasehold-taker URL KIND/ID TTL_MS`: a process to kill, stop and continue. What it says is in
//! `leasehold_testkit::taking`.

use std::process::ExitCode;

use leasehold_testkit::taking::take;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, ttl] = arguments.as_slice() else {
        eprintln!("usage: leasehold-taker URL KIND/ID TTL_MS");
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
