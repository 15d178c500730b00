//! Reads a resource from the servers: its contenders, its control node, and the data of the contenders'
//! nodes.
//!
//! Each read is one request of several operations, which ZooKeeper answers from one state. The folder's data
//! is part of each read: it is the key of the resource, and shows that a reply belongs to this resource (ADR
//! 0033).

use std::sync::Arc;

use leasehold_core::{
    Blocked, ClaimRef, FencingToken, ForeignLock, HeldBy, Holder, QueueEntry, Resource, ValueHash,
};
use zookeeper_client::{Error as Driver, MultiReadResult, Stat};

use crate::{
    claim_record::{ClaimRecord, token_from_zxid},
    contender::{Admission, Contender, ContenderList},
    control_node::ControlNode,
    error::StoreError,
    paths::{self, folder},
    session::Session,
};

/// How many nodes are read in one request.
pub(crate) const NODES_PER_READ: usize = 100;
/// How many contenders are read to learn lowered weights. Contenders further back cannot be granted next
/// anyway.
const LOWERED_WEIGHTS_MAX: usize = 2 * NODES_PER_READ;

/// The contenders of a resource and its control node.
pub(crate) struct ResourceView {
    pub(crate) list: ContenderList,
    pub(crate) control: Option<ControlNode>,
    /// The pzxid of the folder: the zxid of the last time a child was created or deleted.
    pub(crate) pzxid: i64,
    /// The version of the folder. It changes with every transaction that gives a claim a contender.
    pub(crate) folder_version: i32,
}

impl ResourceView {
    pub(crate) fn admission(&self) -> Admission {
        self.list.admission(self.control.as_ref())
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.control.as_ref().is_some_and(ControlNode::is_paused)
    }

    /// The capacity that the first `count` contenders use. `None` if `count` is 0.
    pub(crate) fn capacity_of_first(&self, count: usize) -> Option<u32> {
        self.list.capacity_of_first(count, self.control.as_ref())
    }
}

/// Whether the data of a folder names another resource: then the reply belongs to another request.
///
/// A folder that Curator created, or that an early version wrote to last, names no resource and passes.
fn names_another_resource(data: &[u8], resource: &Resource) -> bool {
    let key = std::str::from_utf8(data).ok().filter(|key| Resource::from_key(key).is_ok());
    key.is_some_and(|key| key != resource.key())
}

/// A contender's node as it was read.
pub(crate) struct ContenderNode {
    /// Its position in the list from which it was read.
    pub(crate) position: usize,
    pub(crate) record: ClaimRecord,
    pub(crate) stat: Stat,
}

impl Session {
    /// Forgets a local claim whose node is not among the contenders: another session has deleted it. Whether
    /// that was so.
    pub(crate) fn forget_if_gone(&self, claim: &ClaimRef, view: Option<&ResourceView>) -> bool {
        let exists = |node: &str| view.is_some_and(|view| view.list.position(node).is_some());
        self.claims.remove_if(claim, |local| !exists(&local.node))
    }

    /// Lists the contenders of a resource: one request, and one more if there is a control node. `None` if
    /// the resource has no folder.
    pub(crate) async fn view(&self, resource: &Resource) -> Result<Option<ResourceView>, StoreError> {
        self.view_with_nodes(resource, &[]).await.map(|(view, _)| view)
    }

    /// The same, and the data of these nodes, in the same request. `None` for a node that does not exist.
    pub(crate) async fn view_with_nodes(
        &self,
        resource: &Resource,
        paths: &[String],
    ) -> Result<(Option<ResourceView>, Vec<Option<(Vec<u8>, Stat)>>), StoreError> {
        let (folder, mut reader) = (folder(resource), self.client.new_multi_reader());
        reader.add_get_data(&folder)?;
        reader.add_get_children(&folder)?;
        for path in paths {
            reader.add_get_data(path)?;
        }
        let mut replies = reader.commit().await?.into_iter();
        let listed = match (replies.next(), replies.next()) {
            (Some(MultiReadResult::Data { data, stat }), Some(MultiReadResult::Children { children }))
                if !names_another_resource(&data, resource) =>
            {
                Some((children, stat))
            }
            (Some(MultiReadResult::Error { err: Driver::NoNode }), Some(_)) => None,
            (Some(MultiReadResult::Error { err }), _) => return Err(StoreError::from(err)),
            _ => return Err(StoreError::foreign_reply()),
        };
        let node = |reply: MultiReadResult| match reply {
            MultiReadResult::Data { data, stat } => Ok(Some((data, stat))),
            MultiReadResult::Error { err: Driver::NoNode } => Ok(None),
            MultiReadResult::Error { err } => Err(StoreError::from(err)),
            _ => Err(StoreError::foreign_reply()),
        };
        let nodes: Vec<_> = replies.map(node).collect::<Result<_, _>>()?;
        if nodes.len() != paths.len() {
            return Err(StoreError::foreign_reply());
        }
        let Some((children, stat)) = listed else { return Ok((None, nodes)) };
        let list = ContenderList::parse(children)?;
        let control = if list.has_control_node { self.read_control_node(resource).await? } else { None };
        let view = ResourceView { list, control, pzxid: stat.pzxid, folder_version: stat.version };
        Ok((Some(view), nodes))
    }

