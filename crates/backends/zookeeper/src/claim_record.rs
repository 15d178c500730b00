//! The data of a contender's node: JSON that people and other clients read. The field names in JSON are a
//! stored format.

use std::{sync::Arc, time::Duration};

use leasehold_core::{Error, ErrorKind, FencingToken, FinishRequest, HeldBy, Holder, OwnerToken, ValueHash};
use serde::{Deserialize, Serialize};
use zookeeper_client::Stat;

/// What Curator's `Revoker` writes into a node to ask its holder to release.
pub(crate) const CURATOR_REVOKE: &[u8] = b"__REVOKE__";

/// The data of a contender's node. Fields at their default are not written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRecord {
    /// `pid@host label`.
    pub(crate) holder: String,
    /// After how many milliseconds without a heartbeat the servers have ended the session at the latest.
    /// `None` in a node of another program.
    #[serde(rename = "silence_ms", skip_serializing_if = "Option::is_none", default)]
    session_expiry_ms: Option<u64>,
    /// The holder's note, in hex.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    note: Option<String>,
    /// How many times in a row the lease was handed over within a process to get here.
    #[serde(rename = "turns", skip_serializing_if = "is_zero", default)]
    pub(crate) handovers: u32,
    #[serde(rename = "asked", skip_serializing_if = "Option::is_none", default)]
    pub(crate) finish_request: Option<StoredFinishRequest>,
    /// An operator evicts the holder when its lease expires, so it is not renewed any more.
    #[serde(skip_serializing_if = "is_false", default)]
    pub(crate) evicting: bool,
    /// The owner token of the claim that took the node over. `None` if it still belongs to the owner in its
    /// name.
    #[serde(rename = "heir", skip_serializing_if = "Option::is_none", default)]
    successor: Option<String>,
    /// The successor took over a granted node with a lower weight. Its token is then the czxid of its marker,
    /// because the czxid of the node is the token of the predecessor.
    #[serde(skip_serializing_if = "is_false", default)]
    pub(crate) downgraded: bool,
    /// The weight, if it is lower than the name of the node says.
    #[serde(rename = "weight", skip_serializing_if = "Option::is_none", default)]
    pub(crate) lowered_weight: Option<u32>,
    /// The data is not a record of leasehold: its hash. The data itself is not kept, it may be a secret.
    #[serde(skip)]
    pub(crate) foreign: Option<ForeignData>,
}

/// What is known of data that another program wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignData {
    pub(crate) hash: ValueHash,
    /// Curator's request to release. It may have been written into a node of leasehold, too.
    pub(crate) is_revoke_request: bool,
}

/// The stored form of an operator's request that the holder finish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredFinishRequest {
    pub(crate) by: String,
    pub(crate) why: String,
    /// The deadline by the servers' clock, in milliseconds since 1970.
    #[serde(rename = "until")]
    pub(crate) deadline_ms: i64,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}
fn is_false(flag: &bool) -> bool {
    !flag
}

