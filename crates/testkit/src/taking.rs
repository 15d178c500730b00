//! What a [`Taker`](crate::Taker) does: takes a lease, tells what becomes of it, and answers.
//!
//! It writes a line for each thing that happens (`waiting`, `granted TOKEN`, `ended WHY`) and answers each line it reads:
//! `check` with `ok` or `over`, `release` with `released ANSWER`. When its input ends it exits without a farewell, as a
//! crash would.

use std::{
    io::{BufRead, Write},
    time::Duration,
};

use leasehold::{Error, ErrorKind, Lease, Resource};
use tokio::sync::mpsc;

/// In a test program the output is full of other things: there each line begins so, and goes to the error output.
pub(crate) const MARK: &str = "taker: ";
/// What a test program that is to be a taker is told: URL, resource and ttl, one line each.
pub(crate) const PART: &str = "LEASEHOLD_TAKER";

/// How it speaks.
#[derive(Clone, Copy, Debug)]
enum Voice {
    Plain,
    Marked,
}

impl Voice {
    fn say(self, line: &str) {
        // If nobody listens any more there is nobody to tell that either.
        match self {
            Voice::Plain => {
                let mut out = std::io::stdout().lock();
                drop(writeln!(out, "{line}").and_then(|()| out.flush()));
            }
            Voice::Marked => drop(writeln!(std::io::stderr().lock(), "{MARK}{line}")),
        }
    }
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

/// Takes the lease, and serves until it is released.
///
/// # Errors
/// Whatever connecting and acquiring say.
pub async fn take(url: &str, name: &str, ttl: &str) -> Result<(), Error> {
    take_aloud(Voice::Plain, url, name, ttl).await
}

/// In a test program that was started to be a taker: is one. Otherwise does nothing.
///
/// # Panics
/// If it cannot take the lease.
pub async fn take_if_asked() {
    let Ok(part) = std::env::var(PART) else { return };
    let lines: Vec<_> = part.lines().collect();
    let [url, name, ttl] = lines.as_slice() else { panic!("{PART} has three lines") };
    take_aloud(Voice::Marked, url, name, ttl).await.expect("the lease can be taken");
    std::process::exit(0);
}

async fn take_aloud(voice: Voice, url: &str, name: &str, ttl: &str) -> Result<(), Error> {
    let resource: Resource = name.parse()?;
    let ttl = ttl.parse().map(Duration::from_millis);
    let ttl = ttl.map_err(|_| Error::new(ErrorKind::Invalid, "the ttl is a number of milliseconds"))?;
    let client = leasehold::connect(url).await?;
    voice.say("waiting");
    let lease = client.lease_of(&resource).ttl(ttl).wait_forever().acquire().await?;
    voice.say(&format!("granted {}", lease.token()));
    serve(voice, lease).await
}

async fn serve(voice: Voice, lease: Lease) -> Result<(), Error> {
    let mut commands = commands();
    let mut ended = Box::pin(lease.ended());
    let mut told = false;
    loop {
        tokio::select! {
            biased;
            why = &mut ended, if !told => {
                told = true;
                voice.say(&format!("ended {}", why.as_str()));
            }
            command = commands.recv() => match command.as_deref() {
                Some("check") => voice.say(if lease.check().is_ok() { "ok" } else { "over" }),
                Some("release") => {
                    let answer = lease.release().await?;
                    voice.say(&format!("released {answer:?}"));
                    return Ok(());
                }
                Some(other) => voice.say(&format!("what is {other:?}?")),
                None => std::process::exit(0),
            },
        }
    }
}