    /// The same with lowered weights, which the names do not show: one more request if any contender weighs
    /// more than 1.
    pub(crate) async fn view_with_weights(
        &self,
        resource: &Resource,
    ) -> Result<Option<ResourceView>, StoreError> {
        let Some(mut view) = self.view(resource).await? else { return Ok(None) };
        self.add_weights(resource, &mut view).await?;
        Ok(Some(view))
    }

    /// Adds the lowered weights to a view.
    pub(crate) async fn add_weights(
        &self,
        resource: &Resource,
        view: &mut ResourceView,
    ) -> Result<(), StoreError> {
        let all = view.list.contenders.len();
        self.read_lowered_weights(resource, &mut view.list, all, None).await
    }

    /// Reads which of the first `count` contenders weigh less than their names say.
    ///
    /// If there is a `witness`, the reply must contain this contender: see [`Session::read_with_witness`].
    pub(crate) async fn read_lowered_weights(
        &self,
        resource: &Resource,
        list: &mut ContenderList,
        count: usize,
        witness: Option<&str>,
    ) -> Result<(), StoreError> {
        // A weight of 1 cannot be lowered.
        let is_heavy = |position: &usize| list.contenders[*position].share.weight() > 1;
        let heavy: Vec<_> = (0..count).filter(is_heavy).take(LOWERED_WEIGHTS_MAX).collect();
        for contender in self.read_with_witness(resource, list, &heavy, witness).await? {
            if let Some(weight) = contender.record.lowered_weight {
                let name = list.contenders[contender.position].name.clone();
                list.lower_weight(&name, weight);
            }
        }
        Ok(())
    }

    /// Reads the nodes of the contenders at these positions. Nodes that do not exist any more are left out.
    pub(crate) async fn read_contenders(
        &self,
        resource: &Resource,
        list: &ContenderList,
        positions: &[usize],
    ) -> Result<Vec<ContenderNode>, StoreError> {
        self.read_with_witness(resource, list, positions, None).await
    }

    /// The same for a read that a grant may depend on. The request also lists the folder, and the list must
    /// contain the `witness`, the contender of the claim that asks.
    ///
    /// So the reply belongs to this folder and is not older than the contender, even if the folder's data
    /// names no resource.
    async fn read_with_witness(
        &self,
        resource: &Resource,
        list: &ContenderList,
        positions: &[usize],
        witness: Option<&str>,
    ) -> Result<Vec<ContenderNode>, StoreError> {
        let mut nodes = Vec::with_capacity(positions.len());
        for positions in positions.chunks(NODES_PER_READ) {
            let mut replies = self.send_read(resource, list, positions, witness.is_some()).await?;
            if let Some(witness) = witness {
                let listed = replies.pop();
                let contains = |children: &[String]| children.iter().any(|child| child == witness);
                if !matches!(listed, Some(MultiReadResult::Children { children }) if contains(&children)) {
                    return Err(StoreError::foreign_reply());
                }
            }
            let is_another = |reply: &MultiReadResult| match reply {
                MultiReadResult::Data { data, .. } => names_another_resource(data, resource),
                _ => false,
            };
            if replies.len() != 1 + positions.len() || is_another(&replies[0]) {
                return Err(StoreError::foreign_reply());
            }
            for (&position, reply) in positions.iter().zip(replies.into_iter().skip(1)) {
                if let MultiReadResult::Data { data, stat } = reply {
                    nodes.push(ContenderNode { position, record: ClaimRecord::from_bytes(&data), stat });
                }
            }
        }
        Ok(nodes)
    }

    /// One request: the folder's data, then the nodes at these positions, then the children of the folder if
    /// `lists_children`.
    async fn send_read(
        &self,
        resource: &Resource,
        list: &ContenderList,
        positions: &[usize],
        lists_children: bool,
    ) -> Result<Vec<MultiReadResult>, StoreError> {
        let (folder, mut reader) = (folder(resource), self.client.new_multi_reader());
        reader.add_get_data(&folder)?;
        for &position in positions {
            reader.add_get_data(&format!("{folder}/{}", list.contenders[position].name))?;
        }
        if lists_children {
            reader.add_get_children(&folder)?;
        }
        Ok(reader.commit().await?)
    }

