//! The options of a claim in the command line, and the share that they mean.

use std::{str::FromStr, time::Duration};

use clap::Args;
use leasehold::BackendInfo;

use crate::{args::duration, config::RunDefaults, exit::Failure};

pub(crate) const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
const TTL_DEFAULT: Duration = Duration::from_secs(30);

#[derive(Debug, Default, Args)]
pub(crate) struct ClaimOptions {
    /// Do not wait if the resource is held: exit with 75
    #[arg(short, long, visible_alias = "nb", alias = "nonblocking")]
    pub(crate) nonblock: bool,

    /// Wait at most this long (seconds, or a duration such as 2m) [default: no limit]
    #[arg(short, long, visible_alias = "timeout", value_parser = duration, conflicts_with = "nonblock")]
    pub(crate) wait: Option<Duration>,

    /// The exit code if the resource is held by others [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Hold the resource together with others that use --shared, and not with those without it
    #[arg(short, long, conflicts_with_all = ["permits", "exclusive"])]
    pub(crate) shared: bool,

    /// Hold the resource alone; this is the default, and the option exists for users of flock
    #[arg(short = 'x', long, short_alias = 'e', conflicts_with = "permits")]
    exclusive: bool,

    /// Hold K of N permits: all holders together have at most N. All of them must name the same N
    #[arg(long, value_name = "K/N")]
    pub(crate) permits: Option<Permits>,

    /// Grant in strict order of arrival
    #[arg(long)]
    pub(crate) fair: bool,

    /// How long the lease lasts without a renewal. 1s to 24h [default: 30s]
    #[arg(long, value_parser = duration)]
    pub(crate) ttl: Option<Duration>,

    /// Refuse a store whose guarantees are too weak for work where two holders at once would do harm
    #[arg(long)]
    pub(crate) correctness: bool,

    /// With --correctness: the work checks the fencing token where its effect happens, so accept any store
    #[arg(long)]
    pub(crate) fenced: bool,

    /// A label for the holder, shown by ls, show and why [default: the name of the command or script]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// A note about the holder that others can read, such as an address or a version
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

impl ClaimOptions {
    /// Fills options that were not typed from `config.toml`, but for the ttl.
    pub(crate) fn take_defaults(&mut self, defaults: &RunDefaults) {
        self.wait = self.wait.or(defaults.wait.filter(|_| !self.nonblock));
        self.conflict_exit_code = self.conflict_exit_code.or(defaults.conflict_exit_code);
        self.fair = self.fair || defaults.fair.unwrap_or(false);
        self.correctness = self.correctness || defaults.correctness.unwrap_or(false);
    }

    /// The ttl: typed, from `config.toml`, or the default. Checked.
    pub(crate) fn ttl(&self, defaults: &RunDefaults) -> Result<Duration, Failure> {
        check_ttl(self.ttl.or(defaults.ttl).unwrap_or(TTL_DEFAULT))
    }

    /// How long to wait; `None` is no limit.
    pub(crate) fn wait_at_most(&self) -> Option<Duration> {
        if self.nonblock { Some(Duration::ZERO) } else { self.wait }
    }

    pub(crate) fn share(&self) -> ShareMode {
        match self.permits {
            Some(permits) => ShareMode::Permits(permits),
            None if self.shared => ShareMode::Read,
            None => ShareMode::Exclusive,
        }
    }
}

/// Fails if the ttl is out of bounds.
pub(crate) fn check_ttl(ttl: Duration) -> Result<Duration, Failure> {
    if ttl < TTL_MIN || ttl > TTL_MAX {
        return Err(Failure::usage(format!("--ttl must be 1s to 24h, and it is {ttl:?}")));
    }
    Ok(ttl)
}

/// Fails if the note is too long. The store would report that as a limit (exit code 75, try again later), but
/// waiting does not make a note shorter.
pub(crate) fn check_note(note: Option<&str>, info: &BackendInfo) -> Result<(), Failure> {
    let (most, length) = (info.limits.note, note.map_or(0, str::len));
    if length > most {
        let message = format!("--note has {length} bytes, and this store allows at most {most}");
        return Err(Failure::usage(message).hint("shorten the note"));
    }
    Ok(())
}

/// K of N permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
}

impl FromStr for Permits {
    type Err = String;
    fn from_str(text: &str) -> Result<Permits, String> {
        let wrong = || "expected K/N, such as 1/3".to_owned();
        let (weight, capacity) = text.split_once('/').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (weight, capacity) = (number(weight)?, number(capacity)?);
        if weight == 0 || weight > capacity {
            return Err(format!(
                "{weight} of {capacity} permits is impossible: K must be at least 1 and at most N"
            ));
        }
        Ok(Permits { weight, capacity })
    }
}

/// How a claim holds its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareMode {
    /// As an exclusive lease (capacity 1).
    Exclusive,
    /// As the writer of a read-write lock.
    Write,
    /// As a reader of a read-write lock.
    Read,
    /// With some permits of a semaphore.
    Permits(Permits),
}

impl ShareMode {
    /// The share that means the same where other clients use the resource with this capacity. `None` if there
    /// is none.
    ///
    /// `flock -s` and `flock -x` of one file exclude each other, so `run --shared` and `run` do, too: an
    /// exclusive run takes the write lock where others read, and a reader takes an exclusive lease where
    /// others use one.
    pub(super) fn adapted_to(self, capacity: Option<u32>) -> Option<ShareMode> {
        match (self, capacity) {
            // A read-write lock has the capacity `u32::MAX`.
            (ShareMode::Exclusive, Some(u32::MAX)) => Some(ShareMode::Write),
            (ShareMode::Write | ShareMode::Read, Some(1)) => Some(ShareMode::Exclusive),
            _ => None,
        }
    }

    pub(crate) fn is_exclusive(self) -> bool {
        match self {
            ShareMode::Exclusive | ShareMode::Write => true,
            ShareMode::Read => false,
            ShareMode::Permits(permits) => permits.weight == permits.capacity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_adapts_to_the_capacity_that_others_use() {
        assert_eq!(ShareMode::Exclusive.adapted_to(Some(u32::MAX)), Some(ShareMode::Write));
        assert_eq!(ShareMode::Read.adapted_to(Some(1)), Some(ShareMode::Exclusive));
        assert_eq!(ShareMode::Write.adapted_to(Some(1)), Some(ShareMode::Exclusive));
        let three = Permits { weight: 1, capacity: 3 };
        for (share, capacity) in
            [(ShareMode::Exclusive, 5), (ShareMode::Read, 5), (ShareMode::Permits(three), 1)]
        {
            assert_eq!(share.adapted_to(Some(capacity)), None);
        }
    }

    #[test]
    fn permits_are_parsed_and_checked() {
        assert_eq!("2/5".parse(), Ok(Permits { weight: 2, capacity: 5 }));
        for text in ["", "2", "0/5", "6/5", "a/b", "1/", "-1/2"] {
            assert!(text.parse::<Permits>().is_err(), "{text}");
        }
    }
}
