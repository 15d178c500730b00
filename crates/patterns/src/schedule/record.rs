//! What stands in the note of a claimed tick: for `reports`, and for people who look.

use leasehold::WallTime;

/// How a tick ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is running.
    Running,
    /// The work is done.
    Succeeded,
    /// The work said so, and why.
    Failed(String),
    /// The lease was lost while it ran.
    Lost,
    /// The run before it was still at work.
    Skipped,
    /// Whoever ran it is gone, and nobody knows how it ended. Never written down: it is found when somebody looks.
    Vanished,
}

impl Outcome {
    /// A stable name, for programs and labels.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Running => "running",
            Outcome::Succeeded => "succeeded",
            Outcome::Failed(_) => "failed",
            Outcome::Lost => "lost",
            Outcome::Skipped => "skipped",
            Outcome::Vanished => "vanished",
        }
    }
}

/// What is remembered of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The cron expression.
    pub expression: String,
    /// Its time zone.
    pub zone: String,
    /// When the run began, by the clock of the machine that ran it.
    pub began: WallTime,
    /// When it ended, by the same.
    pub ended: Option<WallTime>,
    /// How.
    pub outcome: Outcome,
}

/// Of an error's text, as much as this is remembered.
const SAID_MAX: usize = 500;

impl Record {
    pub(crate) fn write(&self) -> String {
        let ended = self.ended.map_or(String::new(), |ended| ended.as_micros().to_string());
        let said = if let Outcome::Failed(why) = &self.outcome { why.as_str() } else { "" };
        // The last part may hold anything, line breaks too.
        let said: String = said.chars().take(SAID_MAX).collect();
        let (began, outcome) = (self.began.as_micros(), self.outcome.as_str());
        format!("tick/1\n{}\n{}\n{began}\n{ended}\n{outcome}\n{said}", self.expression, self.zone)
    }

    /// Reads what was written; `None` for anything else.
    pub(crate) fn read(note: &[u8]) -> Option<Record> {
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
            ("running", _) => Outcome::Running,
            ("succeeded", _) => Outcome::Succeeded,
            ("failed", why) => Outcome::Failed(why.to_owned()),
            ("lost", _) => Outcome::Lost,
            ("skipped", _) => Outcome::Skipped,
            _ => return None,
        };
        Some(Record { expression, zone, began, ended, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_nothing_else_does() {
        let outcomes = [
            Outcome::Running,
            Outcome::Succeeded,
            Outcome::Failed("a\nb\u{202e}".into()),
            Outcome::Lost,
            Outcome::Skipped,
        ];
        for outcome in outcomes {
            for ended in [None, Some(WallTime::from_micros(7))] {
                let (expression, zone) = ("*/5 * * * *".to_owned(), "Europe/Berlin".to_owned());
                let began = WallTime::from_micros(5);
                let record = Record { expression, zone, began, ended, outcome: outcome.clone() };
                assert_eq!(Record::read(record.write().as_bytes()), Some(record));
            }
        }
        for wrong in [
            "",
            "tick/1",
            "tick/2\na\nb\n1\n\nlost\n",
            "tick/1\na\nb\nx\n\nlost\n",
            "tick/1\na\nb\n1\n\nwon\n",
        ] {
            assert_eq!(Record::read(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(Record::read(&[0xff, 0xfe]), None);
    }

    #[test]
    fn a_long_complaint_fits_a_note() {
        let outcome = Outcome::Failed("日".repeat(100_000));
        let (expression, zone, began) = ("x".repeat(256), "z".repeat(60), WallTime::default());
        let record = Record { expression, zone, began, ended: None, outcome };
        assert!(record.write().len() <= 4096);
    }
}