    /// The fencing token of the claim that has this contender.
    pub(crate) async fn token_of(
        &self,
        resource: &Resource,
        record: &ClaimRecord,
        stat: &Stat,
    ) -> Result<FencingToken, StoreError> {
        if let (true, Some(owner)) = (record.downgraded, record.successor()) {
            // The czxid of the node is the token of the predecessor. The successor's marker was created by
            // the takeover.
            let claim = ClaimRef { resource: resource.clone(), owner };
            if let Some(stat) = self.client.check_stat(&paths::marker(&claim)).await? {
                return Ok(token_from_zxid(stat.czxid)?);
            }
        }
        Ok(token_from_zxid(stat.czxid)?)
    }

    /// Whether another program has created this contender. A node of leasehold in which Curator's `Revoker` has
    /// replaced the record is known by its marker.
    pub(crate) async fn is_foreign(
        &self,
        resource: &Resource,
        contender: &Contender,
        record: &ClaimRecord,
    ) -> Result<bool, StoreError> {
        match (record.foreign, contender.owner) {
            (None, _) => Ok(false),
            (Some(data), Some(owner)) if data.is_revoke_request => {
                let marker = paths::marker(&ClaimRef { resource: resource.clone(), owner });
                Ok(self.client.check_stat(&marker).await?.is_none())
            }
            (Some(_), _) => Ok(true),
        }
    }

    /// Adds the holder that has this contender to the description of its resource.
    pub(crate) async fn describe_holder(
        &self,
        resource: &Resource,
        list: &ContenderList,
        node: &ContenderNode,
        described: &mut Holders,
    ) -> Result<(), StoreError> {
        let contender = &list.contenders[node.position];
        if self.is_foreign(resource, contender, &node.record).await? {
            // An ephemeral node ends with its session. That is not known, so the longest one is assumed.
            let expiry = (node.stat.ephemeral_owner != 0).then_some(self.longest_expiry);
            described
                .foreign
                .extend(foreign_lock(resource, contender, node).map(|lock| lock.expiring(expiry)));
        } else {
            described.claims.push(self.describe_claim(resource, contender, node).await?);
        }
        Ok(())
    }

    /// Describes the claim that has this contender.
    async fn describe_claim(
        &self,
        resource: &Resource,
        contender: &Contender,
        node: &ContenderNode,
    ) -> Result<HeldBy, StoreError> {
        let token = self.token_of(resource, &node.record, &node.stat).await?;
        let weight = node.record.weight(contender.share.weight());
        Ok(node.record.to_held_by(&node.stat, token, weight, self.server_now_ms(), self.longest_expiry))
    }

    /// Describes the claim that waits as this contender.
    pub(crate) async fn describe_waiter(
        &self,
        resource: &Resource,
        list: &ContenderList,
        node: &ContenderNode,
    ) -> Result<QueueEntry, StoreError> {
        let contender = &list.contenders[node.position];
        let HeldBy { holder, weight, held_for, remaining, .. } =
            self.describe_claim(resource, contender, node).await?;
        if !self.is_foreign(resource, contender, &node.record).await? {
            return Ok(QueueEntry::new(holder, weight, held_for, remaining));
        }
        let label = format!("foreign ({})", contender.foreign_form());
        let mut entry = QueueEntry::new(Arc::new(Holder::new("", 0, &label)), weight, held_for, remaining);
        entry.foreign = true;
        Ok(entry)
    }

    /// Describes the first few holders, and returns the newest zxid among all nodes that were read. Waiters
    /// use that zxid as their cursor: see `wait.rs`.
    pub(crate) async fn read_holders(
        &self,
        resource: &Resource,
        view: &ResourceView,
    ) -> Result<(Holders, i64), StoreError> {
        let count = view.admission().holder_count.min(Blocked::HOLDERS_MAX);
        let nodes = self.read_contenders(resource, &view.list, &(0..count).collect::<Vec<_>>()).await?;
        let mut holders = Holders::default();
        for node in &nodes {
            self.describe_holder(resource, &view.list, node, &mut holders).await?;
        }
        let control_mzxid = view.control.as_ref().map_or(0, |control| control.mzxid);
        let newest = nodes.iter().map(|node| node.stat.mzxid).chain([control_mzxid, view.pzxid]).max();
        Ok((holders, newest.unwrap_or(0)))
    }
}

/// The holders of a resource, as other clients see them.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    pub(crate) claims: Vec<HeldBy>,
    pub(crate) foreign: Vec<ForeignLock>,
}

/// Describes a lock of another program. Its hash names this node, as it was created and with this data.
pub(crate) fn foreign_lock(
    resource: &Resource,
    contender: &Contender,
    node: &ContenderNode,
) -> Option<ForeignLock> {
    let path = paths::contender(resource, &contender.name);
    let named = format!("{path} {} {}", node.stat.czxid, node.record.foreign?.hash);
    Some(ForeignLock::new(path, contender.foreign_form(), ValueHash::of(named.as_bytes())))
}
