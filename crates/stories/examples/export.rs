//! The program of docs/languages.md: the same text as there.

use std::{env, process::ExitCode, time::Duration};

use leasehold::{Error, ErrorKind};

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let url = env::var("LEASEHOLD_URL").unwrap_or_else(|_| "http://127.0.0.1:7420".to_owned());
    let leases = leasehold::connect(&url).await?;
    let request = leases.lease("report", "42").wait(Duration::from_secs(1));
    let exported = request.run(async |lease| println!("exported with token {}", lease.token())).await;
    match exported {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == ErrorKind::Contended => {
            eprintln!("{error}");
            Ok(ExitCode::from(75))
        }
        Err(error) => Err(error),
    }
}
