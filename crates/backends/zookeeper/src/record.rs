//! What stands in a contender's node, for people and for whoever waits: JSON.

use std::{sync::Arc, time::Duration};

use leasehold_core::{Error, ErrorKind, FencingToken, FinishRequest, HeldBy, Holder, OwnerToken};
use serde::{Deserialize, Serialize};
use zookeeper_client::Stat;

/// What Curator's `Revoker` writes into a node whose holder should let go.
const REVOKE: &[u8] = b"__REVOKE__";

/// The data of a contender's node. Fields that are not needed are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// `pid@host label`.
    pub(crate) holder: String,
    /// How long its session may be silent until everyone sees that it is over, in milliseconds. A stranger does not say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    silence_ms: Option<u64>,
    /// In hex.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    note: Option<String>,
    #[serde(skip_serializing_if = "is_zero", default)]
    pub(crate) turns: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) asked: Option<Wish>,
    #[serde(skip_serializing_if = "is_false", default)]
    pub(crate) evicting: bool,
    /// Who took it over, if not the owner in the node's name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    heir: Option<String>,
    /// A seat that was taken over, not a place: its token is the heir's.
    #[serde(skip_serializing_if = "is_false", default)]
    pub(crate) downgraded: bool,
    /// Less than the name says.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) weight: Option<u32>,
}

/// What an operator asked of a holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wish {
    pub(crate) by: String,
    pub(crate) why: String,
    /// By the servers' clock, in milliseconds since 1970.
    pub(crate) until: i64,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
fn is_false(flag: &bool) -> bool {
    !flag
}

impl Record {
    pub(crate) fn new(holder: &Holder, silence: Duration, note: Option<&[u8]>) -> Record {
        let silence_ms = u64::try_from(silence.as_millis()).ok();
        let mut record = Record { holder: holder.to_string(), silence_ms, ..Record::default() };
        record.set_note(note);
        record
    }

    pub(crate) fn set_note(&mut self, note: Option<&[u8]>) {
        self.note = note.map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect());
    }

    fn note(&self) -> Option<Arc<[u8]>> {
        let text = self.note.as_ref()?;
        let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        (0..text.len()).step_by(2).map(byte).collect()
    }

    pub(crate) fn set_heir(&mut self, owner: OwnerToken) {
        self.heir = Some(owner.reveal());
    }

    /// Whether the node is an owner's still, which it came to by its name or as an heir.
    pub(crate) fn is_of(&self, owner: OwnerToken, is_heir: bool) -> bool {
        self.heir().is_none_or(|heir| is_heir && heir == owner)
    }

    /// Whose it is, if not that of the owner in the node's name.
    pub(crate) fn heir(&self) -> Option<OwnerToken> {
        self.heir.as_ref()?.parse().ok()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and texts can be written")
    }

    /// Reads what stands in a node. What we did not write is a stranger's word about itself.
    pub(crate) fn read(bytes: &[u8]) -> Record {
        if bytes == REVOKE {
            let wish = Wish { by: "curator".into(), why: "revoked".into(), until: 0 };
            return Record { asked: Some(wish), ..Record::default() };
        }
        serde_json::from_slice(bytes).unwrap_or_else(|_| {
            let label: String = String::from_utf8_lossy(bytes).chars().take(Holder::TEXT_MAX).collect();
            Record { holder: Holder::new("", 0, &label).to_string(), ..Record::default() }
        })
    }

    pub(crate) fn asked(&self, server_now: i64) -> Option<FinishRequest> {
        let Wish { by, why, until } = self.asked.as_ref()?;
        let left = u64::try_from(until - server_now).unwrap_or(0);
        Some(FinishRequest::new(Duration::from_millis(left), by.as_str(), why.as_str()))
    }

    /// How long its session may be silent; of a stranger's, at the most.
    fn silence(&self, most: Duration) -> Duration {
        self.silence_ms.map_or(most, Duration::from_millis)
    }

    /// As others see the holder. What remains is counted from now: nobody can tell when its session was last heard.
    pub(crate) fn seen(
        &self,
        stat: &Stat,
        token: FencingToken,
        weight: u32,
        server_now: i64,
        silence_max: Duration,
    ) -> HeldBy {
        let holder = self.holder.parse().unwrap_or_else(|never: std::convert::Infallible| match never {});
        let mut by = HeldBy::new(Arc::new(holder), token, weight);
        by.held_for = Duration::from_millis(u64::try_from(server_now - stat.ctime).unwrap_or(0));
        by.remaining = self.silence(silence_max);
        (by.note, by.handovers, by.evicting) = (self.note(), self.turns, self.evicting);
        by.asked = self.asked(server_now);
        by
    }
}

/// A zxid as a token: it grows with every change anywhere in the ensemble, leader changes included.
///
/// # Errors
/// `Limit` past 2^53, which is two million leader changes away.
pub(crate) fn token(zxid: i64) -> Result<FencingToken, Error> {
    u64::try_from(zxid).ok().and_then(|zxid| FencingToken::new(zxid).ok()).ok_or_else(|| {
        Error::new(
            ErrorKind::Limit,
            "the ensemble has changed leaders so often that no token is left below 2^53",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let mut record =
            Record::new(&Holder::new("h", 7, "a \"b\""), Duration::from_secs(6), Some(&[0, 255]));
        record.set_heir(OwnerToken::from_bytes([9; 16]));
        record.asked = Some(Wish { by: "ops".into(), why: "naïve\n".into(), until: 1_500 });
        let read = Record::read(&record.to_bytes());
        assert_eq!((&read, read.heir()), (&record, Some(OwnerToken::from_bytes([9; 16]))));
        assert_eq!(read.note().as_deref(), Some([0, 255].as_slice()));
        assert_eq!(read.asked(1_000).unwrap().within, Duration::from_millis(500));
        assert_eq!(read.silence(Duration::MAX), Duration::from_secs(6));
        assert_eq!(read.asked(9_000).unwrap().within, Duration::ZERO);
    }

    #[test]
    fn a_stranger_speaks_for_itself() {
        assert!(Record::read(b"192.168.0.7").holder.contains("192.168.0.7"));
        assert!(Record::read(&[0xff, 0xfe]).heir().is_none());
        assert_eq!(Record::read(b"__REVOKE__").asked(0).unwrap().by.as_ref(), "curator");
        assert!(Record::read(b"").asked.is_none());
        assert_eq!(Record::read(b"192.168.0.7").silence(Duration::from_secs(42)), Duration::from_secs(42));
    }

    #[test]
    fn a_zxid_is_a_token_up_to_its_limit() {
        assert_eq!(token((3 << 32) + 5).unwrap().get(), (3 << 32) + 5);
        assert_eq!(token(1 << 53).unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!(token(-1).unwrap_err().kind(), ErrorKind::Limit);
    }
}
