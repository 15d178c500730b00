//! Signals: which ones are passed on, and which ones were never meant for us.

use std::{
    fs, io,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    task::Poll,
};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// These end a command that has not begun.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];
/// These are passed on, too, once it runs.
const OTHERS: [Signal; 6] =
    [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH, Signal::CONT, Signal::TSTP];

/// Signals that have come.
pub(crate) struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    /// Those that end us.
    pub(crate) fn ending() -> io::Result<Signals> {
        let mut signals = Signals(Vec::new());
        signals.hear(&ENDING)?;
        Ok(signals)
    }

    /// All that are passed on.
    pub(crate) fn hear_all(&mut self) -> io::Result<()> {
        self.hear(&OTHERS)
    }

    /// One that is ignored stays so, for us and for the command: `nohup`, and jobs of a shell without job control.
    fn hear(&mut self, which: &[Signal]) -> io::Result<()> {
        let ignored = ignored();
        for &heard in which.iter().filter(|signal| !is_in(ignored, **signal)) {
            self.0.push((heard, signal(SignalKind::from_raw(heard.as_raw()))?));
        }
        Ok(())
    }

    /// The next one.
    ///
    /// # Cancel safety
    /// Nothing is missed.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = Pin::new(stream).poll_recv(cx) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Lives through what would end us, without ignoring it: what is ignored would be ignored by the command, too.
pub(crate) fn outlive() -> io::Result<()> {
    let ignored = ignored();
    let heard = Arc::new(AtomicBool::new(false));
    let caught = ENDING.iter().chain(&[Signal::USR1, Signal::USR2, Signal::ALARM]);
    for signal in caught.filter(|signal| !is_in(ignored, **signal)) {
        signal_hook::flag::register(signal.as_raw(), Arc::clone(&heard))?;
    }
    Ok(())
}

/// The signals that this process ignores, a bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// Reads `USR1`, `SIGUSR1`, `10`.
pub(crate) fn named(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let number = text
        .parse()
        .ok()
        .or_else(|| full.parse::<nix::sys::signal::Signal>().ok().map(|signal| signal as i32));
    let signal = number.and_then(Signal::from_named_raw);
    signal.ok_or_else(|| "write the name or the number of a signal, as in USR1 or 10".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_as_kill_names_them() {
        for text in ["USR1", "sigusr1", "SIGUSR1", "10"] {
            assert_eq!(named(text), Ok(Signal::USR1), "{text}");
        }
        for text in ["", "SIG", "0", "-1", "99", "NOPE"] {
            assert!(named(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rust_programs_ignore_broken_pipes() {
        assert!(is_in(ignored(), Signal::PIPE));
        assert!(!is_in(ignored(), Signal::TERM));
    }
}
