//! What is stored about a tick, in the note of its marker.

use leasehold::WallTime;

/// How a tick ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TickOutcome {
    /// The tick runs.
    Running,
    /// The work has ended without an error.
    Succeeded,
    /// The work returned this error.
    Failed(String),
    /// The lease was lost while the tick ran.
    Lost,
    /// The tick did not run, because the run before it had not ended.
    Skipped,
    /// The process that ran the tick is gone, and how it ended is unknown. It is never stored; `reports`
    /// finds it out.
    Vanished,
}

impl TickOutcome {
    /// A stable name, for programs and labels.
    pub fn as_str(&self) -> &'static str {
        match self {
            TickOutcome::Running => "running",
            TickOutcome::Succeeded => "succeeded",
            TickOutcome::Failed(_) => "failed",
            TickOutcome::Lost => "lost",
            TickOutcome::Skipped => "skipped",
            TickOutcome::Vanished => "vanished",
        }
    }
}

/// What is stored about a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TickRecord {
    /// The cron expression.
    pub expression: String,
    /// The time zone of the schedule.
    pub zone: String,
    /// When the run began, by the clock of the machine that ran it.
    pub began: WallTime,
    /// When the run ended, by the same clock.
    pub ended: Option<WallTime>,
    /// How the tick ended.
    pub outcome: TickOutcome,
}

/// The most characters of an error that are stored.
const ERROR_TEXT_MAX: usize = 500;

impl TickRecord {
    pub(crate) fn write(&self) -> String {
        let ended = self.ended.map_or(String::new(), |ended| ended.as_micros().to_string());
        let error = if let TickOutcome::Failed(why) = &self.outcome { why.as_str() } else { "" };
        // The error is the last part, because it may contain line breaks.
        let error: String = error.chars().take(ERROR_TEXT_MAX).collect();
        let (began, outcome) = (self.began.as_micros(), self.outcome.as_str());
        format!("tick/1\n{}\n{}\n{began}\n{ended}\n{outcome}\n{error}", self.expression, self.zone)
    }

    /// Reads a note; `None` if it is not one of a tick.
    pub(crate) fn read(note: &[u8]) -> Option<TickRecord> {
        let text = std::str::from_utf8(note).ok()?;
        let mut parts = text.splitn(7, '\n');
        let mut next = || parts.next();
        if next()? != "tick/1" {
            return None;
        }
        let (expression, zone) = (next()?.to_owned(), next()?.to_owned());
        let began = WallTime::from_micros(next()?.parse().ok()?);
        let ended = match next()? {
            "" => None,
            micros => Some(WallTime::from_micros(micros.parse().ok()?)),
        };
        let outcome = match (next()?, next()?) {
            ("running", _) => TickOutcome::Running,
            ("succeeded", _) => TickOutcome::Succeeded,
            ("failed", why) => TickOutcome::Failed(why.to_owned()),
            ("lost", _) => TickOutcome::Lost,
            ("skipped", _) => TickOutcome::Skipped,
            _ => return None,
        };
        Some(TickRecord { expression, zone, began, ended, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_record_can_be_read_and_nothing_else_can() {
        let outcomes = [
            TickOutcome::Running,
            TickOutcome::Succeeded,
            TickOutcome::Failed("a\nb\u{202e}".into()),
            TickOutcome::Lost,
            TickOutcome::Skipped,
        ];
        for outcome in outcomes {
            for ended in [None, Some(WallTime::from_micros(7))] {
                let (expression, zone) = ("*/5 * * * *".to_owned(), "Europe/Berlin".to_owned());
                let began = WallTime::from_micros(5);
                let record = TickRecord { expression, zone, began, ended, outcome: outcome.clone() };
                assert_eq!(TickRecord::read(record.write().as_bytes()), Some(record));
            }
        }
        for wrong in [
            "",
            "tick/1",
            "tick/2\na\nb\n1\n\nlost\n",
            "tick/1\na\nb\nx\n\nlost\n",
            "tick/1\na\nb\n1\n\nwon\n",
        ] {
            assert_eq!(TickRecord::read(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(TickRecord::read(&[0xff, 0xfe]), None);
    }

    #[test]
    fn a_long_error_is_cut_to_fit_a_note() {
        let outcome = TickOutcome::Failed("日".repeat(100_000));
        let (expression, zone, began) = ("x".repeat(256), "z".repeat(60), WallTime::default());
        let record = TickRecord { expression, zone, began, ended: None, outcome };
        assert!(record.write().len() <= 4096);
    }
}
