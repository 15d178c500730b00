//! The value of a contender's key.
//!
//! `0000001f {"v":1,"who":"1234@host label",…}`
//!
//! 1. The capacity in eight hex digits and a space. It comes first so that a transaction can compare the
//!    capacity of a whole range of keys without reading them.
//! 2. A [`ClaimRecord`] as JSON.
//!
//! etcd's own lock ignores the value. So a value in any other form is a *foreign* lock: of `etcdctl lock` or
//! a Go program.

use std::{sync::Arc, time::Duration};

use leasehold_core::{Claim, Clock, FinishRequest, HeldBy, Holder, WallTime};
use serde::{Deserialize, Serialize};

use crate::keys::hash_owner;

/// The newest version of the format that this build can read.
const VERSION: u32 = 1;

/// The length of the capacity at the start of a value, in hex digits.
const CAPACITY_DIGITS: usize = 8;

/// A claim of leasehold, as it is stored. The field names are part of the stored format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRecord {
    v: u32,
    /// The holder's name, for people.
    pub(crate) who: String,
    /// The hash of the owner token.
    pub(crate) owner: String,
    /// The capacity of the resource. Stored before the JSON.
    #[serde(skip)]
    pub(crate) capacity: u32,
    pub(crate) weight: u32,
    /// True for a holder, false for a waiter.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) held: bool,
    /// A waiter is asked to show that it lives, by removing this mark (`silence.rs`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) called: bool,
    /// The claim was released with `keep_for`: the resource stays closed until the lease ends.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) kept: bool,
    /// An operator evicts the claim: its lease is not kept alive any more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) evicting: bool,
    /// The ttl that was requested. The etcd lease is longer, because etcd counts whole seconds.
    pub(crate) ttl_ms: u64,
    /// When the claim began to hold or to wait, by the wall clock of its client. For people; nothing is
    /// decided by it.
    pub(crate) since_us: u64,
    /// How often the claim was handed over since it was acquired.
    #[serde(default, skip_serializing_if = "is_zero", rename = "turns")]
    pub(crate) handovers: u32,
    /// An operator asks the holder to finish.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "asked")]
    pub(crate) finish_request: Option<StoredFinishRequest>,
    /// The holder's note in hex, because a note may be any bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// An operator's request that the holder finish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredFinishRequest {
    /// By when, by the operator's wall clock. It is a request only, so a wrong clock cannot end a lease.
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

/// The value of a contender's key, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContenderValue {
    /// A claim of leasehold.
    Claim(ClaimRecord),
    /// A lock of `etcdctl lock` or a Go program. Its value is not kept: it may be a secret.
    Foreign,
    /// A claim in a format that only a newer leasehold can read.
    NewerVersion,
}

impl ClaimRecord {
    /// The record of a claim that waits.
    pub(crate) fn waiting(claim: &Claim, now: WallTime) -> ClaimRecord {
        ClaimRecord {
            v: VERSION,
            who: claim.holder.to_string(),
            owner: hash_owner(claim.owner),
            capacity: claim.share.capacity(),
            weight: claim.share.weight(),
            held: false,
            called: false,
            kept: false,
            evicting: false,
            ttl_ms: millis(claim.place_ttl),
            since_us: now.as_micros(),
            handovers: 0,
            finish_request: None,
            note: None,
        }
    }

