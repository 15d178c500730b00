//! The peers that are written in Rust. `bench/peers/README.md` has the protocol.

mod advisory;
mod bare;
mod leases;
mod lock;
mod redlock;
mod shedlock;
mod work;

use std::{collections::HashMap, process::ExitCode};

use work::Work;

/// The words of the command line.
struct Arguments(HashMap<String, String>);

impl Arguments {
    fn read() -> Arguments {
        let words = std::env::args().skip(1);
        let pairs = words.filter_map(|word| word.split_once('=').map(|(a, b)| (a.to_owned(), b.to_owned())));
        Arguments(pairs.collect())
    }

    fn text(&self, name: &str) -> Result<&str, String> {
        self.0.get(name).map(String::as_str).ok_or_else(|| format!("the word {name}=… is missing"))
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("{name}={text} is not a number"))
    }

    fn addresses(&self) -> Result<Vec<String>, String> {
        Ok(self.text("address")?.split(',').map(str::to_owned).collect())
    }
}

// Several threads, as `#[tokio::main]` makes them for most programs.
#[tokio::main]
async fn main() -> ExitCode {
    match serve(&Arguments::read()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: &Arguments) -> Result<(), String> {
    let work = Work::of(arguments)?;
    match arguments.text("lock")? {
        "bare" => work.serve(bare::Bare::connect(&arguments.addresses()?[0]).await?).await,
        "leasehold" => work.serve(leases::Leases::connect(arguments.text("url")?, false).await?).await,
        "leasehold-fair" => work.serve(leases::Leases::connect(arguments.text("url")?, true).await?).await,
        "rslock" => work.serve(redlock::Redlock::new(&arguments.addresses()?)).await,
        "advisory" => {
            work.serve(advisory::Advisory::connect(arguments.text("url")?, work.tasks()).await?).await
        }
        "shedlock" => {
            work.serve(shedlock::ShedLock::connect(arguments.text("url")?, work.tasks()).await?).await
        }
        other => Err(format!("there is no lock called {other}")),
    }
}
