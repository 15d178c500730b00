//! `serde` for the types of this crate: see `leasehold_core::serialize` for the forms.

use leasehold_core::serialize::note_text;
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{lease::State, primitives::Leader};

impl Serialize for State {
    /// `{"state": "held"}`; `left_ms` if it is doubtful, `reason` if it has ended.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (name, left, reason) = match self {
            State::Held => ("held", None, None),
            State::Doubtful { left } => ("doubtful", Some(left), None),
            State::Ended(reason) => ("ended", None, Some(reason)),
        };
        let mut fields = to.serialize_struct("State", 3)?;
        fields.serialize_field("state", name)?;
        let left = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        fields.serialize_field("left_ms", &left)?;
        fields.serialize_field("reason", &reason)?;
        fields.end()
    }
}

impl Serialize for Leader {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Leader", 3)?;
        fields.serialize_field("token", &self.token)?;
        fields.serialize_field("holder", &*self.holder)?;
        fields.serialize_field("value", &self.note.as_deref().map(note_text))?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use leasehold_core::{EndReason, FencingToken, Holder};
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn a_state_and_a_leader_have_a_form() {
        let doubtful = State::Doubtful { left: Duration::from_secs(2) };
        assert_eq!(
            to_value([State::Held, doubtful, State::Ended(EndReason::Released)]).unwrap(),
            json!([
                { "state": "held", "left_ms": null, "reason": null },
                { "state": "doubtful", "left_ms": 2000, "reason": null },
                { "state": "ended", "left_ms": null, "reason": "released" },
            ])
        );
        let (holder, note) = (Arc::new(Holder::new("vm", 12, "")), Some(b"http://a".as_slice().into()));
        let leader = Leader { token: FencingToken::new(3).unwrap(), holder, note };
        assert_eq!(
            to_value(leader).unwrap(),
            json!({ "token": 3, "holder": { "host": "vm", "pid": 12, "label": "", "subject": "" }, "value": "http://a" })
        );
    }
}