    /// The record of a claim that holds.
    pub(crate) fn holding(claim: &Claim, now: WallTime) -> ClaimRecord {
        let note = claim.note.as_deref().map(to_hex);
        ClaimRecord { held: true, ttl_ms: millis(claim.ttl), note, ..ClaimRecord::waiting(claim, now) }
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

    /// The value to store.
    pub(crate) fn to_value(&self) -> String {
        let json = serde_json::to_string(self).expect("plain numbers and texts always serialize");
        format!("{}{json}", capacity_header(self.capacity))
    }

    /// The finish request, with what is left of its time by this client's wall clock.
    pub(crate) fn finish_request(&self, clock: &dyn Clock) -> Option<FinishRequest> {
        let stored = self.finish_request.as_ref()?;
        let left = stored.until_us.saturating_sub(clock.wall().as_micros());
        Some(FinishRequest::new(Duration::from_micros(left), stored.by.as_str(), stored.why.as_str()))
    }

    /// Adds to `held_by` what the record says of the holder.
    pub(crate) fn describe(&self, mut held_by: HeldBy, clock: &dyn Clock) -> HeldBy {
        held_by.held_for = self.since(clock);
        held_by.ttl = Some(self.ttl()).filter(|_| self.held);
        held_by.note = self.note.as_deref().map(|hex| Arc::from(from_hex(hex)));
        held_by.handovers = self.handovers;
        held_by.asked = self.finish_request(clock);
        held_by.evicting = self.evicting;
        held_by.kept = self.kept;
        held_by
    }

    /// How long the claim has held or waited.
    pub(crate) fn since(&self, clock: &dyn Clock) -> Duration {
        Duration::from_micros(clock.wall().as_micros().saturating_sub(self.since_us))
    }

    pub(crate) fn holder(&self) -> Arc<Holder> {
        Arc::new(self.who.parse().unwrap_or_else(|never| match never {}))
    }
}

impl ContenderValue {
    pub(crate) fn parse(bytes: &[u8]) -> ContenderValue {
        let text = String::from_utf8_lossy(bytes);
        let parts = text.split_at_checked(CAPACITY_DIGITS).and_then(|(capacity, rest)| {
            let capacity = u32::from_str_radix(capacity, 16).ok().filter(|capacity| *capacity > 0)?;
            Some((capacity, rest.strip_prefix(' ')?))
        });
        let Some((capacity, json)) = parts else { return ContenderValue::Foreign };
        // The version alone, because the other fields of a newer version may not parse.
        #[derive(Deserialize)]
        struct VersionOnly {
            v: u32,
        }
        match (serde_json::from_str::<VersionOnly>(json), serde_json::from_str::<ClaimRecord>(json)) {
            (Ok(version), _) if version.v > VERSION => ContenderValue::NewerVersion,
            (_, Ok(record)) => ContenderValue::Claim(ClaimRecord { capacity, ..record }),
            _ => ContenderValue::Foreign,
        }
    }
}

/// The first characters of every value with this capacity.
pub(crate) fn capacity_header(capacity: u32) -> String {
    format!("{capacity:08x} ")
}

/// An upper bound of all values with this capacity: `!` is the character after the space of the header.
pub(crate) fn capacity_header_end(capacity: u32) -> String {
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

    fn record() -> ClaimRecord {
        let holder = Arc::new(Holder::new("host", 7, "naïve 🦀"));
        let owner = OwnerToken::from_bytes([1; 16]);
        let share = Share::new(2, 5).unwrap();
        let claim = Claim::new("a/b".parse().unwrap(), owner, share, Duration::from_secs(30), holder);
        ClaimRecord::holding(&claim.with_note(vec![0, 255]), WallTime::from_micros(17))
    }

    #[test]
    fn a_stored_record_reads_back_and_does_not_show_the_owner_token() {
        let record = record();
        let value = record.to_value();
        assert!(value.starts_with(&capacity_header(5)) && value < capacity_header_end(5), "{value}");
        assert_eq!(ContenderValue::parse(value.as_bytes()), ContenderValue::Claim(record));
        assert!(!value.contains(&OwnerToken::from_bytes([1; 16]).reveal()));
    }

    #[test]
    fn the_stored_format_is_stable() {
        let golden = r#"00000005 {"v":1,"who":"7@host naïve 🦀","owner":"#;
        assert!(record().to_value().starts_with(golden), "{}", record().to_value());
        let mut record = record();
        record.handovers = 3;
        record.finish_request = Some(StoredFinishRequest { until_us: 9, by: "a".into(), why: "b".into() });
        let golden = r#""since_us":17,"turns":3,"asked":{"until_us":9,"by":"a","why":"b"},"note":"00ff"}"#;
        assert!(record.to_value().ends_with(golden), "{}", record.to_value());
    }

    #[test]
    fn any_other_value_is_foreign_and_a_newer_version_is_recognised() {
        for text in ["", "leader-7", "00000001", "00000000 {}", "0000001 {}", "00000001 {\"v\":1}"] {
            assert_eq!(ContenderValue::parse(text.as_bytes()), ContenderValue::Foreign);
        }
        let newer = ContenderValue::parse(b"00000001 {\"v\":2,\"new\":true}");
        assert_eq!(newer, ContenderValue::NewerVersion);
        assert_eq!(ContenderValue::parse(&[0xff, 0xfe]), ContenderValue::Foreign);
    }
}
