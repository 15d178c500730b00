//! What is written into a contender's key.
//!
//! `0000001f {"v":1,"who":"1234@host label",…}`: first the capacity in eight hex digits, so that a transaction can
//! compare it for a whole range without reading; then the rest, as JSON. etcd's own lock ignores the value, so a value
//! that is not of this form is a stranger's.

use std::{sync::Arc, time::Duration};

use leasehold_core::{Claim, Clock, FinishRequest, HeldBy, Holder, WallTime};
use serde::{Deserialize, Serialize};

use crate::keys::mark;

/// The newest form that this build can read.
const VERSION: u32 = 1;

/// A claim of ours, as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    v: u32,
    /// For people.
    pub(crate) who: String,
    /// The hash of the owner token.
    pub(crate) owner: String,
    #[serde(skip)]
    pub(crate) capacity: u32,
    pub(crate) weight: u32,
    /// It holds; otherwise it waits.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) held: bool,
    /// Released, but to stay closed until it ends.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) kept: bool,
    /// To run out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) evicting: bool,
    /// What was asked for: the lease that it is under is longer.
    pub(crate) ttl_ms: u64,
    /// When it began to hold or to wait, by the calendar of the client: for people.
    pub(crate) since_us: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) turns: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asked: Option<Wish>,
    /// In hex: a note may be any bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// An operator's wish. Its time is told by the calendar of whoever asked: it is a wish, and decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wish {
    pub(crate) until_us: u64,
    pub(crate) by: String,
    pub(crate) why: String,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What a value turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Ours(Entry),
    /// Of `etcdctl lock` or a Go program; its text, for people.
    Stranger(String),
    /// Written by a newer leasehold.
    Newer,
}

impl Entry {
    /// A claim that waits.
    pub(crate) fn waiting(claim: &Claim, now: WallTime) -> Entry {
        Entry {
            v: VERSION,
            who: claim.holder.to_string(),
            owner: mark(claim.owner),
            capacity: claim.share.capacity(),
            weight: claim.share.weight(),
            held: false,
            kept: false,
            evicting: false,
            ttl_ms: millis(claim.place_ttl),
            since_us: now.as_micros(),
            turns: 0,
            asked: None,
            note: None,
        }
    }

    /// A claim that holds.
    pub(crate) fn holding(claim: &Claim, now: WallTime) -> Entry {
        let note = claim.note.as_deref().map(to_hex);
        Entry { held: true, ttl_ms: millis(claim.ttl), note, ..Entry::waiting(claim, now) }
    }

    pub(crate) fn set_note(&mut self, note: &[u8]) {
        self.note = Some(to_hex(note));
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    pub(crate) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl_ms = millis(ttl);
    }

    pub(crate) fn write(&self) -> String {
        let json = serde_json::to_string(self).expect("plain numbers and texts always serialize");
        format!("{}{json}", header(self.capacity))
    }

    pub(crate) fn read(bytes: &[u8]) -> Value {
        let text = String::from_utf8_lossy(bytes);
        let ours = text.split_at_checked(8).and_then(|(capacity, rest)| {
            let capacity = u32::from_str_radix(capacity, 16).ok().filter(|capacity| *capacity > 0)?;
            Some((capacity, rest.strip_prefix(' ')?))
        });
        let Some((capacity, json)) = ours else { return Value::Stranger(text.into_owned()) };
        #[derive(Deserialize)]
        struct Form {
            v: u32,
        }
        match (serde_json::from_str::<Form>(json), serde_json::from_str::<Entry>(json)) {
            (Ok(form), _) if form.v > VERSION => Value::Newer,
            (_, Ok(entry)) => Value::Ours(Entry { capacity, ..entry }),
            _ => Value::Stranger(text.into_owned()),
        }
    }

    pub(crate) fn asked(&self, clock: &dyn Clock) -> Option<FinishRequest> {
        let wish = self.asked.as_ref()?;
        let left = wish.until_us.saturating_sub(clock.wall().as_micros());
        Some(FinishRequest::new(Duration::from_micros(left), wish.by.as_str(), wish.why.as_str()))
    }

    /// As others see it.
    pub(crate) fn seen(&self, held: HeldBy, clock: &dyn Clock) -> HeldBy {
        let mut seen = held;
        seen.held_for = self.since(clock);
        seen.note = self.note.as_deref().map(|hex| Arc::from(from_hex(hex)));
        seen.handovers = self.turns;
        seen.asked = self.asked(clock);
        seen.evicting = self.evicting;
        seen.kept = self.kept;
        seen
    }

    pub(crate) fn since(&self, clock: &dyn Clock) -> Duration {
        Duration::from_micros(clock.wall().as_micros().saturating_sub(self.since_us))
    }

    pub(crate) fn holder(&self) -> Arc<Holder> {
        Arc::new(self.who.parse().unwrap_or_else(|never| match never {}))
    }
}

/// What the values of a line with this capacity begin with.
pub(crate) fn header(capacity: u32) -> String {
    format!("{capacity:08x} ")
}

/// Above every value that begins with the header.
pub(crate) fn header_end(capacity: u32) -> String {
    format!("{capacity:08x}!")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16)?.try_into().ok()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{OwnerToken, Share};

    fn entry() -> Entry {
        let holder = Arc::new(Holder::new("host", 7, "naïve 🦀"));
        let owner = OwnerToken::from_bytes([1; 16]);
        let share = Share::new(2, 5).unwrap();
        let claim = Claim::new("a/b".parse().unwrap(), owner, share, Duration::from_secs(30), holder);
        Entry::holding(&claim.with_note(vec![0, 255]), WallTime::from_micros(17))
    }

    #[test]
    fn what_was_written_is_read_back() {
        let entry = entry();
        let text = entry.write();
        assert!(text.starts_with(&header(5)) && text < header_end(5), "{text}");
        assert_eq!(Entry::read(text.as_bytes()), Value::Ours(entry));
        assert!(!text.contains(&OwnerToken::from_bytes([1; 16]).reveal()));
    }

    #[test]
    fn the_form_is_stable() {
        let golden = r#"00000005 {"v":1,"who":"7@host naïve 🦀","owner":"#;
        assert!(entry().write().starts_with(golden), "{}", entry().write());
    }

    #[test]
    fn anything_else_is_a_strangers_and_a_newer_form_is_not_guessed_at() {
        for text in ["", "leader-7", "00000001", "00000000 {}", "0000001 {}", "00000001 {\"v\":1}"] {
            assert_eq!(Entry::read(text.as_bytes()), Value::Stranger(text.to_owned()));
        }
        assert_eq!(Entry::read(b"00000001 {\"v\":2,\"new\":true}"), Value::Newer);
        assert!(matches!(Entry::read(&[0xff, 0xfe]), Value::Stranger(_)));
    }
}
