//! The control node of a resource: a pause, or another capacity, that an operator has set.
//!
//! It is a persistent child of the resource's folder, so it outlives the operator's session. Every grant
//! lists the folder anyway and sees whether the node exists; only then is it read (ADR 0025). A client that
//! finds that it has no meaning any more deletes it.

use std::time::Duration;

use leasehold_core::Resource;
use serde::{Deserialize, Serialize};
use zookeeper_client::{CreateMode, CreateOptions};

use crate::{error::StoreError, paths, session::Session};

/// The data of a control node. The names in JSON are a stored format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ControlNode {
    /// Replaces the capacity in the names of the contenders.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) capacity: Option<u32>,
    /// The sort key of the last contender that held the resource when the operator changed this node.
    /// Contenders up to this key keep the resource, so that neither a pause nor a smaller capacity takes it
    /// from a holder.
    #[serde(rename = "through", skip_serializing_if = "Option::is_none", default)]
    pub(crate) last_holder_key: Option<String>,
    /// The end of the pause by the servers' clock, in milliseconds since 1970. No contender is granted before
    /// it.
    #[serde(rename = "paused_until", skip_serializing_if = "Option::is_none", default)]
    pub(crate) paused_until_ms: Option<i64>,
    /// How long the pause still lasts. Computed when the node is read.
    #[serde(skip)]
    pub(crate) paused_for: Option<Duration>,
    /// The version of the node that was read.
    #[serde(skip)]
    pub(crate) version: i32,
    /// The mzxid of the node that was read.
    #[serde(skip)]
    pub(crate) mzxid: i64,
}

impl ControlNode {
    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until_ms.is_some()
    }

    pub(crate) fn pause(&mut self, until_ms: i64) {
        self.paused_until_ms = Some(until_ms);
    }

    pub(crate) fn resume(&mut self) {
        self.paused_until_ms = None;
    }

    /// Whether nothing is set any more, so that the node can be deleted.
    pub(crate) fn is_empty(&self) -> bool {
        self.capacity.is_none() && self.paused_until_ms.is_none()
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and texts can be written as JSON")
    }

    /// Reads the data of a control node. A pause that has ended is left out.
    fn from_bytes(bytes: &[u8], version: i32, mzxid: i64, server_now_ms: i64) -> ControlNode {
        // Data that cannot be read has no effect: otherwise a newer version of leasehold could block a
        // resource forever.
        let mut control: ControlNode = serde_json::from_slice(bytes).unwrap_or_default();
        (control.version, control.mzxid) = (version, mzxid);
        let left_ms = control.paused_until_ms.map(|until_ms| until_ms - server_now_ms);
        match left_ms.and_then(|left_ms| u64::try_from(left_ms).ok()).filter(|left_ms| *left_ms > 0) {
            Some(left_ms) => control.paused_for = Some(Duration::from_millis(left_ms)),
            None => control.paused_until_ms = None,
        }
        control
    }
}

impl Session {
    /// Reads the control node of a resource. `None` if it does not exist or has no meaning any more.
    pub(crate) async fn read_control_node(
        &self,
        resource: &Resource,
    ) -> Result<Option<ControlNode>, StoreError> {
        let (path, server_now_ms) = (paths::control_node(resource), self.server_now_ms());
        let Some((bytes, stat)) = self.read_node(&path).await? else { return Ok(None) };
        let control = ControlNode::from_bytes(&bytes, stat.version, stat.mzxid, server_now_ms);
        if control.is_empty() {
            // Best effort: an empty control node has no effect, and the next client that reads it tries
            // again.
            drop(self.client.delete(&path, Some(stat.version)).await);
            return Ok(None);
        }
        Ok(Some(control))
    }

    /// Removes the operator's capacity from the control node, because no contender is left that uses the
    /// resource with it.
    pub(crate) async fn clear_capacity(&self, resource: &Resource, control: &ControlNode) {
        let path = paths::control_node(resource);
        let rest = ControlNode { capacity: None, last_holder_key: None, ..control.clone() };
        // Best effort: if another client has changed the node, that client decides.
        if rest.is_empty() {
            drop(self.client.delete(&path, Some(control.version)).await);
        } else {
            drop(self.client.set_data(&path, &rest.to_bytes(), Some(control.version)).await);
        }
    }

    /// How a control node is created: persistent, because it must outlive the operator's session.
    pub(crate) fn control_node_options(&self) -> CreateOptions<'static> {
        self.options(CreateMode::Persistent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_by_the_servers_clock() {
        let mut control = ControlNode { capacity: Some(3), ..ControlNode::default() };
        control.pause(5_000);
        let read_at = |now_ms| ControlNode::from_bytes(&control.to_bytes(), 4, 7, now_ms);
        assert_eq!(read_at(4_000).paused_for, Some(Duration::from_secs(1)));
        assert!(!read_at(5_000).is_paused() && !read_at(5_000).is_empty());
        assert!(ControlNode::from_bytes(b"what is this?", 0, 0, 0).is_empty());
    }

    #[test]
    fn the_stored_form_does_not_change() {
        let mut control = ControlNode { capacity: Some(3), ..ControlNode::default() };
        control.last_holder_key = Some("0000000007".to_owned());
        control.pause(5_000);
        let stored = br#"{"capacity":3,"through":"0000000007","paused_until":5000}"#;
        assert_eq!(control.to_bytes(), stored);
    }
}
