//! What an operator said to a resource as a whole: a pause, another capacity.

use std::time::Duration;

use leasehold_core::{Resource, Timestamp};
use serde::{Deserialize, Serialize};
use zookeeper_client::{CreateMode, Error as Driver};

use crate::{
    error::Fault,
    names::{CONTROL, folder},
    session::Session,
};

/// The data of the control node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Control {
    /// Replaces what the contenders' names say.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) capacity: Option<u32>,
    /// Whoever sorts up to here held when this was said, and goes on holding.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) through: Option<String>,
    /// Nobody is granted until then, by the servers' clock, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) paused_until: Option<i64>,
    #[serde(skip)]
    pub(crate) paused_for: Option<Duration>,
    #[serde(skip)]
    pub(crate) version: i32,
    #[serde(skip)]
    pub(crate) mzxid: i64,
}

impl Control {
    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// How long the pause lasts still.
    pub(crate) fn paused_for(&self) -> Option<Duration> {
        self.paused_for
    }

    pub(crate) fn pause(&mut self, until: i64) {
        self.paused_until = Some(until);
    }

    pub(crate) fn resume(&mut self) {
        self.paused_until = None;
    }

    /// Whether it says nothing any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.capacity.is_none() && self.paused_until.is_none()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and texts can be written")
    }

    /// What stands in the node, with a pause that is over left out.
    fn settled(bytes: &[u8], version: i32, mzxid: i64, server_now: i64) -> Control {
        // Whatever cannot be read says nothing: an operator's order of a version to come must not close a resource.
        let mut control: Control = serde_json::from_slice(bytes).unwrap_or_default();
        (control.version, control.mzxid) = (version, mzxid);
        let left = control.paused_until.map(|until| until - server_now);
        match left.and_then(|left| u64::try_from(left).ok()).filter(|left| *left > 0) {
            Some(left) => control.paused_for = Some(Duration::from_millis(left)),
            None => control.paused_until = None,
        }
        control
    }
}

pub(crate) fn path(resource: &Resource) -> String {
    format!("{}/{CONTROL}", folder(resource))
}

impl Session {
    /// What an operator said, if that still says something.
    pub(crate) async fn control(
        &self,
        resource: &Resource,
        now: Timestamp,
    ) -> Result<Option<Control>, Fault> {
        match self.client.get_data(&path(resource)).await {
            Ok((bytes, stat)) => {
                let control = Control::settled(&bytes, stat.version, stat.mzxid, self.server_millis(now));
                if control.is_empty() {
                    // Over. Whoever sees it first clears it away; nothing depends on that.
                    drop(self.client.delete(&path(resource), Some(stat.version)).await);
                    return Ok(None);
                }
                Ok(Some(control))
            }
            Err(Driver::NoNode) => Ok(None),
            Err(error) => Err(Fault::of(error)),
        }
    }

    /// Nobody is there: the capacity that an operator gave to those who were has no meaning any more.
    pub(crate) async fn forget_capacity(&self, resource: &Resource, control: &Control) {
        let path = path(resource);
        let rest = Control { capacity: None, through: None, ..control.clone() };
        if rest.is_empty() {
            drop(self.client.delete(&path, Some(control.version)).await);
        } else {
            drop(self.client.set_data(&path, &rest.to_bytes(), Some(control.version)).await);
        }
    }

    /// The mode in which it is written: it outlives the operator's session, and is cleared away when it is over.
    pub(crate) const CONTROL_MODE: CreateMode = CreateMode::Persistent;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_by_the_servers_clock() {
        let mut control = Control { capacity: Some(3), ..Control::default() };
        control.pause(5_000);
        let seen = |now| Control::settled(&control.to_bytes(), 4, 7, now);
        assert_eq!(seen(4_000).paused_for(), Some(Duration::from_secs(1)));
        assert!(!seen(5_000).is_paused() && !seen(5_000).is_empty());
        assert!(Control::settled(b"what is this?", 0, 0, 0).is_empty());
    }
}
