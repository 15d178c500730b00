//! Receiving signals, and forwarding them to the command.
//!
//! A signal that was ignored when this process started stays ignored, for this process and for the command.
//! `nohup` and shells without job control (`command &` in a script) rely on that.

use std::{
    fs, io,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    task::Poll,
};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// Signals that end `leasehold`. Once the command runs, they are forwarded instead.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
/// Further signals that are forwarded once the command runs.
const FORWARDED: [Signal; 6] =
    [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH, Signal::CONT, Signal::TSTP];

/// The signals that this process receives.
pub(crate) struct Signals {
    received: Vec<(Signal, tokio::signal::unix::Signal)>,
    /// The signals that were ignored when this process started, as a bit mask.
    ignored: u64,
}

impl Signals {
    /// Receives the signals that end `leasehold`.
    pub(crate) fn ending() -> io::Result<Signals> {
        let mut signals = Signals { received: Vec::new(), ignored: ignored() };
        signals.subscribe(&ENDING)?;
        Ok(signals)
    }

    /// Receives the other signals that are forwarded, too.
    pub(crate) fn subscribe_forwarded(&mut self) -> io::Result<()> {
        self.subscribe(&FORWARDED)
    }

    /// Receives these signals, except those that are ignored (see the top of this file).
    fn subscribe(&mut self, which: &[Signal]) -> io::Result<()> {
        for &number in which.iter().filter(|signal| !is_in(self.ignored, **signal)) {
            self.received.push((number, signal(SignalKind::from_raw(number.as_raw()))?));
        }
        Ok(())
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// No signal is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, stream) in &mut self.received {
                if let Poll::Ready(Some(())) = Pin::new(stream).poll_recv(cx) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Catches the signals that would end the guardian, and does nothing with them. They are not ignored: the
/// command would inherit that.
pub(crate) fn catch_ending() -> io::Result<()> {
    let ignored = ignored();
    let unused = Arc::new(AtomicBool::new(false));
    let caught = ENDING.iter().chain(&[Signal::USR1, Signal::USR2, Signal::ALARM]);
    for signal in caught.filter(|signal| !is_in(ignored, **signal)) {
        signal_hook::flag::register(signal.as_raw(), Arc::clone(&unused))?;
    }
    Ok(())
}

/// The signals that this process ignores, as a bit mask.
fn ignored() -> u64 {
    ignored_in(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// The ignored signals of a process, from its `/proc/PID/status`.
fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// Parses `USR1`, `SIGUSR1` or `10`.
pub(crate) fn parse(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let number = text
        .parse()
        .ok()
        .or_else(|| full.parse::<nix::sys::signal::Signal>().ok().map(|signal| signal as i32));
    let signal = number.and_then(Signal::from_named_raw);
    signal.ok_or_else(|| "expected the name or the number of a signal, such as USR1 or 10".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_as_kill_does() {
        for text in ["USR1", "sigusr1", "SIGUSR1", "10"] {
            assert_eq!(parse(text), Ok(Signal::USR1), "{text}");
        }
        for text in ["", "SIG", "0", "-1", "99", "NOPE"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ignored_signals_are_read_from_proc() {
        assert!(is_in(ignored(), Signal::PIPE), "Rust programs ignore SIGPIPE");
        // Not by the dispositions of this process: the caller of the tests decides which signals it ignores.
        let mask =
            ignored_in("SigBlk:\t0000000000004000\nSigIgn:\t0000000000001006\nSigCgt:\t0000000180000440\n");
        for (signal, is_ignored) in [(Signal::INT, true), (Signal::QUIT, true), (Signal::TERM, false)] {
            assert_eq!(is_in(mask, signal), is_ignored, "{signal:?}");
        }
        assert_eq!(ignored_in(""), 0);
    }
}
