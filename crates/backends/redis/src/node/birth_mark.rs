//! The stored form of the birth mark: `v1|set|size|gate in ms|run|durable|standing`. `scripts/node.lua` reads
//! it too.
//!
//! ADR 0016: the mark names the run of its server, so that a server that was restarted has no vote until its
//! data was checked.

use std::time::Duration;

use leasehold_core::{
    Error, ErrorKind, Result, WallTime,
    quorum_node::{BirthMark, VoterStatus},
};

use crate::{backend::millis, keys::BIRTH};

/// The text that is stored for a mark.
pub(super) fn format(mark: &BirthMark) -> String {
    let BirthMark { set, size, gate, run, durable, standing } = mark;
    let standing = match standing {
        VoterStatus::Founding => "founding".to_owned(),
        VoterStatus::Quarantined { since } => format!("quarantined:{}", since.as_micros()),
        VoterStatus::Voting => "voting".to_owned(),
    };
    format!("v1|{set}|{size}|{}|{run}|{}|{standing}", millis(*gate), u8::from(*durable))
}

/// Reads a stored mark.
pub(super) fn parse(text: &str) -> Result<BirthMark> {
    let fields: Vec<&str> = text.split('|').collect();
    from_fields(&fields).ok_or_else(|| {
        let newer = fields.first().is_some_and(|version| version.starts_with('v') && *version != "v1");
        let why = if newer {
            "a newer version of leasehold wrote it; update this program"
        } else {
            "leasehold did not write its value"
        };
        Error::new(ErrorKind::Corrupt, format!("key {BIRTH} cannot be read: {why}"))
    })
}

fn from_fields(fields: &[&str]) -> Option<BirthMark> {
    let &["v1", set, size, gate, run, durable, standing] = fields else { return None };
    let standing = match standing.split_once(':') {
        None if standing == "founding" => VoterStatus::Founding,
        None if standing == "voting" => VoterStatus::Voting,
        Some(("quarantined", since)) => {
            VoterStatus::Quarantined { since: WallTime::from_micros(since.parse().ok()?) }
        }
        _ => return None,
    };
    Some(BirthMark {
        set: set.to_owned(),
        size: size.parse().ok()?,
        gate: Duration::from_millis(gate.parse().ok()?),
        run: run.to_owned(),
        durable: durable == "1",
        standing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_as_it_was_written() {
        let standings = [
            VoterStatus::Founding,
            VoterStatus::Quarantined { since: WallTime::from_micros(1_800_000_000_000_001) },
            VoterStatus::Voting,
        ];
        for (standing, durable) in standings.into_iter().zip([true, false, true]) {
            let (set, run) = ("00ff".to_owned(), "abcd".to_owned());
            let mark = BirthMark { set, size: 5, gate: Duration::from_millis(1500), run, durable, standing };
            assert_eq!(parse(&format(&mark)).unwrap(), mark);
        }
    }

    #[test]
    fn a_value_that_is_no_mark_is_reported_with_its_key() {
        for (text, word) in
            [("v2|new", "newer"), ("hello", "did not write"), ("v1|a|b|c|d|e|f", "did not write")]
        {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(
                error.to_string().contains("lock:v1:birth") && error.to_string().contains(word),
                "{error}"
            );
        }
    }
}