impl ClaimRecord {
    pub(crate) fn new(holder: &Holder, session_expiry: Duration, note: Option<&[u8]>) -> ClaimRecord {
        let session_expiry_ms = u64::try_from(session_expiry.as_millis()).ok();
        let mut record =
            ClaimRecord { holder: holder.to_string(), session_expiry_ms, ..ClaimRecord::default() };
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

    pub(crate) fn set_successor(&mut self, owner: OwnerToken) {
        self.successor = Some(owner.reveal());
    }

    /// The owner that took the node over, if there is one.
    pub(crate) fn successor(&self) -> Option<OwnerToken> {
        self.successor.as_ref()?.parse().ok()
    }

    /// Whether the node still belongs to this owner. `took_over` says that the owner got it by taking it
    /// over, not by creating it.
    pub(crate) fn belongs_to(&self, owner: OwnerToken, took_over: bool) -> bool {
        self.successor().is_none_or(|successor| took_over && successor == owner)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and texts can be written as JSON")
    }

    /// Reads the data of a node.
    pub(crate) fn from_bytes(bytes: &[u8]) -> ClaimRecord {
        serde_json::from_slice(bytes).unwrap_or_else(|_| {
            let is_revoke_request = bytes == CURATOR_REVOKE;
            let revoked =
                || StoredFinishRequest { by: "curator".into(), why: "revoked".into(), deadline_ms: 0 };
            ClaimRecord {
                finish_request: is_revoke_request.then(revoked),
                foreign: Some(ForeignData { hash: ValueHash::of(bytes), is_revoke_request }),
                ..ClaimRecord::default()
            }
        })
    }

    /// The operator's request that the holder finish, with the time that is left.
    pub(crate) fn finish_request(&self, server_now_ms: i64) -> Option<FinishRequest> {
        let StoredFinishRequest { by, why, deadline_ms } = self.finish_request.as_ref()?;
        let left = u64::try_from(deadline_ms - server_now_ms).unwrap_or(0);
        Some(FinishRequest::new(Duration::from_millis(left), by.as_str(), why.as_str()))
    }

    /// After how long without a heartbeat the session of this node has ended at the latest.
    fn session_expiry(&self, longest: Duration) -> Duration {
        self.session_expiry_ms.map_or(longest, Duration::from_millis)
    }

    /// The weight of the contender, given the weight in its name.
    pub(crate) fn weight(&self, named_weight: u32) -> u32 {
        self.lowered_weight.map_or(named_weight, |weight| weight.min(named_weight))
    }

    /// Describes the holder of this node to other clients.
    ///
    /// `longest_expiry` is the longest session that the servers grant: it is assumed for a holder of another
    /// program.
    pub(crate) fn to_held_by(
        &self,
        stat: &Stat,
        token: FencingToken,
        weight: u32,
        server_now_ms: i64,
        longest_expiry: Duration,
    ) -> HeldBy {
        let holder = self.holder.parse().unwrap_or_else(|never: std::convert::Infallible| match never {});
        let mut held_by = HeldBy::new(Arc::new(holder), token, weight);
        held_by.held_for = Duration::from_millis(u64::try_from(server_now_ms - stat.ctime).unwrap_or(0));
        // Counted from now, because no client can know when the servers last heard from another session.
        held_by.remaining = self.session_expiry(longest_expiry);
        (held_by.note, held_by.handovers, held_by.evicting) = (self.note(), self.handovers, self.evicting);
        held_by.asked = self.finish_request(server_now_ms);
        held_by
    }
}

/// Turns a zxid into a fencing token. Zxids grow with every change in the ensemble, also across changes of
/// the leader.
///
/// # Errors
/// `Corrupt` from 2^53 on. The upper 32 bits of a zxid count leader elections, so that is two million elections
/// away.
pub(crate) fn token_from_zxid(zxid: i64) -> Result<FencingToken, Error> {
    u64::try_from(zxid).ok().and_then(|zxid| FencingToken::new(zxid).ok()).ok_or_else(|| {
        let message = format!(
            "the zxid {zxid} of the ensemble is not a number below 2^53, so it cannot be a fencing token: \
             move the leases to a new ensemble"
        );
        Error::new(ErrorKind::Corrupt, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let mut record =
            ClaimRecord::new(&Holder::new("h", 7, "a \"b\""), Duration::from_secs(6), Some(&[0, 255]));
        record.set_successor(OwnerToken::from_bytes([9; 16]));
        record.finish_request =
            Some(StoredFinishRequest { by: "ops".into(), why: "naïve\n".into(), deadline_ms: 1_500 });
        let read = ClaimRecord::from_bytes(&record.to_bytes());
        assert_eq!((&read, read.successor()), (&record, Some(OwnerToken::from_bytes([9; 16]))));
        assert_eq!(read.note().as_deref(), Some([0, 255].as_slice()));
        assert_eq!(read.finish_request(1_000).unwrap().within, Duration::from_millis(500));
        assert_eq!(read.session_expiry(Duration::MAX), Duration::from_secs(6));
        assert_eq!(read.finish_request(9_000).unwrap().within, Duration::ZERO);
    }

    fn plain_record() -> ClaimRecord {
        ClaimRecord::new(&Holder::new("h", 7, "job"), Duration::from_secs(12), None)
    }

    #[test]
    fn the_stored_form_does_not_change() {
        let plain = plain_record();
        assert_eq!(plain.to_bytes(), br#"{"holder":"7@h job","silence_ms":12000}"#);
        let mut full = ClaimRecord::new(&Holder::new("h", 7, "job"), Duration::from_secs(12), Some(b"n"));
        full.set_successor(OwnerToken::from_bytes([9; 16]));
        full.finish_request =
            Some(StoredFinishRequest { by: "ops".into(), why: "upgrade".into(), deadline_ms: 1_500 });
        (full.handovers, full.evicting, full.downgraded, full.lowered_weight) = (3, true, true, Some(1));
        let stored = r#"{"holder":"7@h job","silence_ms":12000,"note":"6e","turns":3,"#.to_owned()
            + r#""asked":{"by":"ops","why":"upgrade","until":1500},"evicting":true,"#
            + r#""heir":"09090909090909090909090909090909","downgraded":true,"weight":1}"#;
        assert_eq!(String::from_utf8(full.to_bytes()).unwrap(), stored);
    }

    #[test]
    fn data_of_another_program_is_not_kept() {
        let foreign = ClaimRecord::from_bytes(b"192.168.0.7");
        assert!(!format!("{foreign:?}").contains("192") && foreign.foreign.is_some());
        assert!(plain_record().foreign.is_none());
        assert!(ClaimRecord::from_bytes(&[0xff, 0xfe]).successor().is_none());
        assert_eq!(ClaimRecord::from_bytes(b"__REVOKE__").finish_request(0).unwrap().by.as_ref(), "curator");
        assert!(ClaimRecord::from_bytes(b"").finish_request.is_none());
        let longest = Duration::from_secs(42);
        assert_eq!(ClaimRecord::from_bytes(b"192.168.0.7").session_expiry(longest), longest);
    }

    #[test]
    fn a_zxid_is_a_token_up_to_its_limit() {
        assert_eq!(token_from_zxid((3 << 32) + 5).unwrap().get(), (3 << 32) + 5);
        assert_eq!(token_from_zxid(1 << 53).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(token_from_zxid(-1).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
