//! Receiving signals, and forwarding them to the command.
//!
//! A signal that was ignored when this process started stays ignored, for this process and for the command.
//! `nohup` and shells without job control (`command &` in a script) rely on that.
//!
//! Signals are normally handled by the runtime, when it polls. While nothing is held yet, the handler may end the process itself
//! ([`Signals::end_at_once`]): to open a store can block the thread of the runtime for long.

use std::{
    fs, io,
    pin::Pin,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::{exit, terminal::Terminal};

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
    /// While this is true, the handler of a signal of `ENDING` ends the process.
    ends_at_once: Arc<AtomicBool>,
}

impl Signals {
    /// Receives the signals that end `leasehold`.
    pub(crate) fn ending() -> io::Result<Signals> {
        let ends_at_once = Arc::new(AtomicBool::new(false));
        let mut signals = Signals { received: Vec::new(), ignored: ignored(), ends_at_once };
        signals.subscribe(&ENDING)?;
        for &signal in ENDING.iter().filter(|signal| !is_in(signals.ignored, **signal)) {
            let (number, condition) = (signal.as_raw(), Arc::clone(&signals.ends_at_once));
            // A shell ends the script or loop around us only if we die of INT.
            match signal {
                Signal::INT => signal_hook::flag::register_conditional_default(number, condition)?,
                _ => {
                    let code = i32::from(exit::by_signal(number));
                    signal_hook::flag::register_conditional_shutdown(number, code, condition)?
                }
            };
        }
        Ok(signals)
    }

    /// From now on, a signal that ends `leasehold` ends it at once, even if the thread of the runtime is blocked. Only for a time
    /// when nothing is held and nothing is waited for in a queue. With `false`, [`Signals::next`] returns the signals again.
    pub(crate) fn end_at_once(&self, at_once: bool) {
        self.ends_at_once.store(at_once, Ordering::SeqCst);
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

/// The exit code 128+n. In the foreground of a terminal, INT kills this process as well: a shell ends the
/// script or loop around us only if it sees that we died of INT.
pub(crate) fn ended_by(signal: Signal) -> ExitCode {
    let interactive =
        Terminal::controlling().is_some_and(|terminal| terminal.is_foreground(rustix::process::getpgrp()));
    if signal == Signal::INT && interactive {
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
    code_of(signal.as_raw())
}

pub(crate) fn code_of(signal: i32) -> ExitCode {
    ExitCode::from(exit::by_signal(signal))
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
